//! The changes of a person, from the bodies of POST, PUT and PATCH.

use berth_core::admission::is_email;
use berth_store::scim::StoredScimUser;
use berth_types::problems::Problem;
use berth_types::scim::{
    MAX_SCIM_NAME_CHARS, MAX_SCIM_OPERATIONS, MAX_SCIM_TEXT_CHARS, PutScimUser, ScimEmail, ScimFlag,
    ScimOperation, ScimPatch, USER_SCHEMA,
};
use berth_types::time::Timestamp;
use serde_json::Value;

use crate::refusals::{fixed_address, invalid_path, invalid_value};
use crate::texts::{read_name, read_text, without_hidden};

/// The longest path of an operation, in bytes.
const MAX_PATH_BYTES: usize = 500;

/// The kind of an operation of a PATCH.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    /// `add` and `replace` mean the same for an attribute with one value.
    Add,
    Replace,
    Remove,
}

impl Op {
    /// The kind by its name. Entra ID writes it with a capital letter.
    pub fn read(operation: &ScimOperation) -> Result<Self, Problem> {
        match operation.op.to_ascii_lowercase().as_str() {
            "add" => Ok(Self::Add),
            "replace" => Ok(Self::Replace),
            "remove" => Ok(Self::Remove),
            _ => Err(invalid_value("An operation is add, remove or replace.")),
        }
    }
}

/// The path of an operation in lower case, without the schema of the resource.
pub(crate) fn read_path(path: &str, schema: &str) -> Result<String, Problem> {
    let path = path.trim();
    let is_readable = path.len() <= MAX_PATH_BYTES
        && path.starts_with(|c: char| c.is_ascii_alphabetic())
        && !path.chars().any(char::is_control);
    if !is_readable {
        return Err(invalid_path());
    }
    let (path, schema) = (path.to_lowercase(), format!("{schema}:").to_lowercase());
    Ok(path.strip_prefix(&schema).map_or_else(|| path.clone(), str::to_owned))
}

/// The operations of a PATCH, within their number.
pub(crate) fn read_operations(patch: &ScimPatch) -> Result<&[ScimOperation], Problem> {
    if patch.operations.is_empty() || patch.operations.len() > MAX_SCIM_OPERATIONS {
        return Err(invalid_value("A PATCH has 1 to 100 operations."));
    }
    Ok(&patch.operations)
}

/// The text of a value; empty for `null`.
pub(crate) fn read_value<'a>(attribute: &str, value: &'a Value) -> Result<&'a str, Problem> {
    match value {
        Value::Null => Ok(""),
        Value::String(text) => Ok(text),
        _ => Err(invalid_value(&format!("The attribute {attribute} is a text."))),
    }
}

fn read_flag(flag: &ScimFlag) -> Result<bool, Problem> {
    flag.value().ok_or_else(|| invalid_value("The attribute active is true or false."))
}

/// The address of the account among the addresses of a person: the primary one, or else the first one of the type
/// `work`, or else the first one.
fn find_address(emails: &[ScimEmail]) -> Option<&str> {
    let is_primary = |email: &&ScimEmail| email.primary.as_ref().and_then(ScimFlag::value).unwrap_or(false);
    let is_work =
        |email: &&ScimEmail| email.kind.as_deref().is_some_and(|kind| kind.eq_ignore_ascii_case("work"));
    let found = emails.iter().find(is_primary).or_else(|| emails.iter().find(is_work)).or(emails.first());
    found.and_then(|email| email.value.as_deref()).filter(|value| !value.trim().is_empty())
}

fn read_address(text: &str) -> Result<String, Problem> {
    let email = text.trim().to_lowercase();
    if is_email(&email) {
        return Ok(email);
    }
    Err(invalid_value("The primary entry in emails, or else userName, is the e-mail address of the person."))
}

/// The changed fields of a person. An empty text removes an optional one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct UserChange {
    pub user_name: Option<String>,
    pub external_id: Option<String>,
    pub display_name: Option<String>,
    pub given_name: Option<String>,
    pub family_name: Option<String>,
    /// The address in lower case.
    pub email: Option<String>,
    pub active: Option<bool>,
}

