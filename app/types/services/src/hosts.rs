//! Types of the host names of services, and of their proofs.

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
