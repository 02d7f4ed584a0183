//! Expiring credit: the credits that pay an amount, and the amounts that are taken back at expiry.
//!
//! An expiring credit is the rest of one grant. Lists of them are in the order of expiry. Two invariants: a
//! hold uses no credit that had expired before the hold was made; and the sum of all rests is never more than
//! the balance, or zero if the balance is negative.

use berth_types::time::Timestamp;

/// The rest of a grant that expires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpiringCredit {
    pub left_micros: i64,
    pub expires_at: Timestamp,
}

/// Days before an expiry at which the organization gets a warning, one warning each.
pub const WARNING_DAYS: [i64; 2] = [7, 1];

/// Spreads an amount over the rests in their order, and returns the part of each. An amount beyond the sum of
/// the rests is left out.
pub fn spread(amount_micros: i64, left: impl IntoIterator<Item = i64>) -> Vec<i64> {
    let mut rest = amount_micros.max(0);
    let give = |left: i64| {
        let part = rest.min(left.max(0));
        rest -= part;
        part
    };
    left.into_iter().map(give).collect()
}

/// The amount that each credit loses by a posting. `set_aside_at` is the time of the amount's hold, or now
/// without a hold. `posted_micros` is the balance after the posting. With `amount_micros` 0, the posting uses
/// credit without expiry first: the expiring credits lose only the part of their sum above the balance.
pub fn spend(
    credits: &[ExpiringCredit],
    amount_micros: i64,
    set_aside_at: Timestamp,
    posted_micros: i64,
) -> Vec<i64> {
    let usable =
        |credit: &ExpiringCredit| if credit.expires_at > set_aside_at { credit.left_micros } else { 0 };
    let paid = spread(amount_micros, credits.iter().map(usable));
    let after: Vec<i64> = credits.iter().zip(&paid).map(|(credit, part)| credit.left_micros - part).collect();
    let left = after.iter().copied().fold(0, i64::saturating_add);
    let gone = spread(left.saturating_sub(posted_micros.max(0)), after);
    paid.iter().zip(gone).map(|(part, gone)| part + gone).collect()
}

/// The amount to take back from each credit now; the total never exceeds the available money. Each credit is
/// paired with the sum of the open holds from before its expiry. Such holds keep the soonest credit usable.
pub fn due(credits: &[(ExpiringCredit, i64)], available_micros: i64, now: Timestamp) -> Vec<i64> {
    let mut kept_micros = 0;
    let over = |(credit, held_micros): &(ExpiringCredit, i64)| {
        if credit.expires_at > now {
            return 0;
        }
        let keep = held_micros.saturating_sub(kept_micros).clamp(0, credit.left_micros.max(0));
        kept_micros += keep;
        credit.left_micros - keep
    };
    let over: Vec<i64> = credits.iter().map(over).collect();
    spread(available_micros, over)
}

