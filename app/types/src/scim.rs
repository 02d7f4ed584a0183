//! Types of SCIM 2.0 (RFC 7643 and RFC 7644): the people and groups that an identity provider keeps in an organization.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids::{ScimGroupId, UserId};
use crate::time::Timestamp;

/// The most people of an organization.
pub const MAX_SCIM_USERS: i64 = 10_000;
/// The most groups of an organization.
pub const MAX_SCIM_GROUPS: i64 = 1_000;
/// The most members of a group.
pub const MAX_SCIM_MEMBERS: usize = 1_000;
/// The most resources of one answer.
pub const MAX_SCIM_ROWS: i64 = 100;
/// The most operations of a PATCH.
pub const MAX_SCIM_OPERATIONS: usize = 100;
/// Characters of a name of a user, of an external id and of the name of a group.
pub const MAX_SCIM_TEXT_CHARS: usize = 254;
/// Characters of each part of the name of a person.
pub const MAX_SCIM_NAME_CHARS: usize = 100;
/// Bytes of a filter.
pub const MAX_SCIM_FILTER_BYTES: usize = 2_000;

/// The media type of bodies.
pub const SCIM_MEDIA_TYPE: &str = "application/scim+json";
pub const USER_SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:User";
pub const GROUP_SCHEMA: &str = "urn:ietf:params:scim:schemas:core:2.0:Group";
pub const LIST_MESSAGE: &str = "urn:ietf:params:scim:api:messages:2.0:ListResponse";
pub const ERROR_MESSAGE: &str = "urn:ietf:params:scim:api:messages:2.0:Error";

/// The provisioning of the members of an organization.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Provisioning {
    /// The base address of SCIM for this organization.
    pub base_url: String,
    /// The number of members that the provider keeps.
    pub members: i64,
    /// The last request with a token for SCIM, with a precision of a minute; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_request_at: Option<Timestamp>,
}

/// True or false, also as a text: Entra ID sends `True` and `False`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum ScimFlag {
    Flag(bool),
    Text(String),
}

impl ScimFlag {
    /// The value; `None` for another text.
    pub fn value(&self) -> Option<bool> {
        match self {
            Self::Flag(value) => Some(*value),
            Self::Text(text) if text.eq_ignore_ascii_case("true") => Some(true),
            Self::Text(text) if text.eq_ignore_ascii_case("false") => Some(false),
            Self::Text(_) => None,
        }
    }
}

/// The name of a person.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimName {
    /// The whole name: at most 100 printable characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub formatted: Option<String>,
    /// The given name: at most 100 printable characters.
    #[serde(rename = "givenName", default, skip_serializing_if = "Option::is_none")]
    pub given_name: Option<String>,
    /// The family name: at most 100 printable characters.
    #[serde(rename = "familyName", default, skip_serializing_if = "Option::is_none")]
    pub family_name: Option<String>,
}

/// An e-mail address of a person.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimEmail {
    /// The address.
    #[serde(default)]
    pub value: Option<String>,
    /// The kind of the address, such as `work`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// True for the address of the account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub primary: Option<ScimFlag>,
}

/// A reference to another resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimReference {
    /// The id of the resource.
    pub value: String,
    /// The name of the resource.
    pub display: String,
}

/// Facts about a resource.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimMeta {
    /// `User` or `Group`.
    #[serde(rename = "resourceType")]
    pub resource_type: String,
    /// The time of the creation.
    pub created: Timestamp,
    /// The time of the last change.
    #[serde(rename = "lastModified")]
    pub last_modified: Timestamp,
    /// The address of the resource.
    pub location: String,
}

/// A person of the provider.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimUser {
    /// The schema of a user.
    pub schemas: Vec<String>,
    /// The id of the account.
    pub id: UserId,
    /// The id of the person at the provider.
    #[serde(rename = "externalId", default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The name of the person at the provider. It is unique in the organization without regard to case.
    #[serde(rename = "userName")]
    pub user_name: String,
    /// The parts of the name.
    pub name: ScimName,
    /// The name on the pages.
    #[serde(rename = "displayName")]
    pub display_name: String,
    /// The address of the account.
    pub emails: Vec<ScimEmail>,
    /// False after a deactivation: the person has no membership.
    pub active: bool,
    /// The groups of the person, at most 1000; absent in lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub groups: Option<Vec<ScimReference>>,
    /// Facts about the resource.
    pub meta: ScimMeta,
}

