//! The person in the claims of a provider, and the role of the person's groups.

use berth_core::admission::is_email;
use berth_types::accounts::Role;
use berth_types::sso::{GroupRole, SsoFailure};
use serde_json::{Map, Value};

use crate::OidcError;

/// Characters of a subject, of a session at a provider and of a name.
const MAX_CHARS: usize = 255;
const MAX_NAME_CHARS: usize = 100;
/// Groups of one person.
const MAX_GROUPS: usize = 1_000;
/// The claims that state the verification of the address.
const VERIFICATIONS: [&str; 2] = ["email_verified", "xms_edov"];

/// The difference in seconds between the clocks of a provider and of the portal that is still accepted.
const CLOCK_DIFFERENCE_S: i64 = 60;

/// Checks the time before which the claims are not valid. Most providers give none. `now_s` is the time in seconds.
///
/// # Errors
/// The time is in the future, or is no whole number.
pub fn check_not_before(claims: &Map<String, Value>, now_s: i64) -> Result<(), OidcError> {
    let latest_s = now_s.saturating_add(CLOCK_DIFFERENCE_S);
    match claims.get("nbf") {
        Some(start) if start.as_i64().is_none_or(|start_s| start_s > latest_s) => {
            Err(OidcError::new(SsoFailure::Token, "The token is not valid yet."))
        }
        _ => Ok(()),
    }
}

/// A person in verified claims.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClaimedPerson {
    pub subject: String,
    /// Verified by the provider, in lower case.
    pub email: String,
    /// The part of the address after the `@`.
    pub domain: String,
    pub name: String,
    pub groups: Vec<String>,
    /// The session at the provider; empty without one.
    pub sid: String,
    /// True if the provider verified a second factor.
    pub second_factor: bool,
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> &'a str {
    claims.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// True for `true`, 1 and their texts. Some providers write them as texts.
fn is_true(value: Option<&Value>) -> bool {
    match value {
        Some(Value::Bool(value)) => *value,
        Some(Value::Number(number)) => number.as_i64() == Some(1),
        Some(Value::String(text)) => matches!(text.as_str(), "true" | "1"),
        _ => false,
    }
}

/// True if the provider verified the address. Entra has a claim of its own for it, at this issuer only.
fn is_email_verified(claims: &Map<String, Value>) -> bool {
    let entra = text(claims, "iss").starts_with("https://login.microsoftonline.com/");
    is_true(claims.get("email_verified")) || (entra && is_true(claims.get("xms_edov")))
}

/// Adds the missing claims from the user information. The address and its verification are of one source, unless both
/// sources have the same address.
pub fn add_missing(claims: &mut Map<String, Value>, mut found: Map<String, Value>) {
    let (own, other) = (claims.get("email"), found.get("email"));
    let is_same = own == other;
    if own.is_some() && !is_same {
        for name in VERIFICATIONS {
            found.remove(name);
        }
    } else if other.is_some() && !is_same {
        for name in VERIFICATIONS {
            claims.remove(name);
        }
    }
    for (name, value) in found {
        claims.entry(name).or_insert(value);
    }
}

