//! The limits of organizations on devices, jobs and spending at one time, and the present use.
//!
//! A job beyond a limit waits and delays no other job. This module must not read balances or the use of a
//! month: both are checked at the submission of a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::fair_share::OrgIx;

/// The index of an offering in the cluster's list plus one; 0 for none.
pub type OfferingIx = u16;

/// The limits of an organization at one time; `None` is unlimited.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EngineLimits {
    /// Thousandths of boards.
    pub boards_milli: Option<i64>,
    pub running_jobs: Option<i64>,
    pub nano_per_second: Option<i64>,
    /// Thousandths of devices of an offering.
    pub devices_milli: BTreeMap<Arc<str>, i64>,
}

impl EngineLimits {
    /// The first limit that a job exceeds by itself, whichever other jobs end.
    pub fn find_permanently_exceeded(&self, need: &Need, offering: &str) -> Option<Exceeded> {
        let devices = self.devices_milli.get(offering).copied();
        [
            (LimitKind::Boards, self.boards_milli, need.boards_milli),
            (LimitKind::RunningJobs, self.running_jobs, 1),
            (LimitKind::Spend, self.nano_per_second, need.nano_per_second),
            (LimitKind::Devices, devices, need.devices_milli),
        ]
        .into_iter()
        .filter_map(|(kind, limit, need)| Some(Exceeded { kind, used: 0, limit: limit?, need }))
        .find(Exceeded::is_permanent)
    }
}

/// The use of a job against limits while it holds devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    pub boards_milli: i64,
    pub offering: OfferingIx,
    pub devices_milli: i64,
    pub nano_per_second: i64,
}

/// The present use of an organization.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UseTotals {
    pub boards_milli: i64,
    pub running_jobs: i64,
    pub nano_per_second: i64,
    pub devices_milli: BTreeMap<OfferingIx, i64>,
}

/// The kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    Boards,
    RunningJobs,
    Spend,
    Devices,
}

/// A limit that a job would exceed, with the present use and the job's need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exceeded {
    pub kind: LimitKind,
    pub used: i64,
    pub limit: i64,
    pub need: i64,
}

impl Exceeded {
    /// Returns true if the job alone exceeds the limit: no end of another job helps.
    pub const fn is_permanent(&self) -> bool {
        self.need > self.limit
    }
}

#[derive(Debug, Clone, Default)]
struct QuotaAccount {
    limits: Option<(EngineLimits, BTreeMap<OfferingIx, i64>)>,
    used: UseTotals,
}

#[derive(Debug, Clone, Default)]
pub struct Quotas {
    accounts: Vec<QuotaAccount>,
}

impl Quotas {
    fn account(&mut self, org: OrgIx) -> Option<&mut QuotaAccount> {
        let index = org.0 as usize;
        if index >= self.accounts.len() {
            self.accounts.resize_with(index + 1, QuotaAccount::default);
        }
        self.accounts.get_mut(index)
    }

    /// Sets the limits of an organization; `offering` returns the index of an offering.
    pub fn put(
        &mut self,
        org: OrgIx,
        limits: EngineLimits,
        mut offering: impl FnMut(&Arc<str>) -> OfferingIx,
    ) {
        let devices = limits.devices_milli.iter().map(|(name, most)| (offering(name), *most)).collect();
        let free = limits == EngineLimits::default();
        if let Some(account) = self.account(org) {
            account.limits = (!free).then_some((limits, devices));
        }
    }

    /// Adds the need of a job to the use of its organization (`sign` 1), or subtracts it (`sign` −1).
    pub fn count(&mut self, org: OrgIx, need: &Need, sign: i64) {
        let Some(QuotaAccount { used, .. }) = self.account(org) else { return };
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

    pub fn used(&self, org: OrgIx) -> UseTotals {
        self.accounts.get(org.0 as usize).map(|a| a.used.clone()).unwrap_or_default()
    }

    /// Returns true if a job exceeds no limit.
    pub fn admits(&self, org: OrgIx, need: &Need) -> bool {
        self.exceeded(org, need).next().is_none()
    }

    /// The limits that a job would exceed now.
    pub fn exceeded<'a>(&'a self, org: OrgIx, need: &'a Need) -> impl Iterator<Item = Exceeded> + 'a {
        let account = self.accounts.get(org.0 as usize);
        let limited = account.and_then(|a| Some((a.limits.as_ref()?, &a.used)));
        limited.into_iter().flat_map(move |((limits, devices), used)| {
            let devices_milli = used.devices_milli.get(&need.offering).copied().unwrap_or(0);
            [
                (LimitKind::Boards, limits.boards_milli, used.boards_milli, need.boards_milli),
                (LimitKind::RunningJobs, limits.running_jobs, used.running_jobs, 1),
                (LimitKind::Spend, limits.nano_per_second, used.nano_per_second, need.nano_per_second),
                (LimitKind::Devices, devices.get(&need.offering).copied(), devices_milli, need.devices_milli),
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
    fn each_limit_is_enforced_by_itself() {
        let mut quotas = Quotas::default();
        let org = OrgIx(3);
        let need = Need { boards_milli: 500, offering: 1, devices_milli: 1_000, nano_per_second: 7 };
        assert!(quotas.admits(org, &need) && !quotas.is_limited(org), "no limit, no account");
        let limits = |change: &dyn Fn(&mut EngineLimits)| {
            let mut limits = EngineLimits::default();
            change(&mut limits);
            limits
        };
        let cases: [(&dyn Fn(&mut EngineLimits), LimitKind); 4] = [
            (&|l| l.boards_milli = Some(1_000), LimitKind::Boards),
            (&|l| l.running_jobs = Some(2), LimitKind::RunningJobs),
            (&|l| l.nano_per_second = Some(20), LimitKind::Spend),
            (&|l| l.devices_milli = [("a".into(), 2_500)].into(), LimitKind::Devices),
        ];
        quotas.count(org, &need, 1);
        for (change, kind) in cases {
            quotas.put(org, limits(change), |_| 1);
            assert!(quotas.admits(org, &need), "{kind:?}: the second fits");
            quotas.count(org, &need, 1);
            let exceeded: Vec<Exceeded> = quotas.exceeded(org, &need).collect();
            assert_eq!(exceeded.iter().map(|e| e.kind).collect::<Vec<_>>(), [kind]);
            assert!(!exceeded[0].is_permanent());
            quotas.count(org, &need, -1);
        }
        quotas.put(org, limits(&|l| l.boards_milli = Some(499)), |_| 1);
        assert!(quotas.exceeded(org, &need).all(|e| e.is_permanent()));
        let alone = limits(&|l| l.devices_milli = [("a".into(), 999)].into());
        assert_eq!(alone.find_permanently_exceeded(&need, "a").map(|e| e.kind), Some(LimitKind::Devices));
        assert_eq!(alone.find_permanently_exceeded(&need, "b"), None);
        quotas.count(org, &need, -1);
        assert_eq!(quotas.used(org), UseTotals::default());
    }
}
