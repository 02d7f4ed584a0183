//! Types of the host names of services, and of their proofs.

use berth_types::ids::OrgId;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A host name of a service with its proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ServiceHost {
    /// The host name.
    pub host: String,
    /// True if the gateways send requests with this host name to the service.
    pub confirmed: bool,
    /// The confirmed domain of the organization that is the host name or a parent of it; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The name of the TXT record in DNS that confirms the host name.
    pub record_name: String,
    /// The value of the record; absent until the portal made it, within minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// The first check without the record of a confirmed host name. The confirmation ends seven days later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<Timestamp>,
    /// The time of the last check of the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checked_at: Option<Timestamp>,
    /// The reason why the host name does not work, or the failure of the last check; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The state of a host name in the list of operators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ClaimedHostState {
    /// Nothing confirms it, so it leads to no service.
    Waiting,
    /// An operator confirmed it.
    Operator,
    /// Its record in DNS confirmed it.
    Record,
    /// Its record in DNS confirmed it, and the last check did not find the record.
    Missing,
    /// A confirmed domain of the organization confirms it.
    Domain,
}

/// A host name that an organization names, in the list of operators.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ClaimedHost {
    /// The host name.
    pub host: String,
    /// The organization that names it.
    pub organization: OrgId,
    /// The name of the organization.
    pub organization_name: String,
    /// The names of the services of the organization with the host name. Empty shortly after its removal, and for a host
    /// name that confirms others below it.
    pub services: Vec<String>,
    /// The state of the host name.
    pub state: ClaimedHostState,
    /// The time of the confirmation. With `missing` the first check without the record; with `waiting` and `domain` the
    /// begin of the checks of the record.
    pub since: Timestamp,
    /// The confirmed domain of the organization that is the host name or a parent of it; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The reason why the host name does not work, or the failure of the last check; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The body of a check of the record of a host name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CheckHost {
    /// A host name that a service of the organization names, at most 253 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 3, max = 253)))]
    pub host: String,
}

/// The body of the confirmation of a host name without DNS.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct ConfirmHost {
    /// A host name that a service of the organization names, at most 253 characters.
    #[cfg_attr(feature = "schema", schemars(length(min = 3, max = 253)))]
    pub host: String,
    /// True if the host name belongs to the organization; false takes the confirmation back.
    pub confirmed: bool,
}