impl UserChange {
    /// Reads the body of a new or replaced person. Absent fields are removed, except the address and `active`.
    ///
    /// # Errors
    /// 400 for an invalid field.
    pub fn read_resource(input: &PutScimUser) -> Result<Self, Problem> {
        let name = input.name.clone().unwrap_or_default();
        let part = |attribute: &str, text: &Option<String>| {
            read_text(attribute, &without_hidden(text.as_deref().unwrap_or_default()), MAX_SCIM_NAME_CHARS)
        };
        let user_name = read_name("userName", &input.user_name, MAX_SCIM_TEXT_CHARS)?;
        let external_id = input.external_id.as_deref().unwrap_or_default();
        let given_name = part("name.givenName", &name.given_name)?;
        let family_name = part("name.familyName", &name.family_name)?;
        let shown = [part("displayName", &input.display_name)?, part("name.formatted", &name.formatted)?];
        let whole: String = format!("{given_name} {family_name}").chars().take(MAX_SCIM_NAME_CHARS).collect();
        let start = user_name.split('@').next().unwrap_or_default();
        let start: String = start.chars().take(MAX_SCIM_NAME_CHARS).collect();
        let display_name = shown
            .into_iter()
            .chain([whole.trim().to_owned(), start])
            .find(|name| !name.is_empty())
            .unwrap_or_else(|| "Person".to_owned());
        let address = input.emails.as_deref().and_then(find_address);
        Ok(Self {
            external_id: Some(read_text("externalId", external_id, MAX_SCIM_TEXT_CHARS)?),
            display_name: Some(display_name),
            given_name: Some(given_name),
            family_name: Some(family_name),
            email: address.map(read_address).transpose()?,
            active: input.active.as_ref().map(read_flag).transpose()?,
            user_name: Some(user_name),
        })
    }

    /// The address of a new person.
    ///
    /// # Errors
    /// 400 without an address.
    pub fn address(&self) -> Result<String, Problem> {
        match &self.email {
            Some(email) => Ok(email.clone()),
            None => read_address(self.user_name.as_deref().unwrap_or_default()),
        }
    }

    /// Reads a PATCH. A later operation replaces an earlier one. Attributes that Berth does not keep have no effect.
    ///
    /// # Errors
    /// 400 for an invalid operation, path or value.
    pub fn read_patch(patch: &ScimPatch) -> Result<Self, Problem> {
        let mut change = Self::default();
        for operation in read_operations(patch)? {
            let op = Op::read(operation)?;
            match (&operation.path, op) {
                (Some(path), Op::Remove) => change.remove(&read_path(path, USER_SCHEMA)?)?,
                (Some(path), Op::Add | Op::Replace) => {
                    let value = operation.value.as_ref().unwrap_or(&Value::Null);
                    change.set(&read_path(path, USER_SCHEMA)?, value)?;
                }
                (None, Op::Remove) => return Err(invalid_path()),
                (None, Op::Add | Op::Replace) => {
                    let Some(Value::Object(fields)) = &operation.value else {
                        return Err(invalid_value("An operation without a path has an object as its value."));
                    };
                    for (name, value) in fields {
                        change.set(&read_path(name, USER_SCHEMA)?, value)?;
                    }
                }
            }
        }
        Ok(change)
    }

    /// Sets the attribute at a path in lower case.
    fn set(&mut self, path: &str, value: &Value) -> Result<(), Problem> {
        match path {
            "active" => {
                let flag = serde_json::from_value::<ScimFlag>(value.clone());
                let flag = flag.map_err(|_| invalid_value("The attribute active is true or false."))?;
                self.active = Some(read_flag(&flag)?);
            }
            "username" => {
                let text = read_value("userName", value)?;
                self.user_name = Some(read_name("userName", text, MAX_SCIM_TEXT_CHARS)?);
            }
            "externalid" => {
                let text = read_value("externalId", value)?;
                self.external_id = Some(read_text("externalId", text, MAX_SCIM_TEXT_CHARS)?);
            }
            "displayname" | "name.formatted" => {
                let text = without_hidden(read_value("displayName", value)?);
                self.display_name = Some(read_name("displayName", &text, MAX_SCIM_NAME_CHARS)?);
            }
            "name.givenname" => {
                let text = without_hidden(read_value("name.givenName", value)?);
                self.given_name = Some(read_text("name.givenName", &text, MAX_SCIM_NAME_CHARS)?);
            }
            "name.familyname" => {
                let text = without_hidden(read_value("name.familyName", value)?);
                self.family_name = Some(read_text("name.familyName", &text, MAX_SCIM_NAME_CHARS)?);
            }
            "name" => {
                let Value::Object(parts) = value else {
                    return Err(invalid_value("The attribute name is an object."));
                };
                for (part, value) in parts {
                    self.set(&format!("name.{}", part.to_lowercase()), value)?;
                }
            }
            "emails" => {
                let emails = serde_json::from_value::<Vec<ScimEmail>>(value.clone());
                let emails =
                    emails.map_err(|_| invalid_value("The attribute emails is a list of objects."))?;
                self.email = find_address(&emails).map(read_address).transpose()?;
            }
            // The form of Entra ID: emails[type eq "work"].value.
            path if is_main_address(path) => {
                self.email = Some(read_address(read_value("emails", value)?)?);
            }
            _ => {}
        }
        Ok(())
    }

