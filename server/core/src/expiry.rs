//! Credit that expires: which of it pays, and what is taken back when its time has come.
//!
//! A lot is what is left of one grant. Lots come soonest first. Two things always hold: what is set aside
//! draws on no lot that had expired before, and what is left of all lots is never more than the balance, nor
//! than nothing when that is below nothing.

use berth_types::time::Timestamp;

/// What is left of a grant that expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lot {
    pub left_micros: i64,
    pub expires_at: Timestamp,
}

/// Before the end of a lot it is told of so many days, each once.
pub const WARNING_DAYS: [i64; 2] = [7, 1];

/// Spreads an amount over what is left, in that order; what each gives. What is too much is given by none.
pub fn spread(amount_micros: i64, left: impl IntoIterator<Item = i64>) -> Vec<i64> {
    let mut rest = amount_micros.max(0);
    let give = |left: i64| {
        let part = rest.min(left.max(0));
        rest -= part;
        part
    };
    left.into_iter().map(give).collect()
}

/// What each lot gives when an amount leaves the balance that was set aside then (or just now); 0 for what
/// takes no credit that expires as long as there is other. `posted_micros` is the balance after it.
pub fn spend(lots: &[Lot], amount_micros: i64, set_aside_at: Timestamp, posted_micros: i64) -> Vec<i64> {
    let usable = |lot: &Lot| if lot.expires_at > set_aside_at { lot.left_micros } else { 0 };
    let paid = spread(amount_micros, lots.iter().map(usable));
    let after: Vec<i64> = lots.iter().zip(&paid).map(|(lot, part)| lot.left_micros - part).collect();
    let left = after.iter().copied().fold(0, i64::saturating_add);
    let gone = spread(left.saturating_sub(posted_micros.max(0)), after);
    paid.iter().zip(gone).map(|(part, gone)| part + gone).collect()
}

/// What is taken back of each lot now. With each comes what was set aside before it expired and still is:
/// that draws on the soonest first, and stays usable. Never more in all than is available.
pub fn due(lots: &[(Lot, i64)], available_micros: i64, now: Timestamp) -> Vec<i64> {
    let mut kept_micros = 0;
    let over = |(lot, held_micros): &(Lot, i64)| {
        if lot.expires_at > now {
            return 0;
        }
        let keep = held_micros.saturating_sub(kept_micros).clamp(0, lot.left_micros.max(0));
        kept_micros += keep;
        lot.left_micros - keep
    };
    let over: Vec<i64> = lots.iter().map(over).collect();
    spread(available_micros, over)
}

