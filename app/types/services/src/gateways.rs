//! Types of gateways, for operators.

use berth_types::ids::GatewayId;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The body of a new gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct NewGateway {
    /// 1 to 40 lower-case letters, digits and hyphens, with a letter first; unique.
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 40), regex(pattern = "^[a-z][a-z0-9-]*$"))
    )]
    pub name: String,
    /// The address of the gateway for callers, such as `https://models.example.org`; empty without one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[cfg_attr(feature = "schema", schemars(length(max = 300)))]
    pub url: String,
}

/// A gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Gateway {
    /// The id of the gateway.
    pub id: GatewayId,
    /// The name of the gateway.
    pub name: String,
    /// The address for callers; empty without one.
    pub url: String,
    /// The time of the creation.
    pub created_at: Timestamp,
    /// The name of the operator who added the gateway.
    pub created_by: String,
    /// The time of its last report; absent before the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_seen_at: Option<Timestamp>,
    /// The version of its program; empty before the first report.
    pub version: String,
    /// The credit of organizations that the gateway has at present, in micro-units of the currency.
    #[serde(default)]
    pub open_micros: i64,
    /// The token for the gateway; present only in the answers to its creation and to its replacement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A gateway that answers at present, for the callers of services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct GatewayAddress {
    /// The name of the gateway.
    pub name: String,
    /// The address for callers; empty without one.
    pub url: String,
}