/// The body of a new or replaced person. Other attributes have no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PutScimUser {
    /// The name of the person at the provider: 1 to 254 printable characters. It is the address of the account without
    /// an entry in `emails`.
    #[serde(rename = "userName")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 254)))]
    pub user_name: String,
    /// The id of the person at the provider: at most 254 printable characters.
    #[serde(rename = "externalId", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 254)))]
    pub external_id: Option<String>,
    /// The parts of the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<ScimName>,
    /// The name on the pages: at most 100 printable characters.
    #[serde(rename = "displayName", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 100)))]
    pub display_name: Option<String>,
    /// The e-mail addresses. The primary one, or else the first one of the type `work`, or else the first one is the
    /// address of the account. A replacement does not change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emails: Option<Vec<ScimEmail>>,
    /// False for a person without a membership; true when absent in a new person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active: Option<ScimFlag>,
}

/// A member in the body of a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PutScimMember {
    /// The id of a person of the provider.
    pub value: String,
}

/// A group of the provider. Lists have no `members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimGroup {
    /// The schema of a group.
    pub schemas: Vec<String>,
    /// The id of the group.
    pub id: ScimGroupId,
    /// The id of the group at the provider.
    #[serde(rename = "externalId", default, skip_serializing_if = "Option::is_none")]
    pub external_id: Option<String>,
    /// The name of the group. It is unique in the organization without regard to case.
    #[serde(rename = "displayName")]
    pub display_name: String,
    /// The members, at most 1000; absent in lists and with `excludedAttributes=members`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub members: Option<Vec<ScimReference>>,
    /// Facts about the resource.
    pub meta: ScimMeta,
}

/// The body of a new or replaced group. Other attributes have no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PutScimGroup {
    /// The name of the group: 1 to 254 printable characters. It, or the external id, is the group in the roles of
    /// single sign-on.
    #[serde(rename = "displayName")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 254)))]
    pub display_name: String,
    /// The id of the group at the provider: at most 254 printable characters.
    #[serde(rename = "externalId", default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 254)))]
    pub external_id: Option<String>,
    /// The members, at most 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub members: Option<Vec<PutScimMember>>,
}

/// One operation of a PATCH.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimOperation {
    /// `add`, `remove` or `replace`, without regard to case.
    pub op: String,
    /// The attribute, such as `active`, `name.givenName` or `members[value eq "ID"]`. Without it the value has the
    /// attributes by their names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(max = 500)))]
    pub path: Option<String>,
    /// The new value; absent to remove the whole attribute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
}

/// The body of a PATCH.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimPatch {
    /// The operations in their order, 1 to 100.
    #[serde(rename = "Operations")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 100)))]
    pub operations: Vec<ScimOperation>,
}

/// A list of resources.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimList<T> {
    /// The schema of a list.
    pub schemas: Vec<String>,
    /// The number of all resources that match.
    #[serde(rename = "totalResults")]
    pub total_results: i64,
    /// The place of the first resource, from 1 on.
    #[serde(rename = "startIndex")]
    pub start_index: i64,
    /// The number of resources in this answer, at most 100.
    #[serde(rename = "itemsPerPage")]
    pub items_per_page: i64,
    /// The resources.
    #[serde(rename = "Resources")]
    pub resources: Vec<T>,
}

/// A document about this service: its abilities, its kinds of resources, or their attributes (RFC 7643).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(transparent)]
pub struct ScimDocument(pub Map<String, Value>);

/// An error of SCIM. `code` is stable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ScimError {
    /// The schema of an error.
    pub schemas: Vec<String>,
    /// The HTTP status as a text.
    pub status: String,
    /// The kind of the error in RFC 7644; absent without one.
    #[serde(rename = "scimType", default, skip_serializing_if = "Option::is_none")]
    pub scim_type: Option<String>,
    /// A sentence about this error and the next step.
    pub detail: String,
    /// A stable code for programs.
    pub code: String,
    /// The id of the request, as in the header `X-Request-Id`.
    pub request_id: String,
}

#[cfg(test)]
mod tests {
    use super::ScimFlag;

    #[test]
    fn a_flag_is_a_value_or_its_text() {
        let read = |text: &str| serde_json::from_str::<ScimFlag>(text).ok().and_then(|flag| flag.value());
        assert_eq!([read("true"), read("\"True\""), read("\"TRUE\"")], [Some(true); 3]);
        assert_eq!([read("false"), read("\"False\"")], [Some(false); 2]);
        assert_eq!([read("\"no\""), read("1"), read("null")], [None; 3]);
    }
}
