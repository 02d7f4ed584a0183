//! What an XID means for the board and for what runs on it.
//!
//! The numbers and what to do about them are from NVIDIA's catalogue of XID errors
//! (<https://docs.nvidia.com/deploy/xid-errors/>), those that are an application's own fault as NVIDIA's
//! device plugin for Kubernetes has them. Pure.

/// What follows from an XID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The program did something wrong; the board is as good as before.
    Application,
    /// What runs on the slice is lost, and the board wants to be looked at; its other slices go on.
    Slice,
    /// The board cannot be trusted with anything.
    Board,
    /// Told to the log and nothing else.
    Noted,
}

/// XIDs after which nothing is placed on a board until somebody has looked, in words.
const CRITICAL: [(u64, &str); 17] = [
    (46, "the board stopped processing"),
    (48, "a memory error that ECC could not correct"),
    (54, "the board's auxiliary power is not connected"),
    (62, "the board's own controller halted"),
    (64, "a row or page of memory could not be replaced"),
    (74, "an error of NVLink"),
    (79, "the board has fallen off the bus"),
    (95, "an uncontained memory error"),
    (110, "a security fault"),
    (119, "the board's system processor does not answer"),
    (120, "an error of the board's system processor"),
    (136, "NVLink could not be trained"),
    (140, "an unrecovered memory error"),
    (143, "the board could not be initialised"),
    (155, "NVLink is down"),
    (157, "worn memory could not be retired"),
    (158, "the board timed out for good"),
];
/// An error that was contained: only what used the memory is lost, and the memory is replaced by a reset.
const CONTAINED: u64 = 94;
/// The application's own: a bad access, an assertion, a decoder or a context that gave up.
const OF_APPLICATIONS: [u64; 6] = [13, 31, 43, 45, 68, 109];

/// What follows from an XID.
pub fn judge(xid: u64) -> Verdict {
    if xid == CONTAINED {
        Verdict::Slice
    } else if CRITICAL.iter().any(|(code, _)| *code == xid) {
        Verdict::Board
    } else if OF_APPLICATIONS.contains(&xid) {
        Verdict::Application
    } else {
        Verdict::Noted
    }
}

/// What an XID says, in a sentence.
pub fn words(xid: u64) -> String {
    let known = CRITICAL.iter().find(|(code, _)| *code == xid).map(|(_, words)| *words);
    let meaning = match (xid, known) {
        (CONTAINED, _) => "a contained memory error",
        (_, Some(words)) => words,
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
            assert_eq!(judge(code), Verdict::Board);
        }
        assert!(CRITICAL.is_sorted_by_key(|(code, _)| *code));
        assert_eq!(OF_APPLICATIONS.map(judge), [Verdict::Application; 6]);
        assert_eq!(
            (judge(94), judge(63), judge(0), judge(u64::MAX)),
            (Verdict::Slice, Verdict::Noted, Verdict::Noted, Verdict::Noted)
        );
    }

    #[test]
    fn an_xid_is_a_sentence() {
        assert_eq!(words(79), "The driver reported XID 79: the board has fallen off the bus.");
        assert_eq!(words(94), "The driver reported XID 94: a contained memory error.");
        assert_eq!(words(500), "The driver reported XID 500.");
    }
}