    /// Removes the attribute at a path in lower case.
    fn remove(&mut self, path: &str) -> Result<(), Problem> {
        match path {
            "active" | "username" | "emails" | "displayname" => return Err(invalid_path()),
            "externalid" => self.external_id = Some(String::new()),
            "name.givenname" => self.given_name = Some(String::new()),
            "name.familyname" => self.family_name = Some(String::new()),
            "name" => {
                self.given_name = Some(String::new());
                self.family_name = Some(String::new());
            }
            _ => {}
        }
        Ok(())
    }

    /// The person after the change at `now`. An unchanged person keeps the time of the last change.
    ///
    /// # Errors
    /// 400 for another address.
    pub fn apply(&self, before: &StoredScimUser, now: Timestamp) -> Result<StoredScimUser, Problem> {
        if self.email.as_ref().is_some_and(|email| *email != before.email) {
            return Err(fixed_address());
        }
        let text = |new: &Option<String>, old: &String| new.as_ref().unwrap_or(old).clone();
        let external_id = match &self.external_id {
            Some(new) => Some(new.clone()).filter(|id| !id.is_empty()),
            None => before.external_id.clone(),
        };
        let after = StoredScimUser {
            user_name: text(&self.user_name, &before.user_name),
            external_id,
            display_name: text(&self.display_name, &before.display_name),
            given_name: text(&self.given_name, &before.given_name),
            family_name: text(&self.family_name, &before.family_name),
            active: self.active.unwrap_or(before.active),
            ..before.clone()
        };
        let updated_at = if after == *before { before.updated_at } else { now };
        Ok(StoredScimUser { updated_at, ..after })
    }
}