/// The number of warnings that are due by now.
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

    fn credit(left_micros: i64, s: i64) -> ExpiringCredit {
        ExpiringCredit { left_micros, expires_at: at(s) }
    }

    #[test]
    fn the_soonest_pays_and_what_had_expired_does_not() {
        let credits = [credit(60, 10), credit(50, 20), credit(40, 30)];
        assert_eq!(spend(&credits, 70, at(5), 1_000), [60, 10, 0]);
        assert_eq!(spend(&credits, 70, at(10), 1_000), [0, 50, 20]);
        assert_eq!(spend(&credits, 500, at(5), 1_000), [60, 50, 40]);
        // A refund to a card uses credit without expiry first.
        assert_eq!(spend(&credits, 0, at(5), 150), [0, 0, 0]);
        assert_eq!(spend(&credits, 0, at(5), 70), [60, 20, 0]);
        assert_eq!(spend(&credits, 0, at(5), -5), [60, 50, 40]);
    }

    #[test]
    fn what_is_set_aside_stays_and_the_rest_goes() {
        let credits = |first: i64, second: i64| [(credit(60, 10), first), (credit(50, 20), second)];
        assert_eq!(due(&credits(0, 0), 1_000, at(9)), [0, 0]);
        assert_eq!(due(&credits(0, 0), 1_000, at(10)), [60, 0]);
        assert_eq!(due(&credits(25, 0), 1_000, at(10)), [35, 0]);
        assert_eq!(due(&credits(25, 80), 1_000, at(20)), [35, 0]);
        assert_eq!(due(&credits(80, 80), 1_000, at(20)), [0, 30]);
        assert_eq!(due(&credits(0, 0), 70, at(20)), [60, 10]);
        assert_eq!(due(&credits(0, 0), -3, at(20)), [0, 0]);
    }

    #[test]
    fn warnings_come_seven_days_and_one_day_before() {
        let day = 86_400;
        let due_by = |s: i64| warnings_due(at(10 * day), at(s));
        assert_eq!((due_by(0), due_by(3 * day - 1), due_by(3 * day)), (0, 0, 1));
        assert_eq!((due_by(9 * day - 1), due_by(9 * day), due_by(20 * day)), (1, 2, 2));
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
            // The database refuses a negative rest.
            let (left, other, s) = (left.max(0), other.max(0), i64::from(now));
            let _ = spend(&[credit(left, 5), credit(other, 9)], amount, at(s), available);
            let _ = due(&[(credit(left, 5), held), (credit(other, 9), amount)], available, at(s));
        }

        /// Random postings on an account with a credit limit: grants, holds, use, releases, forced refunds.
        #[test]
        fn the_books_of_an_account_hold_whatever_happens(
            limit in prop::sample::select(vec![0i64, 200]),
            steps in prop::collection::vec((0u8..6, 1i64..120, 1i64..40, 0usize..8), 1..60),
        ) {
            let (mut posted, mut held, mut now, mut forced) = (0i64, 0i64, 0i64, 0i64);
            let mut credits: Vec<ExpiringCredit> = Vec::new();
            // The time of each hold, and its rest.
            let mut holds: Vec<(i64, i64)> = Vec::new();
            for (step, amount, pause, index) in steps {
                now += pause;
                let available = posted - held + limit;
                match step {
                    0 => {
                        posted += amount;
                        if pause % 2 == 0 {
                            credits.push(credit(amount.min(posted.max(0)), now + pause * 3));
                            credits.sort_by_key(|credit| credit.expires_at);
                        }
                    }
                    1 if amount <= available => {
                        held += amount;
                        holds.push((now, amount));
                    }
                    2 | 3 if index < holds.len() => {
                        let (since, rest) = holds[index];
                        let used = amount.min(rest);
                        if step == 2 {
                            posted -= used;
                            let parts = spend(&credits, used, at(since), posted);
                            for (credit, part) in credits.iter_mut().zip(parts) {
                                credit.left_micros -= part;
                            }
                        }
                        held -= used;
                        holds[index].1 -= used;
                    }
                    4 => {
                        posted -= amount;
                        forced += amount;
                        let parts = spend(&credits, 0, at(now), posted);
                        for (credit, part) in credits.iter_mut().zip(parts) {
                            credit.left_micros -= part;
                        }
                    }
                    _ => {
                        let before = (posted, posted - held + limit);
                        let kept = |credit: &ExpiringCredit| {
                            let old = holds.iter().filter(|(since, _)| at(*since) < credit.expires_at);
                            old.map(|(_, rest)| *rest).sum::<i64>()
                        };
                        let asked: Vec<_> = credits.iter().map(|credit| (*credit, kept(credit))).collect();
                        let parts = due(&asked, before.1, at(now));
                        for (credit, part) in credits.iter_mut().zip(&parts) {
                            prop_assert!((0..=credit.left_micros).contains(part));
                            prop_assert!(*part == 0 || credit.expires_at <= at(now));
                            credit.left_micros -= part;
                            posted -= part;
                        }
                        prop_assert!(posted >= before.0.min(0), "expiry alone takes nobody below nothing");
                        prop_assert!(parts.iter().all(|p| *p == 0) || posted - held + limit >= 0);
                        let asked: Vec<_> = credits.iter().map(|credit| (*credit, kept(credit))).collect();
                        prop_assert!(due(&asked, posted - held + limit, at(now)).iter().all(|p| *p == 0), "twice is once");
                    }
                }
                prop_assert!(posted - held + limit + forced >= 0);
                prop_assert!(credits.iter().all(|credit| credit.left_micros >= 0));
                prop_assert!(credits.iter().map(|credit| credit.left_micros).sum::<i64>() <= posted.max(0));
            }
        }
    }
}
