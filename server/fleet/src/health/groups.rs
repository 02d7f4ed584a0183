//! The boards of a node that the driver resets only together. Pure.

use std::collections::HashSet;

use berth_store::health::StoredHealth;
use berth_types::health::GpuTaskKind;

/// The quarantine reason of a board that waits for its reset. A failed reset has another reason.
pub(super) const WAITING: &str = "The board is reset after the end of the present jobs.";

/// True if a reset of the board is requested and has no result.
pub(super) fn awaits_reset(row: &StoredHealth) -> bool {
    row.task_kind == Some(GpuTaskKind::Reset) && row.task_number > row.task_done
}

/// The reported boards of a node that one reset resets with the board `gpu_uuid`, with this board, in the order of
/// `rows`. A silent board keeps its facts, so one name joins two boards.
pub(super) fn find_group<'a>(rows: &'a [StoredHealth], gpu_uuid: &str) -> Vec<&'a StoredHealth> {
    let with_names = |row: &'a StoredHealth| {
        let names: HashSet<&'a str> = row.facts.reset_group.iter().map(String::as_str).collect();
        (row, names)
    };
    let candidates = rows.iter().filter(|row| row.present || row.uuid == gpu_uuid).map(with_names);
    let (mut open, mut rest): (Vec<_>, Vec<_>) = candidates.partition(|(row, _)| row.uuid == gpu_uuid);
    let mut group: HashSet<&str> = HashSet::new();
    while let Some((member, named)) = open.pop() {
        group.insert(member.uuid.as_str());
        // The worker chooses the names, so each pair of boards is looked at once.
        let (joined, apart): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(row, names)| {
            named.contains(row.uuid.as_str()) || names.contains(member.uuid.as_str())
        });
        open.extend(joined);
        rest = apart;
    }
    rows.iter().filter(|row| group.contains(row.uuid.as_str())).collect()
}

/// The boards with a requested reset of the same group as the board `gpu_uuid`, with this board; empty without one.
pub(super) fn find_open_group<'a>(rows: &'a [StoredHealth], gpu_uuid: &str) -> Vec<&'a StoredHealth> {
    let own = rows.iter().find(|row| row.uuid == gpu_uuid && awaits_reset(row));
    let Some(group) = own.and_then(|row| row.task_group.as_ref()) else { return Vec::new() };
    rows.iter().filter(|row| awaits_reset(row) && row.task_group.as_ref() == Some(group)).collect()
}

/// The UUIDs of all boards that a reset of the board resets: those of its requested reset, or those that a request
/// would have now. Empty for a board that is reset alone.
pub(super) fn reset_group(rows: &[StoredHealth], gpu_uuid: &str) -> Vec<String> {
    let is_open = rows.iter().any(|row| row.uuid == gpu_uuid && awaits_reset(row));
    let group = if is_open { find_open_group(rows, gpu_uuid) } else { find_group(rows, gpu_uuid) };
    if group.len() < 2 { Vec::new() } else { group.into_iter().map(|row| row.uuid.clone()).collect() }
}

#[cfg(test)]
mod tests {
    use berth_store::types::JsonColumn;
    use berth_types::health::GpuFacts;
    use berth_types::ids::NodeId;
    use uuid::Uuid;

    use super::*;

    const BOARDS: usize = 4;

    fn row(index: usize, named: &[usize]) -> StoredHealth {
        let reset_group = named.iter().map(|other| format!("GPU-{other}")).collect();
        StoredHealth {
            uuid: format!("GPU-{index}"),
            node_id: NodeId::from_uuid(Uuid::from_u128(1)),
            idx: i64::try_from(index).unwrap(),
            model: "V100-SXM2-16GB".to_owned(),
            memory_mib: 16_384,
            present: true,
            mig_enabled: false,
            quarantined: None,
            quarantine_code: None,
            quarantined_at: None,
            silent: None,
            awaits_approval: false,
            facts: JsonColumn(GpuFacts { reset_group, ..GpuFacts::default() }),
            task_number: 0,
            task_kind: None,
            task_done: 0,
            task_succeeded: None,
            task_detail: None,
            task_group: None,
            held: 0,
        }
    }

    fn indexes(group: &[&StoredHealth]) -> Vec<i64> {
        group.iter().map(|row| row.idx).collect()
    }

    #[test]
    fn a_group_has_all_boards_that_names_join() {
        // Each bit is one board that names another.
        for case in 0..1_u32 << (BOARDS * BOARDS) {
            let named = |from: usize, to: usize| (case >> (from * BOARDS + to)) & 1 == 1;
            if (0..BOARDS).any(|board| named(board, board)) {
                continue;
            }
            let mut reached: [[bool; BOARDS]; BOARDS] = std::array::from_fn(|from| {
                std::array::from_fn(|to| from == to || named(from, to) || named(to, from))
            });
            for middle in 0..BOARDS {
                for from in 0..BOARDS {
                    for to in 0..BOARDS {
                        reached[from][to] |= reached[from][middle] && reached[middle][to];
                    }
                }
            }
            let list = |from: usize| (0..BOARDS).filter(|to| named(from, *to)).collect::<Vec<usize>>();
            let rows: Vec<StoredHealth> = (0..BOARDS).map(|index| row(index, &list(index))).collect();
            for (from, row) in rows.iter().enumerate() {
                let expected = (0_i64..).zip(reached[from]).filter(|(_, is_in)| *is_in).map(|(at, _)| at);
                let found = find_group(&rows, &row.uuid);
                assert_eq!(indexes(&found), expected.collect::<Vec<i64>>(), "{case:016b} {from}");
                let shown = reset_group(&rows, &row.uuid).len();
                assert_eq!(shown, if found.len() == 1 { 0 } else { found.len() });
            }
        }
    }

    #[test]
    fn a_board_that_left_the_node_is_in_no_group() {
        let all = [0, 1, 2];
        let rows = [row(0, &all), StoredHealth { present: false, ..row(1, &all) }, row(2, &all)];
        assert_eq!(indexes(&find_group(&rows, "GPU-0")), [0, 2]);
        assert!(find_group(&rows, "GPU-9").is_empty() && reset_group(&rows, "GPU-9").is_empty());
    }

    #[test]
    fn a_requested_reset_keeps_its_boards() {
        let asked = |index: usize, done: i64, group: Option<&str>| StoredHealth {
            task_kind: Some(GpuTaskKind::Reset),
            task_number: 5,
            task_done: done,
            task_group: group.map(str::to_owned),
            ..row(index, &[])
        };
        let rows = [
            asked(0, 0, Some("GPU-0")),
            asked(1, 0, Some("GPU-0")),
            asked(2, 5, Some("GPU-0")),
            asked(3, 0, None),
        ];
        assert_eq!(reset_group(&rows, "GPU-1"), ["GPU-0", "GPU-1"], "the third has its result");
        assert!(reset_group(&rows, "GPU-2").is_empty() && find_open_group(&rows, "GPU-2").is_empty());
        assert!(reset_group(&rows, "GPU-3").is_empty() && find_open_group(&rows, "GPU-3").is_empty());
    }
}