/// True for the path, in lower case, of the value of a work or primary address.
fn is_main_address(path: &str) -> bool {
    path.starts_with("emails[")
        && path.ends_with("].value")
        && (path.contains("\"work\"") || path.contains("primary"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn patch(operations: Value) -> Result<UserChange, String> {
        let patch: ScimPatch = serde_json::from_value(json!({ "Operations": operations })).unwrap();
        UserChange::read_patch(&patch).map_err(|problem| problem.code)
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn hidden_characters_of_a_name_prevent_no_deactivation() {
        let person = json!({
            "userName": "dana@example.org", "displayName": "D\u{202e}ana\u{200f}", "name": {"givenName": "\u{feff}Dana"},
            "active": false,
        });
        let change = UserChange::read_resource(&serde_json::from_value(person).unwrap()).unwrap();
        assert_eq!((change.display_name, change.given_name), (text("Dana"), text("Dana")));
        assert_eq!(change.active, Some(false));
        let renamed =
            patch(json!([{"op": "replace", "path": "displayName", "value": "Da\u{200b}na"}])).unwrap();
        assert_eq!(renamed.display_name, text("Dana"));
    }

    #[test]
    fn the_forms_of_entra_id_and_okta_deactivate_a_person() {
        let inactive = Ok(UserChange { active: Some(false), ..UserChange::default() });
        for operations in [
            json!([{"op": "Replace", "path": "active", "value": false}]),
            json!([{"op": "Replace", "path": "active", "value": "False"}]),
            json!([{"op": "replace", "value": {"active": false}}]),
            json!([{"op": "Add", "value": {"active": "False"}}]),
            json!([{"op": "replace", "path": "urn:ietf:params:scim:schemas:core:2.0:User:active", "value": false}]),
        ] {
            assert_eq!(patch(operations.clone()), inactive, "{operations}");
        }
    }

    #[test]
    fn names_change_by_paths_by_dotted_names_and_by_objects() {
        let named = Ok(UserChange {
            display_name: text("Ada Lund"),
            given_name: text("Ada"),
            family_name: text("Lund"),
            ..UserChange::default()
        });
        for operations in [
            json!([
                {"op": "Replace", "path": "displayName", "value": "Ada Lund"},
                {"op": "Replace", "path": "name.givenName", "value": "Ada"},
                {"op": "Add", "path": "name.familyName", "value": "Lund"},
            ]),
            json!([{"op": "replace", "value": {
                "displayName": "Ada Lund", "name.givenName": "Ada", "name.familyName": "Lund",
            }}]),
            json!([{"op": "replace", "path": "name", "value": {
                "formatted": "Ada Lund", "givenName": "Ada", "familyName": "Lund", "middleName": "M",
            }}]),
        ] {
            assert_eq!(patch(operations.clone()), named, "{operations}");
        }
    }

    #[test]
    fn an_unknown_attribute_has_no_effect_and_a_damaged_operation_is_refused() {
        let none = json!([
            {"op": "Add", "path": "title", "value": "Engineer"},
            {"op": "Add", "path": "addresses[type eq \"work\"].locality", "value": "Kiel"},
            {"op": "Add", "path": "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User:department", "value": "ML"},
            {"op": "Remove", "path": "phoneNumbers"},
            {"op": "replace", "value": {"id": "x"}},
        ]);
        assert_eq!(patch(none), Ok(UserChange::default()));
        for (operations, code) in [
            (json!([]), "scim.value"),
            (json!([{"op": "move", "path": "active"}]), "scim.value"),
            (json!([{"op": "replace", "path": "active", "value": "no"}]), "scim.value"),
            (json!([{"op": "replace", "path": "active", "value": null}]), "scim.value"),
            (json!([{"op": "replace", "path": "userName", "value": " "}]), "scim.value"),
            (json!([{"op": "replace", "path": "displayName", "value": ["a"]}]), "scim.value"),
            (json!([{"op": "replace", "path": "displayName", "value": "a\u{0}"}]), "scim.value"),
            (json!([{"op": "replace", "value": "active"}]), "scim.value"),
            (json!([{"op": "replace", "path": "emails", "value": "a"}]), "scim.value"),
            (json!([{"op": "remove"}]), "scim.path"),
            (json!([{"op": "remove", "path": "active"}]), "scim.path"),
            (json!([{"op": "replace", "path": "", "value": 1}]), "scim.path"),
            (json!([{"op": "replace", "path": "[", "value": 1}]), "scim.path"),
        ] {
            assert_eq!(patch(operations.clone()), Err(code.to_owned()), "{operations}");
        }
        let many: Vec<Value> = (0..101).map(|_| json!({"op": "add", "path": "title"})).collect();
        assert_eq!(patch(Value::Array(many)), Err("scim.value".to_owned()));
    }

    #[test]
    fn the_address_is_the_primary_one_and_the_name_is_never_empty() {
        let read = |body: Value| {
            let input: PutScimUser = serde_json::from_value(body).unwrap();
            UserChange::read_resource(&input).map_err(|problem| problem.code)
        };
        let ada = read(json!({"userName": "Ada@corp.example"})).unwrap();
        assert_eq!((ada.address().unwrap(), ada.display_name), ("ada@corp.example".to_owned(), text("Ada")));
        let entra = read(json!({
            "userName": "ada@corp.onmicrosoft.com", "name": {"givenName": "Ada", "familyName": "Lund"},
            "emails": [{"value": "x@home.example", "type": "home"}, {"value": "Ada@corp.example", "type": "work"}],
        }))
        .unwrap();
        assert_eq!((entra.email, entra.display_name), (text("ada@corp.example"), text("Ada Lund")));
        assert_eq!(
            read(json!({"userName": "ada"})).unwrap().address().map_err(|p| p.code),
            Err("scim.value".into())
        );
        assert!(read(json!({"userName": " "})).is_err());
        assert!(read(json!({"userName": "a@b", "externalId": "x".repeat(255)})).is_err());
    }
}
