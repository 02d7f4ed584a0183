//! The approval of nodes by their join tokens, and of boards that a node reports after its approval.
//!
//! A report is a claim of a host. It gives a node no more boards than an operator approved.

use berth_types::cluster::RACK_LABEL;
use berth_types::nodes::{ExpectedBoards, JoinTerms};

/// The most labels of a node.
pub const MAX_NODE_LABELS: usize = 64;
/// Bytes of the longest key or value of a node's label.
pub const MAX_NODE_LABEL_BYTES: usize = 63;

/// A board of a node, with its model and its approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardApproval {
    pub uuid: String,
    pub model: String,
    pub is_approved: bool,
}

/// True for a key or a value that a label of a node may have.
pub fn is_label_text(text: &str) -> bool {
    (1..=MAX_NODE_LABEL_BYTES).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// True for a label that a node may have. A rack of blanks only could have no power budget.
pub fn is_node_label(key: &str, value: &str) -> bool {
    let is_blank_rack = key == RACK_LABEL && value.trim().is_empty();
    is_label_text(key) && is_label_text(value) && !is_blank_rack
}

/// The boards by model: `8 × H100-80GB, 2 × A30`, or `no boards`.
fn boards_text(models: &[&str]) -> String {
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for model in models {
        match counts.iter_mut().find(|(known, _)| known == model) {
            Some((_, count)) => *count += 1,
            None => counts.push((*model, 1)),
        }
    }
    if counts.is_empty() {
        return "no boards".to_owned();
    }
    counts.into_iter().map(|(model, count)| format!("{count} × {model}")).collect::<Vec<_>>().join(", ")
}

fn fits(expected: &ExpectedBoards, models: &[&str]) -> bool {
    let count = u32::try_from(models.len()).unwrap_or(u32::MAX);
    count == expected.boards && models.iter().all(|model| *model == expected.model)
}

/// The reason why the terms of a join token do not approve a node with boards of these models, as a sentence.
/// `None` if they approve it.
pub fn waiting_reason(terms: &JoinTerms, models: &[&str]) -> Option<String> {
    if !terms.approve {
        return Some("Its join token has no approval.".to_owned());
    }
    let expected = terms.expected.as_ref().filter(|expected| !fits(expected, models))?;
    let ExpectedBoards { model, boards } = expected;
    Some(format!("Its join token expects {boards} × {model}, and the node reports {}.", boards_text(models)))
}

/// The changes of approvals after a report of an approved node. `known` are the boards before the report, and
/// `reported` are UUIDs with models.
///
/// A new board takes the approval of a board with its model that is not reported any more. Without such a board it
/// waits. So the number of approved boards of a model never grows.
pub fn approval_changes(known: &[BoardApproval], reported: &[(&str, &str)]) -> Vec<BoardApproval> {
    let is_kept = |board: &BoardApproval| {
        board.is_approved && reported.contains(&(board.uuid.as_str(), board.model.as_str()))
    };
    let mut free: Vec<&BoardApproval> =
        known.iter().filter(|board| board.is_approved && !is_kept(board)).collect();
    let mut changes = Vec::new();
    for (uuid, model) in reported {
        if known.iter().any(|board| board.uuid == *uuid && board.model == *model && board.is_approved) {
            continue;
        }
        let replaced = free.iter().position(|board| board.model == *model).map(|at| free.swap_remove(at));
        let is_approved = replaced.is_some();
        // A reported board gets an entry of its own.
        if let Some(old) = replaced.filter(|old| reported.iter().all(|(uuid, _)| *uuid != old.uuid)) {
            changes.push(BoardApproval { is_approved: false, ..old.clone() });
        }
        changes.push(BoardApproval { uuid: (*uuid).to_owned(), model: (*model).to_owned(), is_approved });
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn terms(approve: bool, expected: Option<(&str, u32)>) -> JoinTerms {
        let expected = expected.map(|(model, boards)| ExpectedBoards { model: model.to_owned(), boards });
        JoinTerms { approve, expected, ..JoinTerms::default() }
    }

    #[test]
    fn labels_have_a_length_in_bytes_and_racks_are_not_blank() {
        assert!(is_node_label("rack", &"ä".repeat(31)) && is_node_label("zone", "  "));
        for (key, value) in [("rack", "  "), ("rack", ""), ("", "r1"), ("rack", "a\nb")] {
            assert!(!is_node_label(key, value), "{key:?} {value:?}");
        }
        assert!(!is_node_label("rack", &"ä".repeat(32)));
    }

    #[test]
    fn a_join_token_approves_only_the_expected_boards() {
        let reason = |approve, expected, models: &[&str]| waiting_reason(&terms(approve, expected), models);
        assert_eq!(reason(true, None, &["A30"]), None);
        assert_eq!(reason(true, None, &[]), None);
        assert!(reason(false, None, &["A30"]).is_some_and(|text| text.contains("no approval")));
        assert!(reason(false, Some(("A30", 1)), &["A30"]).is_some(), "an expectation alone approves nothing");
        assert_eq!(reason(true, Some(("A30", 2)), &["A30", "A30"]), None);
        for models in [&["A30"][..], &["A30", "A30", "A30"], &["A30", "H100"], &[]] {
            assert!(reason(true, Some(("A30", 2)), models).is_some(), "{models:?}");
        }
        let text = reason(true, Some(("H100-80GB", 8)), &["A30", "H100-80GB", "A30"]);
        let expected = "Its join token expects 8 × H100-80GB, and the node reports 2 × A30, 1 × H100-80GB.";
        assert_eq!(text.as_deref(), Some(expected));
    }

    fn board(uuid: &str, model: &str, is_approved: bool) -> BoardApproval {
        BoardApproval { uuid: uuid.to_owned(), model: model.to_owned(), is_approved }
    }

    #[test]
    fn a_new_board_waits_or_replaces_a_board_that_is_gone() {
        let known = [board("a", "H100", true), board("b", "H100", true), board("c", "A30", true)];
        let all = [("a", "H100"), ("b", "H100"), ("c", "A30")];
        assert_eq!(approval_changes(&known, &all), [], "the same boards");
        assert_eq!(approval_changes(&known, &all[..1]), [], "a board that is gone keeps its approval");
        let more = [("a", "H100"), ("b", "H100"), ("c", "A30"), ("d", "H100")];
        assert_eq!(approval_changes(&known, &more), [board("d", "H100", false)]);
        let replaced = [("a", "H100"), ("d", "H100"), ("c", "A30")];
        let expected = [board("b", "H100", false), board("d", "H100", true)];
        assert_eq!(approval_changes(&known, &replaced), expected);
        let other = [("a", "H100"), ("d", "H200"), ("c", "A30")];
        assert_eq!(approval_changes(&known, &other), [board("d", "H200", false)], "another model");
        let renamed = [("a", "H100"), ("b", "H100"), ("c", "H200")];
        assert_eq!(
            approval_changes(&known, &renamed),
            [board("c", "H200", false)],
            "a claim of another model"
        );
        let waiting = [board("a", "H100", true), board("d", "H100", false)];
        assert_eq!(approval_changes(&waiting, &[("a", "H100"), ("d", "H100")]), [board("d", "H100", false)]);
    }

    fn approved_by_model(boards: &BTreeMap<String, BoardApproval>) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for board in boards.values().filter(|board| board.is_approved) {
            *counts.entry(board.model.clone()).or_default() += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn reports_never_add_an_approval(
            known in proptest::collection::btree_map("[a-f]", ("[XY]", any::<bool>()), 0..5),
            reports in proptest::collection::vec(proptest::collection::btree_map("[a-f]", "[XY]", 0..6), 1..4),
        ) {
            let mut boards: BTreeMap<String, BoardApproval> = known
                .into_iter()
                .map(|(uuid, (model, is_approved))| (uuid.clone(), board(&uuid, &model, is_approved)))
                .collect();
            let limit = approved_by_model(&boards);
            for report in reports {
                let before: Vec<BoardApproval> = boards.values().cloned().collect();
                let reported: Vec<(&str, &str)> =
                    report.iter().map(|(uuid, model)| (uuid.as_str(), model.as_str())).collect();
                let changes = approval_changes(&before, &reported);
                // The record of the report has the reported models; a change has the approval.
                for (uuid, model) in &report {
                    let is_approved = boards.get(uuid).is_some_and(|known| known.is_approved);
                    boards.insert(uuid.clone(), board(uuid, model, is_approved));
                }
                for change in changes {
                    boards.insert(change.uuid.clone(), change);
                }
                for (model, count) in approved_by_model(&boards) {
                    prop_assert!(count <= limit.get(&model).copied().unwrap_or(0), "{model}");
                }
            }
        }
    }
}
