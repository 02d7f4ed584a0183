//! Rate limits for single sign-on, its domains, and passkeys.

use std::net::IpAddr;

use berth_foundation::proxies::network;
use berth_types::ids::OrgId;

use super::{Limiter, Rate};

/// Single sign-ons from one network. Many people can share it.
const SSO: Rate = Rate { burst: 200, every_s: 1 };

/// Ceremonies of passkeys from one network. Many people can share it.
const PASSKEY: Rate = Rate { burst: 200, every_s: 1 };

/// Refused logout tokens from one network.
const LOGOUT: Rate = Rate { burst: 200, every_s: 1 };

/// Checks of domains by one organization: at most ten in an hour.
const DOMAIN: Rate = Rate { burst: 5, every_s: 720 };

/// Reads of new issuers for one organization: ten at once, and then ten an hour.
const ISSUER: Rate = Rate { burst: 10, every_s: 360 };

/// Counts the steps of single sign-ons by network.
pub struct SsoThrottle(Limiter);

impl Default for SsoThrottle {
    fn default() -> Self {
        Self(Limiter::new(SSO))
    }
}

impl SsoThrottle {
    /// Counts a step. Beyond the quota it returns the seconds to wait.
    pub fn count_step(&self, from: Option<IpAddr>) -> Option<u64> {
        self.0.count(network(from?))
    }
}

/// Counts the steps of ceremonies of passkeys by network.
pub struct PasskeyThrottle(Limiter);

impl Default for PasskeyThrottle {
    fn default() -> Self {
        Self(Limiter::new(PASSKEY))
    }
}

impl PasskeyThrottle {
    /// Counts a step. Beyond the quota it returns the seconds to wait.
    pub fn count_step(&self, from: Option<IpAddr>) -> Option<u64> {
        self.0.count(network(from?))
    }
}

/// Counts refused logout tokens of single sign-on by network.
pub struct LogoutThrottle(Limiter);

impl Default for LogoutThrottle {
    fn default() -> Self {
        Self(Limiter::new(LOGOUT))
    }
}

impl LogoutThrottle {
    /// Counts a token before its verification. Beyond the quota it returns the seconds to wait.
    pub fn count_token(&self, from: Option<IpAddr>) -> Option<u64> {
        self.0.count(network(from?))
    }

    /// Records a valid token: its network has the full quota again.
    pub fn record_success(&self, from: Option<IpAddr>) {
        if let Some(from) = from {
            self.0.reset(network(from));
        }
    }
}

/// Counts reads of new issuers by organization.
pub struct IssuerThrottle(Limiter);

impl Default for IssuerThrottle {
    fn default() -> Self {
        Self(Limiter::new(ISSUER))
    }
}

impl IssuerThrottle {
    /// Counts a read. Beyond the quota it returns the seconds to wait.
    pub fn count_read(&self, org: OrgId) -> Option<u64> {
        self.0.count(org)
    }
}

/// Counts checks of domains by organization.
pub struct DomainThrottle(Limiter);

impl Default for DomainThrottle {
    fn default() -> Self {
        Self(Limiter::new(DOMAIN))
    }
}

impl DomainThrottle {
    /// Counts a check. Beyond the quota it returns the seconds to wait.
    pub fn count_check(&self, org: OrgId) -> Option<u64> {
        self.0.count(org)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    #[test]
    fn refused_logout_tokens_of_one_network_are_limited_until_a_valid_one() {
        let throttle = LogoutThrottle::default();
        for _ in 0..LOGOUT.burst {
            assert_eq!(throttle.count_token(ip("192.0.2.1")), None);
        }
        assert!(throttle.count_token(ip("192.0.2.1")).is_some());
        assert_eq!(throttle.count_token(ip("192.0.2.2")), None);
        throttle.record_success(ip("192.0.2.1"));
        assert_eq!(throttle.count_token(ip("192.0.2.1")), None);
    }

    #[test]
    fn an_organization_checks_domains_and_issuers_some_times_an_hour() {
        let throttle = DomainThrottle::default();
        let org = |n: u128| OrgId::from_uuid(uuid::Uuid::from_u128(n));
        for _ in 0..DOMAIN.burst {
            assert_eq!(throttle.count_check(org(1)), None);
        }
        assert!(throttle.count_check(org(1)).is_some());
        assert_eq!(throttle.count_check(org(2)), None);
        assert!(u64::from(DOMAIN.burst) + 3_600 / DOMAIN.every_s <= 10);
        let throttle = IssuerThrottle::default();
        for _ in 0..ISSUER.burst {
            assert_eq!(throttle.count_read(org(1)), None);
        }
        assert!(throttle.count_read(org(1)).is_some() && throttle.count_read(org(2)).is_none());
    }
}