/// The groups in a claim: a list of texts, or one text.
fn groups(value: Option<&Value>) -> Vec<String> {
    match value {
        Some(Value::String(group)) => vec![group.clone()],
        Some(Value::Array(groups)) => {
            groups.iter().filter_map(Value::as_str).take(MAX_GROUPS).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    }
}

/// The name of a person on one line; the start of the address without one.
fn person_name(claims: &Map<String, Value>, email: &str) -> String {
    let name: String =
        text(claims, "name").trim().chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect();
    let start = email.split('@').next().unwrap_or(email);
    let name = if name.trim().is_empty() { start.chars().take(MAX_NAME_CHARS).collect() } else { name };
    name.trim().to_owned()
}

impl ClaimedPerson {
    /// Reads the person from verified claims.
    ///
    /// # Errors
    /// The subject or the verified address is missing.
    pub fn read(claims: &Map<String, Value>, group_claim: &str) -> Result<Self, OidcError> {
        let (subject, sid) = (text(claims, "sub"), text(claims, "sid"));
        if subject.is_empty() || subject.chars().count() > MAX_CHARS || sid.chars().count() > MAX_CHARS {
            return Err(OidcError::new(
                SsoFailure::Token,
                "The subject or the session is missing or too long.",
            ));
        }
        let email = text(claims, "email").trim().to_lowercase();
        if !is_email(&email) {
            return Err(OidcError::new(SsoFailure::Email, "The claims have no e-mail address."));
        }
        if !is_email_verified(claims) {
            return Err(OidcError::new(SsoFailure::Email, "The provider did not verify the e-mail address."));
        }
        let methods = groups(claims.get("amr"));
        Ok(Self {
            subject: subject.to_owned(),
            domain: domain_of(&email),
            name: person_name(claims, &email),
            groups: groups(claims.get(group_claim)),
            sid: sid.to_owned(),
            second_factor: methods.iter().any(|method| method == "mfa"),
            email,
        })
    }
}

/// The part of an address after the `@`, in lower case.
pub fn domain_of(email: &str) -> String {
    email.rsplit_once('@').map_or_else(String::new, |(_, domain)| domain.to_lowercase())
}

/// The role of a person in these groups: the first of owner, billing, member and viewer, or else the default.
pub fn role_of_groups(groups: &[String], roles: &[GroupRole], default: Option<Role>) -> Option<Role> {
    let has = |role: &Role| roles.iter().any(|entry| entry.role == *role && groups.contains(&entry.group));
    Role::ALL.into_iter().find(has).or(default)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(claims: Value) -> Result<ClaimedPerson, SsoFailure> {
        let claims = claims.as_object().cloned().unwrap();
        ClaimedPerson::read(&claims, "groups").map_err(|error| error.failure)
    }

    #[test]
    fn a_person_has_a_verified_address() {
        let ada = read(json!({
            "sub": "1", "email": " Ada@Example.org", "email_verified": true, "groups": ["a", "b"],
            "amr": ["pwd", "mfa"], "sid": "s",
        }))
        .unwrap();
        assert_eq!((ada.email.as_str(), ada.domain.as_str()), ("ada@example.org", "example.org"));
        assert_eq!((ada.name.as_str(), ada.groups.len(), ada.second_factor), ("ada", 2, true));
        for verified in [json!(false), json!("false"), json!(null), json!(0)] {
            let claims = json!({"sub": "1", "email": "ada@example.org", "email_verified": verified});
            assert_eq!(read(claims), Err(SsoFailure::Email));
        }
        let entra = |iss: &str| json!({"iss": iss, "sub": "1", "email": "ada@example.org", "xms_edov": "1"});
        assert!(read(entra("https://login.microsoftonline.com/x/v2.0")).is_ok());
        assert_eq!(read(entra("https://evil.example")), Err(SsoFailure::Email));
        assert_eq!(read(json!({"email": "ada@example.org", "email_verified": true})), Err(SsoFailure::Token));
    }

    #[test]
    fn claims_are_valid_from_their_time_on() {
        let check = |claims: Value| check_not_before(claims.as_object().unwrap(), 1_000).is_ok();
        assert!(check(json!({})) && check(json!({"nbf": 1_000})) && check(json!({"nbf": 1_060})));
        assert!(!check(json!({"nbf": 1_061})) && !check(json!({"nbf": "1"})) && !check(json!({"nbf": null})));
    }

    #[test]
    fn the_verification_is_that_of_the_same_address() {
        let read_both = |token: Value, found: Value| {
            let mut claims = token.as_object().cloned().unwrap();
            add_missing(&mut claims, found.as_object().cloned().unwrap());
            read(Value::Object(claims)).map(|person| (person.email, person.groups))
        };
        let grace = || "grace@example.org".to_owned();
        // The groups of the user information apply, the verification of another address does not.
        let token = json!({"sub": "1", "email": "grace@example.org"});
        let other = json!({"email": "eve@example.org", "email_verified": true, "groups": ["ml"]});
        assert_eq!(read_both(token.clone(), other), Err(SsoFailure::Email));
        let none = json!({"email_verified": true});
        assert_eq!(read_both(token.clone(), none), Err(SsoFailure::Email));
        let same = json!({"email": "grace@example.org", "email_verified": true, "groups": ["ml"]});
        assert_eq!(read_both(token, same.clone()), Ok((grace(), vec!["ml".to_owned()])));
        assert_eq!(read_both(json!({"sub": "1"}), same).map(|(email, _)| email), Ok(grace()));
        let verified = json!({"sub": "1", "email_verified": true});
        assert_eq!(read_both(verified, json!({"email": "grace@example.org"})), Err(SsoFailure::Email));
    }

    #[test]
    fn the_highest_role_of_all_groups_applies() {
        let entry = |group: &str, role| GroupRole { group: group.to_owned(), role };
        let roles = [entry("staff", Role::Viewer), entry("ml", Role::Member), entry("admins", Role::Owner)];
        let role = |groups: &[&str], default| {
            let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
            role_of_groups(&groups, &roles, default)
        };
        assert_eq!(role(&["staff", "ml"], None), Some(Role::Member));
        assert_eq!(role(&["ml", "admins", "other"], None), Some(Role::Owner));
        assert_eq!(role(&["other"], None), None);
        assert_eq!(role(&[], Some(Role::Viewer)), Some(Role::Viewer));
    }
}
