//! Fair share: the decayed use of each organization, divided by its weight.
//!
//! As in Slurm's fair share, past use counts half after [`HALF_LIFE_S`]. Present runs count as if they ran
//! for another [`AHEAD_S`], so that many starts of one pass are shared too.

use std::cell::Cell;
use std::collections::HashMap;

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;

/// The time after which past use counts half: a week.
const HALF_LIFE_S: f64 = 7.0 * 86_400.0;
/// The time ahead for which present runs count.
const AHEAD_S: f64 = 3_600.0;

/// The index of an organization in [`FairShare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OrgIx(pub u32);

#[derive(Debug, Clone)]
struct Account {
    weight: f64,
    /// Thousandths of a board × seconds, decayed to `at`.
    used: f64,
    running_milli: i64,
    guaranteed_milli: i64,
    at: Timestamp,
    /// The share at one time, since a pass reads it many times.
    cached: Cell<Option<(Timestamp, u64)>>,
}

#[derive(Debug, Clone, Default)]
pub struct FairShare {
    by_id: HashMap<OrgId, OrgIx>,
    accounts: Vec<Account>,
}

impl Account {
    fn used_at(&self, now: Timestamp) -> f64 {
        let passed = (now.micros() - self.at.micros()).max(0) as f64 / 1e6;
        let fade = (-passed / HALF_LIFE_S).exp2();
        let running = self.running_milli as f64 * (1.0 - fade) * HALF_LIFE_S / std::f64::consts::LN_2;
        self.used.mul_add(fade, running)
    }

    /// Use divided by weight: the lesser value comes first.
    fn share(&self, now: Timestamp) -> u64 {
        if let Some((at, share)) = self.cached.get()
            && at == now
        {
            return share;
        }
        if self.running_milli < self.guaranteed_milli {
            self.cached.set(Some((now, 0)));
            return 0;
        }
        let ahead = self.running_milli.max(0) as f64 * AHEAD_S;
        let share = ((self.used_at(now) + ahead) / self.weight).clamp(0.0, 1e18) as u64;
        self.cached.set(Some((now, share)));
        share
    }
}

impl FairShare {
    /// The index of an organization; a new one gets the next index.
    pub fn index(&mut self, org: OrgId) -> OrgIx {
        let next = OrgIx(u32::try_from(self.accounts.len()).unwrap_or(u32::MAX));
        let index = *self.by_id.entry(org).or_insert(next);
        if index == next {
            let at = Timestamp::from_micros(0);
            let cached = Cell::new(None);
            let account =
                Account { weight: 1.0, used: 0.0, running_milli: 0, guaranteed_milli: 0, at, cached };
            self.accounts.push(account);
        }
        index
    }

    fn change(&mut self, org: OrgId, now: Timestamp, change: impl FnOnce(&mut Account)) {
        let index = self.index(org);
        let Some(account) = self.accounts.get_mut(index.0 as usize) else { return };
        if now > account.at {
            account.used = account.used_at(now);
            account.at = now;
        }
        change(account);
        account.cached.set(None);
    }

    /// Sets the weight of an organization (above 0), its guarantee in thousandths of a board and its use so
    /// far in thousandths × seconds. Use does not count while less than the guarantee runs.
    pub fn put(&mut self, org: OrgId, weight: f64, guaranteed_milli: i64, used: Option<f64>, now: Timestamp) {
        self.change(org, now, |account| {
            account.guaranteed_milli = guaranteed_milli;
            account.weight = if weight.is_finite() { weight.max(1e-3) } else { 1.0 };
            if let Some(used) = used.filter(|u| u.is_finite()) {
                account.used = used.max(0.0);
            }
        });
    }

    /// Adds to the running thousandths of an organization.
    pub fn add_running(&mut self, org: OrgId, milli: i64, now: Timestamp) {
        self.change(org, now, |account| account.running_milli += milli);
    }

    /// Use divided by weight, in thousandths × seconds: the lesser value comes first.
    pub fn share(&self, org: OrgIx, now: Timestamp) -> u64 {
        self.accounts.get(org.0 as usize).map_or(0, |account| account.share(now))
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
        shares.put(a, 1.0, 0, Some(1_000_000.0), now);
        shares.put(b, 2.0, 0, Some(1_000_000.0), now);
        let (first, second) = (shares.index(a), shares.index(b));
        assert_eq!(shares.share(second, now) * 2, shares.share(first, now));
        let later = now.plus_seconds(7 * 86_400);
        assert_eq!(shares.share(first, later), 500_000);
        shares.add_running(a, 1_000, later);
        assert_eq!(shares.share(first, later), 500_000 + 3_600_000);
        let end = later.plus_seconds(100);
        shares.add_running(a, -1_000, end);
        let used = shares.share(first, end);
        assert!((599_000..601_000).contains(&used), "100 s of one board: {used}");
        shares.put(a, 1.0, 2_000, None, end);
        shares.add_running(a, 1_999, end);
        assert_eq!(shares.share(first, end), 0, "below what is guaranteed");
        shares.add_running(a, 1, end);
        assert!(shares.share(first, end) > used);
    }
}
