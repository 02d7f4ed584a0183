//! The limits of an organization in the form of the engine, and the problems of exceeded limits.

use berth_placement::quotas::{self, Exceeded, LimitKind};
use berth_types::money::{nano_per_second, per_hour_micros, price_text};
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::Limits;

/// The limits on held devices, running jobs and spend, in the form of the engine.
pub fn engine_limits(limits: &Limits) -> quotas::EngineLimits {
    quotas::EngineLimits {
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

/// The problem of an exceeded limit.
pub fn exceeded(detail: String, pointer: &str) -> Problem {
    let errors = vec![FieldError::new(pointer, detail.clone())];
    let title = "Limit of the organization reached";
    Problem { errors, ..Problem::new(403, "quota.exceeded", title, detail) }
}

/// The problem of a submission that is beyond a limit even without any other job.
pub fn limit_problem(beyond: &Exceeded, currency: &str) -> Problem {
    let milli = |n: i64| {
        format!("{}.{:03}", n / 1_000, n % 1_000).trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    let (limit, need) = (beyond.limit, beyond.need);
    match beyond.kind {
        LimitKind::Boards => exceeded(
            format!(
                "The job needs {} {} at once, and the limit of the organization is {}. Nothing was started or charged. Request fewer devices, or ask for a higher limit.",
                milli(need),
                if need == 1_000 { "whole board" } else { "whole boards" },
                milli(limit)
            ),
            "/count",
        ),
        LimitKind::Devices => exceeded(
            format!(
                "The job needs {} devices of the offering at once, and the limit of the organization is {}. Nothing was started or charged. Request fewer devices, or ask for a higher limit.",
                milli(need),
                milli(limit)
            ),
            "/count",
        ),
        LimitKind::RunningJobs => {
            exceeded("The limit of running jobs of the organization is 0. Nothing was started or charged. Ask for a higher limit.".to_owned(), "/offering")
        }
        LimitKind::Spend => {
            let hour = |nano: i64| price_text(per_hour_micros(nano).unwrap_or(i64::MAX), currency);
            exceeded(
                format!(
                    "The job costs {} an hour, and the limit on cost per hour is {}. Nothing was started or charged. Request fewer devices, or ask for a higher limit.",
                    hour(need),
                    hour(limit)
                ),
                "/count",
            )
        }
    }
}
