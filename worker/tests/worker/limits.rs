//! The limits of an attempt by its devices.

use berth_proto::{Assignment, Instance, Slot};
use berth_shim::model::AttemptKey;
use berth_shim::{BoardLimits, LimitCeilings};
use berth_worker::attempt::AttemptRecord;

/// The number of boards by the limit of processes, and the right to lock all memory.
fn limits(slots: &[(&str, Option<u32>, u32)]) -> (u64, bool) {
    let slot = |(gpu, start, share_milli): &(&str, Option<u32>, u32)| Slot {
        gpu_uuid: (*gpu).to_owned(),
        instance: start.map(|start| Instance { profile_id: 19, start, size: 1 }),
        share_milli: *share_milli,
    };
    let assignment = Assignment { slots: slots.iter().map(slot).collect(), ..Assignment::default() };
    let key = AttemptKey { job: "job-1".to_owned(), number: 1 };
    let ceilings = LimitCeilings { open_files: 1_024, locked_memory: true };
    let board = BoardLimits { pids: 1, open_files: 1_024, disk_mib: 1, ceilings };
    let limits = AttemptRecord::new(&key, &assignment).limits(&board);
    (limits.pids, limits.locked_memory)
}

#[test]
fn limits_count_each_board_once() {
    let (first, second) = ("GPU-1", "GPU-2");
    assert_eq!(limits(&[]), (1, false));
    assert_eq!(limits(&[(first, None, 0), (second, None, 0)]), (2, true));
    assert_eq!(limits(&[(first, Some(0), 0), (first, Some(1), 0)]), (1, false));
    assert_eq!(limits(&[(first, None, 0), (second, Some(0), 0)]), (2, false));
    assert_eq!(limits(&[(first, None, 500)]), (1, false));
}
