//! The meaning of an XID for its board and for the attempts on it.
//!
//! The numbers and their consequences are from NVIDIA's catalogue of XID errors
//! (<https://docs.nvidia.com/deploy/xid-errors/>), those that are an application's own fault as NVIDIA's
//! device plugin for Kubernetes has them. Pure.

/// The consequence of an XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XidVerdict {
    /// A fault of the program; the board is not affected.
    Application,
    /// The attempt on the slice is lost, and the board needs a check; its other slices go on.
    Slice,
    /// The board is unusable.
    Board,
    /// A log entry only.
    Noted,
}

/// XIDs that keep work off a board until a check, each with its meaning.
const CRITICAL: [(u64, &str); 17] = [
    (46, "the board stopped processing"),
    (48, "an uncorrectable memory error"),
    (54, "the board's auxiliary power is not connected"),
    (62, "the controller of the board halted"),
    (64, "a row or page of memory could not be replaced"),
    (74, "an error of NVLink"),
    (79, "the board has fallen off the bus"),
    (95, "an uncontained memory error"),
    (110, "a security fault"),
    (119, "the system processor of the board does not answer"),
    (120, "an error of the system processor of the board"),
    (136, "NVLink could not be trained"),
    (140, "an unrecovered memory error"),
    (143, "the board could not be initialised"),
    (155, "NVLink is down"),
    (157, "faulty memory could not be retired"),
    (158, "the board timed out permanently"),
];
/// A contained error: only the user of the memory is lost, and a reset replaces the memory.
const CONTAINED: u64 = 94;
/// Faults of applications: a bad access, an assertion, a failed decoder or context.
const OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// The consequence of an XID.
pub fn verdict(xid: u64) -> XidVerdict {
    if xid == CONTAINED {
        XidVerdict::Slice
    } else if CRITICAL.iter().any(|(code, _)| *code == xid) {
        XidVerdict::Board
    } else if OF_APPLICATIONS.contains(&xid) {
        XidVerdict::Application
    } else {
        XidVerdict::Noted
    }
}

/// The meaning of an XID, as a sentence.
pub fn describe(xid: u64) -> String {
    let known = CRITICAL.iter().find(|(code, _)| *code == xid).map(|(_, meaning)| *meaning);
    let meaning = match (xid, known) {
        (CONTAINED, _) => "a contained memory error",
        (_, Some(meaning)) => meaning,
        (_, None) => return format!("The driver reported XID {xid}."),
    };
    format!("The driver reported XID {xid}: {meaning}.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_xid_has_one_verdict() {
        for (code, _) in CRITICAL {
            assert!(!OF_APPLICATIONS.contains(&code) && code != CONTAINED, "{code}");
            assert_eq!(verdict(code), XidVerdict::Board);
        }
        assert!(CRITICAL.is_sorted_by_key(|(code, _)| *code));
        assert_eq!(OF_APPLICATIONS.map(verdict), [XidVerdict::Application; 6]);
        assert_eq!(
            (verdict(94), verdict(63), verdict(0), verdict(u64::MAX)),
            (XidVerdict::Slice, XidVerdict::Noted, XidVerdict::Noted, XidVerdict::Noted)
        );
    }

    #[test]
    fn an_xid_is_a_sentence() {
        assert_eq!(describe(79), "The driver reported XID 79: the board has fallen off the bus.");
        assert_eq!(describe(94), "The driver reported XID 94: a contained memory error.");
        assert_eq!(describe(500), "The driver reported XID 500.");
    }
}
