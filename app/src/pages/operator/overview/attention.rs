//! Findings that need attention, from the figures of the overview. Pure.

use berth_types::money::money_text;
use berth_types::overview::{BoardNotice, DiskSpace, DiskState, NodeNotice, OperatorOverview};

use super::super::super::text::{counted, size_text};
use super::super::boards::board_path;
use crate::ui::Zone;

/// One kind of finding with its number, and the page behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub title: String,
    /// The first objects of the finding.
    pub note: String,
    pub path: String,
}

/// The most boards with their own finding.
const BOARD_FINDINGS: usize = 5;

fn size(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Joins the first names: `a, b and 3 more`.
fn names(shown: Vec<String>, all: u64) -> String {
    let more = size(all).saturating_sub(shown.len());
    let text = shown.join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

/// Adds a finding, unless its number is 0.
fn add(
    out: &mut Vec<Finding>,
    count: u64,
    (one, many): (&str, &str),
    shown: Vec<String>,
    path: &'static str,
) {
    if count > 0 {
        let path = path.to_owned();
        out.push(Finding { title: counted(size(count), one, many), note: names(shown, count), path });
    }
}

/// Returns the finding of one board. Its page has the next step, which needs more facts of the board.
fn board_finding(board: &BoardNotice) -> Finding {
    let state = if board.awaits_approval { "awaits your approval" } else { "out of service" };
    Finding {
        title: format!("GPU {} of {} {state}", board.index, board.node_name),
        note: board.reason.clone(),
        path: board_path(board.node, &board.gpu_uuid),
    }
}

/// Adds the findings of the first boards out of service or without an approval, and one for the others.
fn add_boards(out: &mut Vec<Finding>, all: u64, boards: &[BoardNotice]) {
    let shown = boards.iter().take(BOARD_FINDINGS);
    let others = size(all).saturating_sub(shown.len());
    out.extend(shown.map(board_finding));
    if others > 0 {
        out.push(Finding {
            title: counted(
                others,
                "further board out of service or without approval",
                "further boards out of service or without approval",
            ),
            note: "No jobs are placed there before a check, a release or an approval.".to_owned(),
            path: "/operator/nodes".to_owned(),
        });
    }
}

/// Returns the finding of a disk with too little free space.
fn disk_finding(disk: DiskSpace) -> Option<Finding> {
    let note = match disk.state {
        DiskState::Enough => return None,
        DiskState::NoUploads => "Uploads are refused.",
        DiskState::NoSubmissions => "Uploads and new jobs are refused. Workers keep their files.",
    };
    Some(Finding {
        title: format!("Disk of the portal almost full: {} free", size_text(disk.free_bytes)),
        note: format!("{note} The mark is {}.", size_text(disk.min_free_bytes)),
        path: "/operator/system".to_owned(),
    })
}

/// Returns the finding of acts that wait for a second operator.
fn waiting_finding(change_requests: u64) -> Option<Finding> {
    let words = ("change request waits for a second operator", "change requests wait for a second operator");
    (change_requests > 0).then(|| Finding {
        title: counted(size(change_requests), words.0, words.1),
        note: "A change request ends without effect after 24 hours.".to_owned(),
        path: "/operator/changes".to_owned(),
    })
}

/// Lists the findings, the most urgent first.
pub fn findings(overview: &OperatorOverview, zone: Zone) -> Vec<Finding> {
    let mut out = Vec::new();
    let cluster = &overview.cluster;
    if let Some(check) = overview.ledger_check.filter(|check| check.mismatches > 0) {
        out.push(Finding {
            title: counted(size(check.mismatches), "mismatch in the ledger", "mismatches in the ledger"),
            note: format!("Found at {}.", zone.minute(check.at)),
            path: "/operator/books".to_owned(),
        });
    }
    out.extend(overview.disk.and_then(disk_finding));
    let node_text = |node: &NodeNotice| {
        let copied = if node.may_be_copied { ", may have been copied" } else { "" };
        format!("{} ({}{copied})", node.name, node.state.word())
    };
    let nodes = cluster.notices.iter().map(node_text).collect();
    let words = (
        "node not connected, draining, awaiting approval or perhaps copied",
        "nodes not connected, draining, awaiting approval or perhaps copied",
    );
    add(&mut out, cluster.notice_count, words, nodes, "/operator/nodes");
    add_boards(&mut out, cluster.boards_out_of_service, &cluster.board_notices);
    let stuck = overview.stuck.iter().map(|one| format!("{} of {}", one.job_name, one.org_name)).collect();
    let words = ("job without progress", "jobs without progress");
    add(&mut out, overview.stuck_count, words, stuck, "/operator/stuck");
    let asking = overview.quota_requests.iter().map(|request| request.org_name.clone()).collect();
    let words = ("request for limits or credit", "requests for limits or credit");
    add(&mut out, overview.quota_request_count, words, asking, "/operator/limits");
    out.extend(waiting_finding(overview.change_request_count));
    let credit = |micros: i64| money_text(micros, &overview.currency);
    let poor = overview
        .orgs_without_credit
        .iter()
        .map(|org| format!("{} ({})", org.org_name, credit(org.available_micros)))
        .collect();
    let words = ("organization without credit", "organizations without credit");
    add(&mut out, overview.orgs_without_credit_count, words, poor, "/operator/orgs?without_credit=true");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overview(more: serde_json::Value) -> OperatorOverview {
        let mut whole = serde_json::json!({
            "at": "2026-03-01T09:00:00Z", "currency": "USD",
            "cluster": {
                "states": [], "notice_count": 0, "notices": [], "boards_out_of_service": 0, "board_notices": [], "capacity": [],
            },
            "work": {"running_jobs": 0, "running_devices": 0, "queued_jobs": 0, "queue": []},
            "stuck_count": 0, "stuck": [], "quota_request_count": 0, "quota_requests": [], "change_request_count": 0,
            "orgs_without_credit_count": 0, "orgs_without_credit": [],
            "revenue": {"today_micros": 0, "month_micros": 0},
            "rack_count": 0, "racks": [], "audit_events": [],
        });
        whole.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(whole).unwrap()
    }

    #[test]
    fn a_calm_portal_has_no_findings() {
        assert!(findings(&overview(serde_json::json!({})), Zone::Utc).is_empty());
    }

    #[test]
    fn acts_wait_for_a_second_operator() {
        let found = findings(&overview(serde_json::json!({"change_request_count": 2})), Zone::Utc);
        let all: Vec<(&str, &str)> =
            found.iter().map(|one| (one.title.as_str(), one.path.as_str())).collect();
        assert_eq!(all, [("2 change requests wait for a second operator", "/operator/changes")]);
    }

    #[test]
    fn a_failed_board_leads_to_its_page() {
        let board = |index: u32| {
            serde_json::json!({
                "node": "node_00000000000000000000000001", "node_name": "pier-9", "gpu_uuid": format!("GPU-{index}"),
                "index": index, "code": "gpu.xid", "reason": "XID 48.",
            })
        };
        for (all, expected) in [(0, 0), (1, 1), (5, 5), (6, 6), (40, 6)] {
            let boards: Vec<serde_json::Value> = (0..all.min(10)).map(board).collect();
            let found = findings(
                &overview(serde_json::json!({"cluster": {
                    "states": [], "notice_count": 0, "notices": [], "boards_out_of_service": all,
                    "board_notices": boards, "capacity": [],
                }})),
                Zone::Utc,
            );
            assert_eq!(found.len(), expected, "{all}");
            if let Some(first) = found.first() {
                assert_eq!(first.path, "/operator/nodes/node_00000000000000000000000001/boards/GPU-0");
                assert_eq!(first.note, "XID 48.");
            }
            if all == 1 {
                let mut waits = board(1);
                waits["awaits_approval"] = true.into();
                let waits = board_finding(&serde_json::from_value(waits).unwrap());
                assert_eq!(waits.title, "GPU 1 of pier-9 awaits your approval");
            }
            if all == 40 {
                assert_eq!(
                    found.last().unwrap().title,
                    "35 further boards out of service or without approval"
                );
            }
        }
    }

    #[test]
    fn findings_have_their_number_and_the_first_names() {
        let poor = serde_json::json!([
            {"org": "org_00000000000000000000000001", "org_name": "lab", "available_micros": -2_000_000},
        ]);
        let bad = overview(serde_json::json!({
            "orgs_without_credit_count": 3, "orgs_without_credit": poor,
            "ledger_check": {"at": "2026-03-01T08:00:00Z", "mismatches": 1},
        }));
        let found = findings(&bad, Zone::Utc);
        assert_eq!(found.first().unwrap().note, "Found at 2026-03-01 08:00 UTC.");
        let titles: Vec<&str> = found.iter().map(|finding| finding.title.as_str()).collect();
        assert_eq!(titles, ["1 mismatch in the ledger", "3 organizations without credit"]);
        assert_eq!(found.last().unwrap().note, "lab (−$2.00) and 2 more");
        let disk = serde_json::json!({
            "disk": {"free_bytes": 2_u64 << 30, "min_free_bytes": 5_u64 << 30, "state": "no_submissions"},
        });
        let full = findings(&overview(disk), Zone::Utc);
        assert_eq!(full.first().unwrap().title, "Disk of the portal almost full: 2.0 GiB free");
        assert!(full.first().unwrap().note.contains("new jobs are refused"));
        let clean = serde_json::json!({"ledger_check": {"at": "2026-03-01T08:00:00Z", "mismatches": 0}});
        assert!(findings(&overview(clean), Zone::Utc).is_empty());
    }
}
