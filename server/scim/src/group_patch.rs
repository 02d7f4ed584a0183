//! The changes of a group, from the bodies of POST, PUT and PATCH.

use std::collections::BTreeSet;

use berth_types::ids::UserId;
use berth_types::problems::Problem;
use berth_types::scim::{
    GROUP_SCHEMA, MAX_SCIM_MEMBERS, MAX_SCIM_TEXT_CHARS, PutScimGroup, PutScimMember, ScimOperation,
    ScimPatch,
};
use serde_json::Value;

use crate::refusals::{invalid_path, invalid_value};
use crate::texts::{read_name, read_text};
use crate::user_change::{Op, read_operations, read_path, read_value};

/// A change of the members of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum MemberChange {
    Add(BTreeSet<UserId>),
    Remove(BTreeSet<UserId>),
    Replace(BTreeSet<UserId>),
}

/// The changed fields of a group. An empty text removes an optional one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GroupChange {
    pub display_name: Option<String>,
    pub external_id: Option<String>,
    /// In their order.
    pub members: Vec<MemberChange>,
}

/// The ids of members. Groups are no members.
fn read_ids(members: &[PutScimMember]) -> Result<BTreeSet<UserId>, Problem> {
    let ids: Option<BTreeSet<UserId>> = members.iter().map(|member| member.value.parse().ok()).collect();
    ids.ok_or_else(|| invalid_value("The value of a member is the id of a person of the provider."))
}

/// The ids of members in a value: a list of objects, or one object.
fn read_member_value(value: &Value) -> Result<BTreeSet<UserId>, Problem> {
    let list = match value {
        Value::Array(_) => value.clone(),
        one => Value::Array(vec![one.clone()]),
    };
    let members = serde_json::from_value::<Vec<PutScimMember>>(list);
    read_ids(&members.map_err(|_| invalid_value("The attribute members is a list of objects with a value."))?)
}

/// The id in a path such as `members[value eq "ID"]`.
fn find_path_member(path: &str) -> Option<UserId> {
    let inner = path.strip_prefix("members[")?.strip_suffix(']')?;
    let (attribute, rest) = inner.trim().split_once(char::is_whitespace)?;
    let (operator, value) = rest.trim_start().split_once(char::is_whitespace)?;
    let id: String = serde_json::from_str(value.trim()).ok()?;
    if attribute == "value" && operator == "eq" { id.parse().ok() } else { None }
}

impl GroupChange {
    /// Reads the body of a new or replaced group.
    ///
    /// # Errors
    /// 400 for an invalid field.
    pub fn read_resource(input: &PutScimGroup) -> Result<Self, Problem> {
        let external_id = input.external_id.as_deref().unwrap_or_default();
        let members = read_ids(input.members.as_deref().unwrap_or_default())?;
        Ok(Self {
            display_name: Some(read_name("displayName", &input.display_name, MAX_SCIM_TEXT_CHARS)?),
            external_id: Some(read_text("externalId", external_id, MAX_SCIM_TEXT_CHARS)?),
            members: vec![MemberChange::Replace(members)],
        })
    }

    /// Reads a PATCH. Attributes that Berth does not keep have no effect.
    ///
    /// # Errors
    /// 400 for an invalid operation, path or value.
    pub fn read_patch(patch: &ScimPatch) -> Result<Self, Problem> {
        let mut change = Self::default();
        for operation in read_operations(patch)? {
            let op = Op::read(operation)?;
            match &operation.path {
                Some(path) => change.apply_operation(op, &read_path(path, GROUP_SCHEMA)?, operation)?,
                None if op == Op::Remove => return Err(invalid_path()),
                None => {
                    let Some(Value::Object(fields)) = &operation.value else {
                        return Err(invalid_value("An operation without a path has an object as its value."));
                    };
                    for (name, value) in fields {
                        change.set(op, &read_path(name, GROUP_SCHEMA)?, value)?;
                    }
                }
            }
        }
        Ok(change)
    }

    /// Reads an operation with a path in lower case.
    fn apply_operation(&mut self, op: Op, path: &str, operation: &ScimOperation) -> Result<(), Problem> {
        let value = operation.value.as_ref().filter(|value| !value.is_null());
        match (op, path, value) {
            (Op::Remove, "members", None) => self.members.push(MemberChange::Replace(BTreeSet::new())),
            (Op::Remove, "members", Some(value)) => {
                self.members.push(MemberChange::Remove(read_member_value(value)?));
            }
            (Op::Remove, "externalid", _) => self.external_id = Some(String::new()),
            (Op::Remove, "displayname", _) => return Err(invalid_path()),
            (Op::Remove, path, _) if path.starts_with("members[") => {
                let id = find_path_member(path).ok_or_else(invalid_path)?;
                self.members.push(MemberChange::Remove(BTreeSet::from([id])));
            }
            (Op::Remove, ..) => {}
            (Op::Add | Op::Replace, path, value) => self.set(op, path, value.unwrap_or(&Value::Null))?,
        }
        Ok(())
    }

