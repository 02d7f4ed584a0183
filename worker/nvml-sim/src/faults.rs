//! What is to go wrong, as `faults.json` beside the boards says it. Read anew at every call, so that a
//! test changes a board while a program uses it.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;

use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use crate::fault::Fault;

/// The XID of a board that has fallen off the bus: it stays off until it is reset.
const FALLEN_OFF: u64 = 79;

/// Everything that can be made to go wrong. Boards and slices are named by UUID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Boards that are off the bus for as long as they are named.
    pub lost: Vec<String>,
    /// How many milliseconds every call about a board takes.
    pub hang_ms: HashMap<String, u64>,
    /// Errors that the driver tells whoever waits for events.
    pub xid: Vec<Xid>,
    /// ECC errors that boards have counted.
    pub ecc: HashMap<String, Ecc>,
    /// Rows of memory that boards have replaced, or could not.
    pub remapped: HashMap<String, Remapped>,
    /// Boards that are not registered with the fabric of their switches.
    pub fabric: HashMap<String, FabricFault>,
    /// Boards and slices that somebody unknown holds.
    pub in_use: Vec<String>,
    /// The program may not change MIG modes or instances.
    pub no_permission: bool,
    /// How often a board was reset: another number than before resets it.
    pub reset: HashMap<String, u64>,
    /// How often the host was rebooted: another number than before resets every board.
    pub reboot: u64,
}

/// The registration of a board with its fabric.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FabricFault {
    /// No fabric manager runs.
    NotStarted,
    InProgress,
    /// It ended with an error.
    Failed,
}

/// One XID.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    pub gpu: String,
    pub xid: u64,
    /// Orders the events of a board; each has its own, from 1 on.
    pub at: u64,
    /// The slice that it happened on, by its start; the board when absent.
    #[serde(default)]
    pub start: Option<u32>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ecc {
    pub corrected: u64,
    pub uncorrected: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Remapped {
    pub correctable: u32,
    pub uncorrectable: u32,
    pub pending: bool,
    pub failure: bool,
}

impl Faults {
    pub fn read(dir: &Path) -> Result<Self, Fault> {
        Self::parse(&Self::text(dir)?)
    }

    /// What is written of them; that nothing goes wrong, when nothing is.
    pub fn text(dir: &Path) -> Result<Vec<u8>, Fault> {
        match std::fs::read(dir.join("faults.json")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(b"{}".to_vec()),
            Err(_) => Err(Fault::OperatingSystem),
        }
    }

    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        serde_json::from_slice(text).map_err(|_| Fault::Unknown)
    }

    /// The number of the newest event of a board; 0 when it has none.
    pub fn latest(&self, uuid: &str) -> u64 {
        self.xid.iter().filter(|x| x.gpu == uuid).map(|x| x.at).max().unwrap_or(0)
    }

    /// The first event of a board after the one with this number.
    pub fn next_after(&self, uuid: &str, at: u64) -> Option<&Xid> {
        self.xid.iter().filter(|x| x.gpu == uuid && x.at > at).min_by_key(|x| x.at)
    }

    /// True if a board is off the bus, when a reset has mended everything up to the event `mended`.
    pub fn is_lost(&self, uuid: &str, mended: u64) -> bool {
        self.lost.iter().any(|lost| lost == uuid)
            || self.xid.iter().any(|x| x.gpu == uuid && x.xid == FALLEN_OFF && x.at > mended)
    }

    pub fn holds(&self, uuid: &str) -> bool {
        self.in_use.iter().any(|held| held == uuid)
    }
}

/// Milliseconds since the host started, for what a board counts.
pub fn now_ms() -> u64 {
    let now =
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |t| t.tv_sec() * 1_000 + t.tv_nsec() / 1_000_000);
    u64::try_from(now).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused() {
        let read = |text: &str| serde_json::from_str::<Faults>(text);
        assert!(read(r#"{"lost": ["GPU-a"], "xid": [{"gpu": "GPU-a", "xid": 79, "at": 1}]}"#).is_ok());
        for bad in [
            r#"{"losst": []}"#,
            r#"{"xid": [{"gpu": "GPU-a", "xid": 79}]}"#,
            r#"{"ecc": {"GPU-a": {"x": 1}}}"#,
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_board_that_fell_off_stays_off_until_it_is_mended() {
        let xid = |gpu: &str, xid, at| Xid { gpu: gpu.to_owned(), xid, at, start: None };
        let faults =
            Faults { xid: vec![xid("a", 13, 1), xid("a", 79, 4), xid("b", 79, 2)], ..Faults::default() };
        assert!(faults.is_lost("a", 0) && faults.is_lost("a", 3) && !faults.is_lost("a", 4));
        assert_eq!((faults.latest("a"), faults.latest("c")), (4, 0));
        assert_eq!(faults.next_after("a", 1).map(|x| x.xid), Some(79));
        assert_eq!(faults.next_after("a", 4), None);
    }
}
