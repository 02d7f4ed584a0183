//! The parameters of paths, and the header with the idempotency key.

use berth_types::paths::VOLUME_PATHS;
use serde_json::{Map, Value, json};

/// The parameters of a path. `types` has the schemas of the handler's path: one schema, or those of a tuple.
pub(super) fn path_parameters(path: &str, types: &Value, schemas: &Map<String, Value>) -> Vec<Value> {
    let tuple = types["prefixItems"].as_array().or_else(|| types["items"].as_array());
    let types: Vec<&Value> = tuple.map_or_else(|| vec![types], |items| items.iter().collect());
    let names = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
    let parameter = |(name, kind): (&str, &Value)| path_parameter(name, kind, schemas);
    names.zip(types).map(parameter).collect()
}

/// The description of a path parameter. A name has the limits of the same name in a body.
fn path_parameter(name: &str, kind: &Value, schemas: &Map<String, Value>) -> Value {
    let (description, schema) = match name {
        "gpu" => ("The UUID of a board.", limits(schemas, "NewMaintenance", "/properties/gpus/items")),
        "name" => ("The name of a secret.", limits(schemas, "SecretUse", "/properties/name")),
        "volume" => ("The name of a volume.", limits(schemas, "NewVolume", "/properties/name")),
        "class" => (
            "The name of a storage class.",
            json!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9][a-z0-9-]*$" }),
        ),
        "path" => (
            "The path of a file in the volume, with its slashes.",
            json!({ "type": "string", "minLength": 1, "maxLength": VOLUME_PATHS.bytes }),
        ),
        "network" => (
            "The name of a network: 1 to 63 lower-case letters, digits and hyphens, no hyphen first.",
            json!({ "type": "string", "minLength": 1, "maxLength": 63, "pattern": "^[a-z0-9][a-z0-9-]*$" }),
        ),
        "rack" => (
            "The value of the label `rack`: 1 to 63 bytes of printable characters, not only blanks.",
            json!({
                "type": "string",
                "minLength": 1,
                "maxLength": 63,
                "pattern": r"^[^\u0000-\u001F\u007F-\u009F]+$",
            }),
        ),
        "sha256" => (
            "The SHA-256 of a logo in hexadecimal digits.",
            json!({ "type": "string", "pattern": "^[0-9a-f]{64}$" }),
        ),
        "offering" => ("The slug of an offering.", limits(schemas, "NewPrice", "/properties/offering")),
        "version" => (
            "The number of a price version.",
            json!({ "type": "integer", "minimum": 1, "maximum": i64::MAX }),
        ),
        "port" => (
            "The number of a TCP port of the job.",
            json!({ "type": "integer", "minimum": 1, "maximum": u16::MAX }),
        ),
        _ => (id_description(kind, schemas), kind.clone()),
    };
    json!({ "name": name, "in": "path", "required": true, "description": description, "schema": schema })
}

/// The description of a referenced type of ids.
fn id_description<'a>(kind: &Value, schemas: &'a Map<String, Value>) -> &'a str {
    let name = kind["$ref"].as_str().and_then(|reference| reference.rsplit('/').next());
    name.and_then(|name| schemas.get(name)?["description"].as_str()).unwrap_or_default()
}

/// The schema of a field of a body, without its description.
fn limits(schemas: &Map<String, Value>, name: &str, pointer: &str) -> Value {
    let mut schema =
        schemas.get(name).and_then(|schema| schema.pointer(pointer)).cloned().unwrap_or_default();
    if let Some(fields) = schema.as_object_mut() {
        fields.remove("description");
    }
    schema
}

/// The header of requests that the portal can repeat.
pub(super) fn idempotency_key() -> Value {
    json!({
        "name": "Idempotency-Key", "in": "header", "required": false,
        "description": "A name of the request, unique in the organization or among the operators. The same request \
                        with the same key has one effect and, for 48 hours, the same answer. A refusal leaves the key \
                        free. 409 `idempotency.in_flight`: the first request has no answer yet. 409 \
                        `idempotency.shown_once`: the first answer had a secret. 422 `idempotency.other_request`: the \
                        key belongs to a request with another caller, address or body.",
        "schema": { "type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[ -~]+$" },
    })
}