/// How many warnings should have been told by now.
pub fn warnings_due(expires_at: Timestamp, now: Timestamp) -> i64 {
    let begun = |days: &&i64| expires_at.plus_seconds(-**days * 86_400) <= now;
    i64::try_from(WARNING_DAYS.iter().filter(begun).count()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_micros(s * 1_000_000)
    }

    fn lot(left_micros: i64, s: i64) -> Lot {
        Lot { left_micros, expires_at: at(s) }
    }

    #[test]
    fn the_soonest_pays_and_what_had_expired_does_not() {
        let lots = [lot(60, 10), lot(50, 20), lot(40, 30)];
        assert_eq!(spend(&lots, 70, at(5), 1_000), [60, 10, 0]);
        assert_eq!(spend(&lots, 70, at(10), 1_000), [0, 50, 20]);
        assert_eq!(spend(&lots, 500, at(5), 1_000), [60, 50, 40]);
        // A refund to a card takes what does not expire, as far as there is any.
        assert_eq!(spend(&lots, 0, at(5), 150), [0, 0, 0]);
        assert_eq!(spend(&lots, 0, at(5), 70), [60, 20, 0]);
        assert_eq!(spend(&lots, 0, at(5), -5), [60, 50, 40]);
    }

    #[test]
    fn what_is_set_aside_stays_and_the_rest_goes() {
        let lots = |first: i64, second: i64| [(lot(60, 10), first), (lot(50, 20), second)];
        assert_eq!(due(&lots(0, 0), 1_000, at(9)), [0, 0]);
        assert_eq!(due(&lots(0, 0), 1_000, at(10)), [60, 0]);
        assert_eq!(due(&lots(25, 0), 1_000, at(10)), [35, 0]);
        assert_eq!(due(&lots(25, 80), 1_000, at(20)), [35, 0]);
        assert_eq!(due(&lots(80, 80), 1_000, at(20)), [0, 30]);
        assert_eq!(due(&lots(0, 0), 70, at(20)), [60, 10]);
        assert_eq!(due(&lots(0, 0), -3, at(20)), [0, 0]);
    }

    #[test]
    fn warnings_come_seven_days_and_one_day_before() {
        let day = 86_400;
        let told = |s: i64| warnings_due(at(10 * day), at(s));
        assert_eq!((told(0), told(3 * day - 1), told(3 * day)), (0, 0, 1));
        assert_eq!((told(9 * day - 1), told(9 * day), told(20 * day)), (1, 2, 2));
    }

    proptest! {
        #[test]
        fn what_is_spread_is_conserved_soonest_first(amount in -5i64..500, left in prop::collection::vec(0i64..100, 0..8)) {
            let parts = spread(amount, left.iter().copied());
            prop_assert_eq!(parts.len(), left.len());
            prop_assert_eq!(parts.iter().sum::<i64>(), amount.max(0).min(left.iter().sum()));
            for (i, part) in parts.iter().enumerate() {
                prop_assert!((0..=left[i]).contains(part));
                prop_assert!(*part == 0 || parts[..i] == left[..i], "an earlier one had something left");
            }
        }

        #[test]
        fn no_input_panics(amount: i64, left: i64, other: i64, held: i64, available: i64, now: i32) {
            // What is left is never below nothing: the database refuses it.
            let (left, other, s) = (left.max(0), other.max(0), i64::from(now));
            let _ = spend(&[lot(left, 5), lot(other, 9)], amount, at(s), available);
            let _ = due(&[(lot(left, 5), held), (lot(other, 9), amount)], available, at(s));
        }

        /// An account with a credit limit lives on: grants, holds, use, releases, refunds that are forced.
        #[test]
        fn the_books_of_an_account_hold_whatever_happens(
            limit in prop::sample::select(vec![0i64, 200]),
            steps in prop::collection::vec((0u8..6, 1i64..120, 1i64..40, 0usize..8), 1..60),
        ) {
            let (mut posted, mut held, mut now, mut forced) = (0i64, 0i64, 0i64, 0i64);
            let mut lots: Vec<Lot> = Vec::new();
            // When it was set aside, and what is left of it.
            let mut holds: Vec<(i64, i64)> = Vec::new();
            for (what, amount, pause, which) in steps {
                now += pause;
                let available = posted - held + limit;
                match what {
                    0 => {
                        posted += amount;
                        if pause % 2 == 0 {
                            lots.push(lot(amount.min(posted.max(0)), now + pause * 3));
                            lots.sort_by_key(|lot| lot.expires_at);
                        }
                    }
                    1 if amount <= available => {
                        held += amount;
                        holds.push((now, amount));
                    }
                    2 | 3 if which < holds.len() => {
                        let (since, rest) = holds[which];
                        let used = amount.min(rest);
                        if what == 2 {
                            posted -= used;
                            let parts = spend(&lots, used, at(since), posted);
                            for (lot, part) in lots.iter_mut().zip(parts) {
                                lot.left_micros -= part;
                            }
                        }
                        held -= used;
                        holds[which].1 -= used;
                    }
                    4 => {
                        posted -= amount;
                        forced += amount;
                        let parts = spend(&lots, 0, at(now), posted);
                        for (lot, part) in lots.iter_mut().zip(parts) {
                            lot.left_micros -= part;
                        }
                    }
                    _ => {
                        let before = (posted, posted - held + limit);
                        let kept = |lot: &Lot| {
                            let old = holds.iter().filter(|(since, _)| at(*since) < lot.expires_at);
                            old.map(|(_, rest)| *rest).sum::<i64>()
                        };
                        let asked: Vec<(Lot, i64)> = lots.iter().map(|lot| (*lot, kept(lot))).collect();
                        let parts = due(&asked, before.1, at(now));
                        for (lot, part) in lots.iter_mut().zip(&parts) {
                            prop_assert!((0..=lot.left_micros).contains(part));
                            prop_assert!(*part == 0 || lot.expires_at <= at(now));
                            lot.left_micros -= part;
                            posted -= part;
                        }
                        prop_assert!(posted >= before.0.min(0), "expiry alone takes nobody below nothing");
                        prop_assert!(parts.iter().all(|p| *p == 0) || posted - held + limit >= 0);
                        let asked: Vec<(Lot, i64)> = lots.iter().map(|lot| (*lot, kept(lot))).collect();
                        prop_assert!(due(&asked, posted - held + limit, at(now)).iter().all(|p| *p == 0), "twice is once");
                    }
                }
                prop_assert!(posted - held + limit + forced >= 0);
                prop_assert!(lots.iter().all(|lot| lot.left_micros >= 0));
                prop_assert!(lots.iter().map(|lot| lot.left_micros).sum::<i64>() <= posted.max(0));
            }
        }
    }
}
