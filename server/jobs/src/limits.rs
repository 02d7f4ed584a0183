//! The limits of organizations in the engine's terms.

use berth_core::quotas;
use berth_types::money::nano_per_second;
use berth_types::quotas::Limits;

/// Limits in the engine's terms.
pub(crate) fn held_limits(limits: &Limits) -> quotas::Limits {
    quotas::Limits {
        boards_milli: limits.boards_milli,
        running_jobs: limits.running_jobs,
        nano_per_second: limits.spend_per_hour_micros.and_then(nano_per_second),
        devices_milli: limits
            .devices
            .iter()
            .map(|(slug, most)| (slug.as_str().into(), most.saturating_mul(1_000)))
            .collect(),
    }
}