    /// Sets the attribute at a path in lower case.
    fn set(&mut self, op: Op, path: &str, value: &Value) -> Result<(), Problem> {
        match path {
            "displayname" => {
                let text = read_value("displayName", value)?;
                self.display_name = Some(read_name("displayName", text, MAX_SCIM_TEXT_CHARS)?);
            }
            "externalid" => {
                let text = read_value("externalId", value)?;
                self.external_id = Some(read_text("externalId", text, MAX_SCIM_TEXT_CHARS)?);
            }
            "members" => {
                let ids = read_member_value(value)?;
                self.members.push(match op {
                    Op::Add => MemberChange::Add(ids),
                    Op::Replace | Op::Remove => MemberChange::Replace(ids),
                });
            }
            path if path.starts_with("members[") => return Err(invalid_path()),
            _ => {}
        }
        Ok(())
    }

    /// The members after the change.
    ///
    /// # Errors
    /// 400 for too many members.
    pub fn apply_members(&self, before: &BTreeSet<UserId>) -> Result<BTreeSet<UserId>, Problem> {
        let mut after = before.clone();
        for change in &self.members {
            match change {
                MemberChange::Add(ids) => after.extend(ids.iter().copied()),
                MemberChange::Remove(ids) => after.retain(|id| !ids.contains(id)),
                MemberChange::Replace(ids) => after.clone_from(ids),
            }
        }
        if after.len() > MAX_SCIM_MEMBERS {
            return Err(invalid_value("A group has at most 1000 members."));
        }
        Ok(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const ADA: &str = "user_00000000000000000000000001";
    const BOB: &str = "user_00000000000000000000000002";

    fn ids(texts: &[&str]) -> BTreeSet<UserId> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn path_of_ada() -> String {
        format!("members[value eq \"{ADA}\"]")
    }

    /// The members after a PATCH of a group with Ada.
    fn patched(operations: &Value) -> Result<BTreeSet<UserId>, String> {
        let patch: ScimPatch = serde_json::from_value(json!({ "Operations": operations })).unwrap();
        let change = GroupChange::read_patch(&patch).map_err(|problem| problem.code)?;
        change.apply_members(&ids(&[ADA])).map_err(|problem| problem.code)
    }

    #[test]
    fn members_change_in_the_forms_of_entra_id_and_okta() {
        for (operations, expected) in [
            (json!([{"op": "Add", "path": "members", "value": [{"value": BOB}]}]), ids(&[ADA, BOB])),
            (json!([{"op": "Remove", "path": "members", "value": [{"$ref": null, "value": ADA}]}]), ids(&[])),
            (json!([{"op": "remove", "path": path_of_ada()}]), ids(&[])),
            (json!([{"op": "remove", "path": "members"}]), ids(&[])),
            (
                json!([{"op": "replace", "path": "members", "value": [{"value": BOB, "display": "Bob"}]}]),
                ids(&[BOB]),
            ),
            (json!([{"op": "replace", "value": {"id": "x", "displayName": "ML"}}]), ids(&[ADA])),
            (json!([{"op": "add", "value": {"members": {"value": BOB}}}]), ids(&[ADA, BOB])),
        ] {
            assert_eq!(patched(&operations), Ok(expected), "{operations}");
        }
    }

    #[test]
    fn damaged_changes_of_members_are_refused() {
        for (operations, code) in [
            (json!([{"op": "add", "path": "members", "value": [{"value": "group"}]}]), "scim.value"),
            (json!([{"op": "add", "path": "members", "value": "x"}]), "scim.value"),
            (json!([{"op": "remove", "path": "members[value co \"a\"]"}]), "scim.path"),
            (json!([{"op": "replace", "path": path_of_ada(), "value": "x"}]), "scim.path"),
            (json!([{"op": "remove", "path": "displayName"}]), "scim.path"),
        ] {
            assert_eq!(patched(&operations), Err(code.to_owned()), "{operations}");
        }
        let many: Vec<Value> =
            (0..=MAX_SCIM_MEMBERS).map(|n| json!({ "value": format!("user_{n:026}") })).collect();
        let operations = json!([{"op": "replace", "path": "members", "value": many}]);
        assert_eq!(patched(&operations), Err("scim.value".to_owned()));
    }
}
