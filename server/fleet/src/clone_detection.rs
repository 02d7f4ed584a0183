//! Clone detection: tells the restart of a daemon from a copy of it.
//!
//! A daemon draws a random id when it starts, counts its starts in its data directory and its
//! connections in memory. Of one data directory the starts only rise, and within one start so do the
//! connections. A copy of the directory must, sooner or later, come with a number that has been.

/// The identity of a daemon at the begin of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Daemon {
    /// Drawn when the daemon started, kept in memory only.
    pub instance: String,
    /// Starts with this data directory, this one included.
    pub epoch: i64,
    /// Connections since the start, this one included.
    pub connection: i64,
}

/// The result of a comparison with the daemon that was admitted last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nobody came before, or the same daemon comes again: what it held before is gone.
    Welcome,
    /// A later start. It is a restart unless the daemon before it still lives.
    Restart,
    /// It goes back. Either it was delayed and nobody is there any more, or it is a second daemon.
    Behind,
    /// Two daemons are known to hold this certificate, and this is not the one that was here.
    Shut,
}

/// Judges `new` by the `last` claim that was let in. `suspect`: a copy was noticed and nobody has acted.
pub fn judge(last: Option<&Daemon>, new: &Daemon, suspect: bool) -> Verdict {
    let Some(last) = last else { return Verdict::Welcome };
    if last.instance == new.instance {
        let onward = new.epoch == last.epoch && new.connection > last.connection;
        return if onward { Verdict::Welcome } else { Verdict::Behind };
    }
    if suspect {
        Verdict::Shut
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

    fn claim(instance: &str, epoch: i64, connection: i64) -> Daemon {
        Daemon { instance: instance.to_owned(), epoch, connection }
    }

    #[test]
    fn a_restart_and_a_reconnection_are_told_from_a_copy() {
        let last = claim("a", 3, 7);
        for (new, verdict) in [
            (claim("a", 3, 8), Verdict::Welcome),
            (claim("a", 3, 70), Verdict::Welcome),
            (claim("a", 3, 7), Verdict::Behind),
            (claim("a", 3, 1), Verdict::Behind),
            (claim("a", 4, 8), Verdict::Behind),
            (claim("b", 4, 1), Verdict::Restart),
            // Starts that never reached the portal leave gaps.
            (claim("b", 9, 1), Verdict::Restart),
            (claim("b", 3, 1), Verdict::Behind),
            (claim("b", 3, 8), Verdict::Behind),
            (claim("b", 2, 1), Verdict::Behind),
        ] {
            assert_eq!(judge(Some(&last), &new, false), verdict, "{new:?}");
        }
        assert_eq!(judge(None, &claim("a", 1, 1), true), Verdict::Welcome);
        assert_eq!(judge(Some(&last), &claim("a", 3, 8), true), Verdict::Welcome);
        assert_eq!(judge(Some(&last), &claim("b", 4, 1), true), Verdict::Shut);
    }

    proptest! {
        #[test]
        fn one_is_never_suspected(restarts in proptest::collection::vec(any::<bool>(), 1..40)) {
            let (mut epoch, mut connection, mut last) = (1, 0, None::<Daemon>);
            for restart in restarts {
                (epoch, connection) = if restart { (epoch + 1, 1) } else { (epoch, connection + 1) };
                let new = claim(&format!("i{epoch}"), epoch, connection);
                let verdict = judge(last.as_ref(), &new, false);
                prop_assert!(matches!(verdict, Verdict::Welcome | Verdict::Restart), "{:?}", verdict);
                last = Some(new);
            }
        }

        #[test]
        fn two_that_take_turns_without_restarting_are_noticed(first in 1i64..50, second in 1i64..50) {
            let (a, b) = (claim("a", first, 1), claim("b", second, 1));
            let second_in = judge(Some(&a), &b, false);
            let a_again = judge(Some(&b), &claim("a", first, 2), false);
            prop_assert!(second_in == Verdict::Behind || a_again == Verdict::Behind);
        }
    }
}
