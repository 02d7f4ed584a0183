//! Clone detection: the distinction of a restarted daemon from a copy of it.
//!
//! A daemon draws a random id at its start. It counts its starts in its data directory and its connections in
//! memory. For one data directory the starts only rise, and the connections rise within one start. A copy of
//! the directory therefore presents a used number sooner or later.

/// The identity of a daemon at the begin of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DaemonIdentity {
    /// The random id of this start, in memory only.
    pub instance: String,
    /// The number of starts with this data directory, including this one.
    pub epoch: i64,
    /// The number of connections since the start, including this one.
    pub connection: i64,
}

/// The result of a comparison with the last admitted daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The first daemon, or a reconnection of the last one.
    Accepted,
    /// A later start. The last daemon must be dead, otherwise this one is a copy.
    Restart,
    /// A used number: a delayed message of a dead daemon, or a second daemon.
    Behind,
    /// A second daemon of a node with a known clone.
    Refused,
}

/// Compares `new` with the `last` admitted daemon. `suspect` is true if a clone was detected and no operator
/// has acted since.
pub fn judge(last: Option<&DaemonIdentity>, new: &DaemonIdentity, suspect: bool) -> Verdict {
    let Some(last) = last else { return Verdict::Accepted };
    if last.instance == new.instance {
        let advances = new.epoch == last.epoch && new.connection > last.connection;
        return if advances { Verdict::Accepted } else { Verdict::Behind };
    }
    if suspect {
        Verdict::Refused
    } else if new.epoch > last.epoch {
        Verdict::Restart
    } else {
        Verdict::Behind
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn daemon(instance: &str, epoch: i64, connection: i64) -> DaemonIdentity {
        DaemonIdentity { instance: instance.to_owned(), epoch, connection }
    }

    #[test]
    fn a_restart_and_a_reconnection_differ_from_a_copy() {
        let last = daemon("a", 3, 7);
        for (new, verdict) in [
            (daemon("a", 3, 8), Verdict::Accepted),
            (daemon("a", 3, 70), Verdict::Accepted),
            (daemon("a", 3, 7), Verdict::Behind),
            (daemon("a", 3, 1), Verdict::Behind),
            (daemon("a", 4, 8), Verdict::Behind),
            (daemon("b", 4, 1), Verdict::Restart),
            // Starts without a connection to the portal leave gaps.
            (daemon("b", 9, 1), Verdict::Restart),
            (daemon("b", 3, 1), Verdict::Behind),
            (daemon("b", 3, 8), Verdict::Behind),
            (daemon("b", 2, 1), Verdict::Behind),
        ] {
            assert_eq!(judge(Some(&last), &new, false), verdict, "{new:?}");
        }
        assert_eq!(judge(None, &daemon("a", 1, 1), true), Verdict::Accepted);
        assert_eq!(judge(Some(&last), &daemon("a", 3, 8), true), Verdict::Accepted);
        assert_eq!(judge(Some(&last), &daemon("b", 4, 1), true), Verdict::Refused);
    }

    proptest! {
        #[test]
        fn one_is_never_suspected(restarts in proptest::collection::vec(any::<bool>(), 1..40)) {
            let (mut epoch, mut connection, mut last) = (1, 0, None::<DaemonIdentity>);
            for restart in restarts {
                (epoch, connection) = if restart { (epoch + 1, 1) } else { (epoch, connection + 1) };
                let new = daemon(&format!("i{epoch}"), epoch, connection);
                let verdict = judge(last.as_ref(), &new, false);
                prop_assert!(matches!(verdict, Verdict::Accepted | Verdict::Restart), "{:?}", verdict);
                last = Some(new);
            }
        }

        #[test]
        fn two_that_take_turns_without_restarting_are_noticed(first in 1i64..50, second in 1i64..50) {
            let (a, b) = (daemon("a", first, 1), daemon("b", second, 1));
            let second_in = judge(Some(&a), &b, false);
            let a_again = judge(Some(&b), &daemon("a", first, 2), false);
            prop_assert!(second_in == Verdict::Behind || a_again == Verdict::Behind);
        }
    }
}
