//! Back-channel logout: the sessions that a provider ends by a signed token.

use berth_types::sso::SsoFailure;
use serde_json::{Map, Value};

use crate::OidcError;
use crate::claims::check_not_before;

/// The event in a logout token.
const LOGOUT_EVENT: &str = "http://schemas.openid.net/event/backchannel-logout";
/// The greatest age of a logout token, and its greatest distance in the future, in seconds.
const LOGOUT_S: i64 = 300;
/// Characters of the id of a logout token.
const MAX_ID_CHARS: usize = 255;

/// The sessions that a logout token ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Logout {
    /// The id of the token.
    pub id: String,
    /// The session at the provider.
    pub sid: Option<String>,
    pub subject: Option<String>,
}

fn not_valid(detail: &str) -> OidcError {
    OidcError::new(SsoFailure::Token, detail)
}

/// True for the type in the header of a logout token, `logout+jwt`. Some providers give the general type or none: the
/// claims tell their logout tokens from other tokens. Another type is of another kind of token.
pub fn is_logout_type(name: Option<&str>) -> bool {
    let Some(name) = name.map(str::to_ascii_lowercase) else { return true };
    matches!(name.strip_prefix("application/").unwrap_or(&name), "logout+jwt" | "jwt")
}

/// Reads the claims of a logout token with a right signature. `now_s` is the time in seconds.
///
/// # Errors
/// A claim is missing, or is of another client, another time or another kind of token.
pub fn read_logout(
    claims: &Map<String, Value>,
    issuer: &str,
    client_id: &str,
    now_s: i64,
) -> Result<Logout, OidcError> {
    let text = |name: &str| claims.get(name).and_then(Value::as_str);
    let is_audience = match claims.get("aud") {
        Some(Value::String(audience)) => audience == client_id,
        Some(Value::Array(audiences)) => audiences.iter().any(|one| one.as_str() == Some(client_id)),
        _ => false,
    };
    let is_recent = |at: i64| (now_s - LOGOUT_S..=now_s + LOGOUT_S).contains(&at);
    let has_event =
        claims.get("events").is_some_and(|events| events.get(LOGOUT_EVENT).is_some_and(Value::is_object));
    if text("iss") != Some(issuer) || !is_audience {
        return Err(not_valid("The logout token has another issuer or audience."));
    }
    if !claims.get("iat").and_then(Value::as_i64).is_some_and(is_recent) {
        return Err(not_valid("The logout token is too old."));
    }
    if claims.get("exp").is_some_and(|end| end.as_i64().is_none_or(|end| end <= now_s)) {
        return Err(not_valid("The logout token has expired."));
    }
    check_not_before(claims, now_s)?;
    if !has_event || claims.contains_key("nonce") {
        return Err(not_valid("The token is no logout token."));
    }
    let id = text("jti").filter(|id| !id.is_empty() && id.chars().count() <= MAX_ID_CHARS);
    let id = id.ok_or_else(|| not_valid("The logout token has no id."))?.to_owned();
    let owned = |name: &str| text(name).filter(|text| !text.is_empty()).map(str::to_owned);
    let (sid, subject) = (owned("sid"), owned("sub"));
    if sid.is_none() && subject.is_none() {
        return Err(not_valid("The logout token names no session."));
    }
    Ok(Logout { id, sid, subject })
}

/// Finds the logout token in the form of a request.
pub fn find_logout_token(form: &[u8]) -> Option<String> {
    let mut fields = openidconnect::url::form_urlencoded::parse(form);
    fields.find(|(name, _)| name == "logout_token").map(|(_, token)| token.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_type_of_a_logout_token_is_its_own_or_the_general_one() {
        for good in [None, Some("logout+jwt"), Some("application/Logout+JWT"), Some("JWT"), Some("jwt")] {
            assert!(is_logout_type(good), "{good:?}");
        }
        for bad in ["at+jwt", "id_token+jwt", "secevent+jwt", "application/at+jwt", "logout+jwt ", "JOSE", ""]
        {
            assert!(!is_logout_type(Some(bad)), "{bad}");
        }
    }

    #[test]
    fn a_logout_token_has_its_claims_and_no_nonce() {
        let good = json!({
            "iss": "https://idp", "aud": ["berth"], "iat": 1_000, "jti": "1", "sid": "s", "events": {LOGOUT_EVENT: {}},
        });
        let read = |change: Value| {
            let mut claims = good.as_object().cloned().unwrap();
            for (name, value) in change.as_object().unwrap() {
                if value.is_null() {
                    claims.remove(name);
                } else {
                    claims.insert(name.clone(), value.clone());
                }
            }
            read_logout(&claims, "https://idp", "berth", 1_100)
        };
        assert_eq!(read(json!({})).unwrap().sid.as_deref(), Some("s"));
        assert_eq!(
            read(json!({"aud": "berth", "sid": null, "sub": "u"})).unwrap().subject.as_deref(),
            Some("u")
        );
        for bad in [
            json!({"iss": "https://other"}),
            json!({"aud": "other"}),
            json!({"iat": 700}),
            json!({"iat": null}),
            json!({"exp": 1_100}),
            json!({"nbf": 1_200}),
            json!({"events": {}}),
            json!({"nonce": "n"}),
            json!({"jti": null}),
            json!({"sid": null}),
        ] {
            assert!(read(bad.clone()).is_err(), "{bad}");
        }
    }
}
