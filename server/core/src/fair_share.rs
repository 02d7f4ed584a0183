//! Who has had how much: the use of each organization, fading, against its weight.
//!
//! As Slurm's fair-share: past use counts half after [`HALF_LIFE_S`]. What runs now counts as if it
//! ran for another [`AHEAD_S`], so that a crowd of starts in one pass is shared too.

use std::collections::HashMap;

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

/// After so long past use counts half: a week.
const HALF_LIFE_S: f64 = 7.0 * 86_400.0;
/// What runs is counted this far ahead.
const AHEAD_S: f64 = 3_600.0;

#[derive(Debug, Clone, Copy, PartialEq)]
struct Account {
    weight: f64,
    /// Thousandths of a board × seconds, faded to `at`.
    used: f64,
    running_milli: i64,
    at: Timestamp,
}

#[derive(Debug, Clone, Default)]
pub struct FairShare {
    accounts: HashMap<OrgId, Account>,
}

impl Account {
    fn used_at(&self, now: Timestamp) -> f64 {
        let passed = (now.micros() - self.at.micros()).max(0) as f64 / 1e6;
        let fade = (-passed / HALF_LIFE_S).exp2();
        let running = self.running_milli as f64 * (1.0 - fade) * HALF_LIFE_S / std::f64::consts::LN_2;
        self.used.mul_add(fade, running)
    }
}

impl FairShare {
    fn account(&mut self, org: OrgId, now: Timestamp) -> &mut Account {
        let new = Account { weight: 1.0, used: 0.0, running_milli: 0, at: now };
        let account = self.accounts.entry(org).or_insert(new);
        if now > account.at {
            account.used = account.used_at(now);
            account.at = now;
        }
        account
    }

    /// States an organization's weight (above 0), and its use so far in thousandths × seconds.
    pub fn put(&mut self, org: OrgId, weight: f64, used: Option<f64>, now: Timestamp) {
        let account = self.account(org, now);
        account.weight = if weight.is_finite() { weight.max(1e-3) } else { 1.0 };
        if let Some(used) = used.filter(|u| u.is_finite()) {
            account.used = used.max(0.0);
        }
    }

    /// Changes how much of it runs.
    pub fn running(&mut self, org: OrgId, milli: i64, now: Timestamp) {
        self.account(org, now).running_milli += milli;
    }

    /// Use against weight: less comes first. Thousandths × seconds.
    pub fn share(&self, org: OrgId, now: Timestamp) -> u64 {
        let Some(account) = self.accounts.get(&org) else { return 0 };
        let ahead = account.running_milli.max(0) as f64 * AHEAD_S;
        ((account.used_at(now) + ahead) / account.weight).clamp(0.0, 1e18) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn use_fades_by_half_and_counts_against_weight() {
        let mut shares = FairShare::default();
        let (a, b) = (OrgId::from_uuid(Uuid::from_u128(1)), OrgId::from_uuid(Uuid::from_u128(2)));
        let now = Timestamp::from_micros(0);
        shares.put(a, 1.0, Some(1_000_000.0), now);
        shares.put(b, 2.0, Some(1_000_000.0), now);
        assert_eq!(shares.share(b, now) * 2, shares.share(a, now));
        let later = now.plus_seconds(7 * 86_400);
        assert_eq!(shares.share(a, later), 500_000);
        shares.running(a, 1_000, later);
        assert_eq!(shares.share(a, later), 500_000 + 3_600_000);
        let end = later.plus_seconds(100);
        shares.running(a, -1_000, end);
        let used = shares.share(a, end);
        assert!((599_000..601_000).contains(&used), "100 s of one board: {used}");
    }
}
