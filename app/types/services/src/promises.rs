//! Types of promises: what an operator promises for the services that choose it, and the judged windows.

use berth_types::ids::{PromiseId, TransferId};
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The greatest sum of credits of a promise, in basis points: the whole charge.
pub const MAX_CREDIT_BASIS_POINTS: u32 = 10_000;
/// The greatest surcharge of a promise, in basis points: the price again.
pub const MAX_SURCHARGE_BASIS_POINTS: u32 = 10_000;
/// The greatest share of good cases: all, in parts a million.
pub const MAX_GOOD_PPM: u32 = 1_000_000;
/// The promised times of first tokens in milliseconds: the bounds of the counts of gateways.
pub const FIRST_TOKEN_MS: [u32; 24] = [
    1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1_000, 2_000, 5_000, 10_000, 30_000,
    60_000, 120_000,
];
/// The greatest promised time of a wake in milliseconds. A window is judged so much after its end, so that each wake of
/// it has ended or is late.
pub const MAX_WAKE_MS: u32 = 900_000;

/// The length of a window. Windows begin at multiples of it since 1970 in UTC, weeks on Thursday.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum PromiseWindow {
    Hour,
    Day,
    Week,
}

impl PromiseWindow {
    pub const ALL: [Self; 3] = [Self::Hour, Self::Day, Self::Week];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|window| window.name() == name)
    }

    /// The length in seconds.
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
        }
    }
}

/// A promised share of good requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PromisedShare {
    /// The least share of good cases in parts a million, 1 to 1000000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub good_ppm: u32,
    /// The credit for a miss in basis points of the charges of the window, 0 to 10000.
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub credit_basis_points: u32,
}

/// A promised share of cases within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PromisedTime {
    /// The longest good time in milliseconds. For first tokens it is a bound of the counts: 1, 2, 3, 5, 7, 10, 15, 20,
    /// 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000, 2000, 5000, 10000, 30000, 60000 or 120000. For wakes it is 1 to
    /// 900000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 900_000)))]
    pub within_ms: u32,
    /// The least share of good cases in parts a million, 1 to 1000000.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub good_ppm: u32,
    /// The credit for a miss in basis points of the charges of the window, 0 to 10000.
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub credit_basis_points: u32,
}

/// The terms of a promise, with one part at least. The credits sum to at most 10000 basis points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PromiseTerms {
    pub window: PromiseWindow,
    /// Requests without a fault of the platform: no ready replica, or a replica that was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<PromisedShare>,
    /// Answers whose first byte comes in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token: Option<PromisedTime>,
    /// Wakes in time: from the first waiting request of the sleeping service until a replica has its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<PromisedTime>,
    /// The price: a surcharge on the price of each replica that is submitted with the promise, in basis points, 0 to 10000;
    /// 0 when absent.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub surcharge_basis_points: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The body of a new class of promises.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewPromise {
    /// 1 to 40 lower-case letters, digits and hyphens, with a letter first; unique.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 40), regex(pattern = "^[a-z][a-z0-9-]*$"))
    )]
    pub name: String,
    pub terms: PromiseTerms,
}

/// The body of a change of a class of promises. Absent fields stay. Services that have the promise keep its former terms.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PatchPromise {
    /// As in a new class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 40), regex(pattern = "^[a-z][a-z0-9-]*$"))
    )]
    pub name: Option<String>,
    /// The whole terms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms: Option<PromiseTerms>,
}

/// A class of promises that services can choose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Promise {
    /// The id of the class.
    pub id: PromiseId,
    /// The name of the class.
    pub name: String,
    pub terms: PromiseTerms,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the operator who created the class.
    pub created_by: String,
    /// The number of services that have the class now, also with former terms. Only answers to operators have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub services: Option<u64>,
}

/// The body that sets the promise of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutServicePromise {
    /// The id of an offered class; null or absent for no promise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub promise: Option<PromiseId>,
    /// The surcharge that the caller accepts, in basis points: a promise with another one is refused. Any surcharge of the
    /// promise when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 10_000)))]
    pub surcharge_basis_points: Option<u32>,
}

/// Counted cases of one kind. With fewer than 20 cases in a window its part is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromiseCases {
    /// All cases.
    pub all: u64,
    /// Those of them that are not good.
    pub bad: u64,
}

/// The counts of a window. Parts that are not promised have no cases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PromiseEvidence {
    pub requests: PromiseCases,
    pub first_tokens: PromiseCases,
    pub wakes: PromiseCases,
    /// The charges of the window in micro-units: those of the jobs of replicas, and the posted ones for tokens of the
    /// organization's own keys, less the credits for lost time. Absent without the right to see balance and statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charged_micros: Option<i64>,
}

/// A window that is not judged yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PresentWindow {
    /// The begin of the window.
    pub begin_at: Timestamp,
    /// The end of the window.
    pub end_at: Timestamp,
    /// The counts so far.
    pub evidence: PromiseEvidence,
    /// The misses with these counts, as sentences.
    pub misses: Vec<String>,
}

/// A judged window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JudgedWindow {
    /// The begin of the window.
    pub begin_at: Timestamp,
    /// The end of the window.
    pub end_at: Timestamp,
    /// The name of the promise.
    pub name: String,
    pub evidence: PromiseEvidence,
    /// The missed parts as sentences; empty for a kept window.
    pub misses: Vec<String>,
    /// The credit in micro-units of the currency. Absent without the right to see balance and statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_micros: Option<i64>,
    /// The transfer of the credit; absent without one, and without the right to see balance and statement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<TransferId>,
}

/// The promise that a service has, with the terms of its choice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ChosenPromise {
    /// The id of the class.
    pub promise: PromiseId,
    /// The name of the class at the choice.
    pub name: String,
    pub terms: PromiseTerms,
    /// The time of the choice. Whole windows after it count.
    pub chosen_at: Timestamp,
}

/// The promise of a service and its windows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServicePromise {
    /// The present choice; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<ChosenPromise>,
    /// The present window; absent before the first whole one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<PresentWindow>,
    /// The last judged windows, newest first, at most 20.
    pub windows: Vec<JudgedWindow>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_divide_into_hours_and_have_their_names() {
        for window in PromiseWindow::ALL {
            assert_eq!(window.seconds() % 3_600, 0);
            assert_eq!(PromiseWindow::parse(window.name()), Some(window));
            assert_eq!(serde_json::to_value(window).unwrap(), window.name());
        }
        assert_eq!(PromiseWindow::parse("month"), None);
    }

    #[test]
    fn no_promise_is_null_or_an_absent_field() {
        for text in ["{}", r#"{"promise":null}"#] {
            assert_eq!(
                serde_json::from_str::<PutServicePromise>(text).unwrap(),
                PutServicePromise::default()
            );
        }
        assert!(serde_json::from_str::<PutServicePromise>(r#"{"promises":null}"#).is_err());
    }

    #[test]
    fn absent_parts_stay_absent_and_unknown_parts_are_refused() {
        let text =
            r#"{"window":"day","wake":{"within_ms":6000,"good_ppm":900000,"credit_basis_points":250}}"#;
        let terms: PromiseTerms = serde_json::from_str(text).unwrap();
        assert_eq!((terms.availability, terms.first_token), (None, None));
        assert_eq!(terms.surcharge_basis_points, 0, "terms from before prices");
        assert_eq!(serde_json::to_string(&terms).unwrap(), text);
        assert!(serde_json::from_str::<PromiseTerms>(r#"{"window":"day","speed":{}}"#).is_err());
    }
}
