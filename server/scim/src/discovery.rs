//! The documents about this service (RFC 7643, sections 5 to 7).

use berth_foundation::Caller;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::scim::{GROUP_SCHEMA, LIST_MESSAGE, MAX_SCIM_ROWS, ScimDocument, ScimList, USER_SCHEMA};
use serde_json::{Map, Value, json};

use crate::Scim;

/// The object of a document.
fn document(value: Value) -> ScimDocument {
    match value {
        Value::Object(fields) => ScimDocument(fields),
        _ => ScimDocument(Map::new()),
    }
}

/// A list that is complete.
fn list(documents: Vec<Value>) -> ScimList<ScimDocument> {
    let total = i64::try_from(documents.len()).unwrap_or(i64::MAX);
    ScimList {
        schemas: vec![LIST_MESSAGE.to_owned()],
        total_results: total,
        start_index: 1,
        items_per_page: total,
        resources: documents.into_iter().map(document).collect(),
    }
}

/// The description of an attribute: its name, its kind, and its mutability.
fn attribute(name: &str, kind: &str, mutability: &str, description: &str) -> Value {
    let is_unique = matches!(name, "userName" | "externalId");
    let uniqueness = if is_unique { "server" } else { "none" };
    json!({
        "name": name, "type": kind, "multiValued": matches!(name, "emails" | "groups" | "members"),
        "description": description, "required": name == "userName", "caseExact": name == "externalId",
        "mutability": mutability, "returned": "default", "uniqueness": uniqueness,
    })
}

/// The description of an attribute with parts.
fn complex(name: &str, mutability: &str, description: &str, parts: Vec<Value>) -> Value {
    let mut described = attribute(name, "complex", mutability, description);
    if let Some(fields) = described.as_object_mut() {
        fields.insert("subAttributes".to_owned(), Value::Array(parts));
    }
    described
}

fn user_attributes() -> Vec<Value> {
    let (free, fixed, shown) = ("readWrite", "immutable", "readOnly");
    let names = vec![
        attribute("formatted", "string", free, "The whole name."),
        attribute("givenName", "string", free, "The given name."),
        attribute("familyName", "string", free, "The family name."),
    ];
    let emails = vec![
        attribute("value", "string", fixed, "The address."),
        attribute("type", "string", fixed, "The kind of the address."),
        attribute("primary", "boolean", fixed, "True for the address of the account."),
    ];
    let groups = vec![
        attribute("value", "string", shown, "The id of the group."),
        attribute("display", "string", shown, "The name of the group."),
    ];
    vec![
        attribute("userName", "string", free, "The name of the person at the provider."),
        attribute("externalId", "string", free, "The id of the person at the provider."),
        attribute("displayName", "string", free, "The name on the pages."),
        complex("name", free, "The parts of the name.", names),
        complex("emails", fixed, "The address of the account.", emails),
        attribute("active", "boolean", free, "True for a person with access."),
        complex("groups", shown, "The groups of the person.", groups),
    ]
}

fn group_attributes() -> Vec<Value> {
    let (free, fixed) = ("readWrite", "immutable");
    let mut name = attribute("displayName", "string", free, "The name of the group.");
    if let Some(fields) = name.as_object_mut() {
        fields.insert("required".to_owned(), json!(true));
        fields.insert("uniqueness".to_owned(), json!("server"));
    }
    let members = vec![
        attribute("value", "string", fixed, "The id of a person of the provider."),
        attribute("display", "string", "readOnly", "The name of the person."),
    ];
    vec![
        name,
        attribute("externalId", "string", free, "The id of the group at the provider."),
        complex("members", free, "The members of the group.", members),
    ]
}

impl Scim {
    /// The abilities of this service.
    ///
    /// # Errors
    /// 404 for a foreign organization.
    pub async fn service_provider_config(
        &self,
        caller: &Caller,
        org: OrgId,
    ) -> Result<ScimDocument, Problem> {
        self.authorise_discovery(caller, org).await?;
        let portal = self.context.settings.public_url.trim_end_matches('/');
        Ok(document(json!({
            "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"],
            "documentationUri": format!("{portal}/docs/sso"),
            "patch": { "supported": true },
            "bulk": { "supported": false, "maxOperations": 0, "maxPayloadSize": 0 },
            "filter": { "supported": true, "maxResults": MAX_SCIM_ROWS },
            "changePassword": { "supported": false },
            "sort": { "supported": false },
            "etag": { "supported": false },
            "authenticationSchemes": [{
                "type": "oauthbearertoken", "name": "API token", "primary": true,
                "description": "A token of a service account with the scope scim.",
            }],
            "meta": {
                "resourceType": "ServiceProviderConfig",
                "location": format!("{}/ServiceProviderConfig", self.base_url(org)),
            },
        })))
    }

    /// The kinds of resources.
    ///
    /// # Errors
    /// 404 for a foreign organization.
    pub async fn resource_types(
        &self,
        caller: &Caller,
        org: OrgId,
    ) -> Result<ScimList<ScimDocument>, Problem> {
        self.authorise_discovery(caller, org).await?;
        let kind = |name: &str, schema: &str, description: &str| {
            json!({
                "schemas": ["urn:ietf:params:scim:schemas:core:2.0:ResourceType"], "id": name, "name": name,
                "endpoint": format!("/{name}s"), "description": description, "schema": schema,
                "meta": {
                    "resourceType": "ResourceType",
                    "location": format!("{}/ResourceTypes/{name}", self.base_url(org)),
                },
            })
        };
        Ok(list(vec![
            kind("User", USER_SCHEMA, "A person of the provider."),
            kind("Group", GROUP_SCHEMA, "A group of the provider."),
        ]))
    }

    /// The attributes of the resources.
    ///
    /// # Errors
    /// 404 for a foreign organization.
    pub async fn schemas(&self, caller: &Caller, org: OrgId) -> Result<ScimList<ScimDocument>, Problem> {
        self.authorise_discovery(caller, org).await?;
        let schema = |name: &str, id: &str, description: &str, attributes: Vec<Value>| {
            json!({
                "schemas": ["urn:ietf:params:scim:schemas:core:2.0:Schema"], "id": id, "name": name,
                "description": description, "attributes": attributes,
                "meta": {
                    "resourceType": "Schema",
                    "location": format!("{}/Schemas/{id}", self.base_url(org)),
                },
            })
        };
        Ok(list(vec![
            schema("User", USER_SCHEMA, "A person of the provider.", user_attributes()),
            schema("Group", GROUP_SCHEMA, "A group of the provider.", group_attributes()),
        ]))
    }
}
