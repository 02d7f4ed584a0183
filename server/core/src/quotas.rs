//! What an organization may hold at once, and what it holds.
//!
//! A job that would go beyond a limit waits; it is in nobody's way meanwhile. What it must not do:
//! look at money or at a month's use, which are settled when a job is submitted.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fair_share::OrgIx;

/// An offering by its place in the cluster's list plus one; 0 for none.
pub type OfferingIx = u16;

/// At once; `None`: as much as there is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Thousandths of boards.
    pub boards_milli: Option<i64>,
    pub running_jobs: Option<i64>,
    pub nano_per_second: Option<i64>,
    /// Thousandths of devices of an offering.
    pub devices_milli: BTreeMap<Arc<str>, i64>,
}

impl Limits {
    /// The first limit that a job is beyond by itself, whatever else ends.
    pub fn never(&self, need: &Need, offering: &str) -> Option<Exceeded> {
        let devices = self.devices_milli.get(offering).copied();
        [
            (Kind::Boards, self.boards_milli, need.boards_milli),
            (Kind::RunningJobs, self.running_jobs, 1),
            (Kind::Spend, self.nano_per_second, need.nano_per_second),
            (Kind::Devices, devices, need.devices_milli),
        ]
        .into_iter()
        .filter_map(|(kind, limit, need)| Some(Exceeded { kind, used: 0, limit: limit?, need }))
        .find(Exceeded::ever)
    }
}

/// What a job counts for while it holds something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub boards_milli: i64,
    pub offering: OfferingIx,
    pub devices_milli: i64,
    pub nano_per_second: i64,
}

/// What an organization holds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Used {
    pub boards_milli: i64,
    pub running_jobs: i64,
    pub nano_per_second: i64,
    pub devices_milli: BTreeMap<OfferingIx, i64>,
}

/// A limit that a job would go beyond.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Boards,
    RunningJobs,
    Spend,
    Devices,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub kind: Kind,
    pub used: i64,
    pub limit: i64,
    pub need: i64,
}

impl Exceeded {
    /// Nothing that ends makes room: the job alone is beyond the limit.
    pub const fn ever(&self) -> bool {
        self.need > self.limit
    }
}

#[derive(Debug, Clone, Default)]
struct Account {
    limits: Option<(Limits, BTreeMap<OfferingIx, i64>)>,
    used: Used,
}

#[derive(Debug, Clone, Default)]
pub struct Quotas {
    accounts: Vec<Account>,
}

impl Quotas {
    fn account(&mut self, org: OrgIx) -> Option<&mut Account> {
        let index = org.0 as usize;
        if index >= self.accounts.len() {
            self.accounts.resize_with(index + 1, Account::default);
        }
        self.accounts.get_mut(index)
    }

    /// States an organization's limits; `offering` gives the place of one.
    pub fn put(&mut self, org: OrgIx, limits: Limits, mut offering: impl FnMut(&Arc<str>) -> OfferingIx) {
        let devices = limits.devices_milli.iter().map(|(name, most)| (offering(name), *most)).collect();
        let free = limits == Limits::default();
        if let Some(account) = self.account(org) {
            account.limits = (!free).then_some((limits, devices));
        }
    }

    /// Counts what a job holds, or (`sign` −1) holds no more.
    pub fn count(&mut self, org: OrgIx, need: &Need, sign: i64) {
        let Some(Account { used, .. }) = self.account(org) else { return };
        used.boards_milli += sign * need.boards_milli;
        used.running_jobs += sign;
        used.nano_per_second += sign * need.nano_per_second;
        let devices = used.devices_milli.entry(need.offering).or_default();
        *devices += sign * need.devices_milli;
        if *devices == 0 {
            used.devices_milli.remove(&need.offering);
        }
    }

    pub fn is_limited(&self, org: OrgIx) -> bool {
        self.accounts.get(org.0 as usize).is_some_and(|a| a.limits.is_some())
    }

    pub fn used(&self, org: OrgIx) -> Used {
        self.accounts.get(org.0 as usize).map(|a| a.used.clone()).unwrap_or_default()
    }

    /// Whether a job stays inside every limit.
    pub fn admits(&self, org: OrgIx, need: &Need) -> bool {
        self.beyond(org, need).next().is_none()
    }

    /// The limits that a job would go beyond now.
    pub fn beyond<'a>(&'a self, org: OrgIx, need: &'a Need) -> impl Iterator<Item = Exceeded> + 'a {
        let account = self.accounts.get(org.0 as usize);
        let limited = account.and_then(|a| Some((a.limits.as_ref()?, &a.used)));
        limited.into_iter().flat_map(move |((limits, devices), used)| {
            let of_offering = used.devices_milli.get(&need.offering).copied().unwrap_or(0);
            [
                (Kind::Boards, limits.boards_milli, used.boards_milli, need.boards_milli),
                (Kind::RunningJobs, limits.running_jobs, used.running_jobs, 1),
                (Kind::Spend, limits.nano_per_second, used.nano_per_second, need.nano_per_second),
                (Kind::Devices, devices.get(&need.offering).copied(), of_offering, need.devices_milli),
            ]
            .into_iter()
            .filter_map(|(kind, limit, used, need)| {
                let limit = limit?;
                (used.saturating_add(need) > limit).then_some(Exceeded { kind, used, limit, need })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_is_kept_by_itself() {
        let mut quotas = Quotas::default();
        let org = OrgIx(3);
        let need = Need { boards_milli: 500, offering: 1, devices_milli: 1_000, nano_per_second: 7 };
        assert!(quotas.admits(org, &need) && !quotas.is_limited(org), "no limit, no account");
        let limits = |change: &dyn Fn(&mut Limits)| {
            let mut limits = Limits::default();
            change(&mut limits);
            limits
        };
        let cases: [(&dyn Fn(&mut Limits), Kind); 4] = [
            (&|l| l.boards_milli = Some(1_000), Kind::Boards),
            (&|l| l.running_jobs = Some(2), Kind::RunningJobs),
            (&|l| l.nano_per_second = Some(20), Kind::Spend),
            (&|l| l.devices_milli = [("a".into(), 2_500)].into(), Kind::Devices),
        ];
        quotas.count(org, &need, 1);
        for (change, kind) in cases {
            quotas.put(org, limits(change), |_| 1);
            assert!(quotas.admits(org, &need), "{kind:?}: the second fits");
            quotas.count(org, &need, 1);
            let beyond: Vec<Exceeded> = quotas.beyond(org, &need).collect();
            assert_eq!(beyond.iter().map(|e| e.kind).collect::<Vec<_>>(), [kind]);
            assert!(!beyond[0].ever());
            quotas.count(org, &need, -1);
        }
        quotas.put(org, limits(&|l| l.boards_milli = Some(499)), |_| 1);
        assert!(quotas.beyond(org, &need).all(|e| e.ever()));
        let alone = limits(&|l| l.devices_milli = [("a".into(), 999)].into());
        assert_eq!(alone.never(&need, "a").map(|e| e.kind), Some(Kind::Devices));
        assert_eq!(alone.never(&need, "b"), None);
        quotas.count(org, &need, -1);
        assert_eq!(quotas.used(org), Used::default());
    }
}
