//! The portal as a relying party: it begins ceremonies and verifies their answers.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_types::accounts::User;
use berth_types::ids::UserId;
use serde::Serialize;
use webauthn_rp::bin::{Decode, Encode};
use webauthn_rp::request::auth::AuthenticationVerificationOptions;
use webauthn_rp::request::register::{
    CredProtect, Nickname, PublicKeyCredentialUserEntity, RegistrationVerificationOptions, UserHandle16,
    Username,
};
use webauthn_rp::request::{AsciiDomain, ExtensionInfo, PublicKeyCredentialDescriptor, RpId, TimedCeremony};
use webauthn_rp::response::register::{CompressedPubKey, DynamicState, StaticState};
use webauthn_rp::response::{AuthTransports, CredentialId};
use webauthn_rp::{
    AuthenticatedCredential, DiscoverableAuthentication16, DiscoverableAuthenticationServerState,
    DiscoverableCredentialRequestOptions, PublicKeyCredentialCreationOptions, RegistrationServerState,
};

use crate::PasskeyError;

/// The stored form of public keys: Ed25519, P-256, P-384 or RSA.
type StoredKey = StaticState<CompressedPubKey<[u8; 32], [u8; 32], [u8; 48], Vec<u8>>>;

/// The portal as the relying party of its passkeys.
pub struct RelyingParty {
    id: RpId,
    /// The only accepted origin, as browsers write it.
    origins: [String; 1],
}

/// A passkey as the portal stores it. The texts are base64url without padding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    /// The id that the authenticator chose: at most 1,364 characters.
    pub id: String,
    /// The public key with its facts that never change.
    pub public_key: String,
    pub state: CredentialState,
    /// The bits of the transports.
    pub transports: i64,
}

/// The facts of a passkey that change with its use, such as its counter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialState(pub String);

/// The state of an open registration.
pub struct RegistrationState(RegistrationServerState<16>);

/// The state of an open sign-in.
pub struct SignInState(DiscoverableAuthenticationServerState);

/// A ceremony at its beginning.
pub struct Begun<S> {
    pub challenge: u128,
    pub state: S,
    /// The options for the browser in JSON.
    pub options: String,
}

/// The answer of a browser with a new passkey. It proves nothing before its verification.
pub struct Registration {
    answer: webauthn_rp::Registration,
    pub challenge: u128,
}

/// The answer of a browser with a signature. It proves nothing before its verification.
pub struct SignIn {
    answer: DiscoverableAuthentication16,
    pub challenge: u128,
    /// The id of the passkey in base64url.
    pub credential_id: String,
}

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn decode(text: &str) -> Result<Vec<u8>, PasskeyError> {
    URL_SAFE_NO_PAD.decode(text).map_err(PasskeyError::new)
}

fn handle_of(user: UserId) -> UserHandle16 {
    let Ok(handle) = UserHandle16::decode(user.uuid().into_bytes());
    handle
}

fn to_json(options: &impl Serialize) -> Result<String, PasskeyError> {
    serde_json::to_string(options).map_err(PasskeyError::new)
}

/// The passkey for a list of passkeys that an authenticator must not replace.
fn descriptor_of(known: &Credential) -> Result<PublicKeyCredentialDescriptor<Vec<u8>>, PasskeyError> {
    let id = CredentialId::<Vec<u8>>::decode(decode(&known.id)?).map_err(PasskeyError::new)?;
    let bits = u8::try_from(known.transports).map_err(PasskeyError::new)?;
    let transports = AuthTransports::decode(bits).map_err(PasskeyError::new)?;
    Ok(PublicKeyCredentialDescriptor { id, transports })
}

/// True for a host that browsers read as an IP address. They read each host with a number at its end so.
fn is_address(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or_default();
    host.starts_with('[') || last.starts_with("0x") || last.bytes().all(|c| c.is_ascii_digit())
}

impl RelyingParty {
    /// The relying party of a portal at this URL. `None` without a domain name, and without https for another host
    /// than `localhost`: browsers have no passkeys there.
    pub fn from_url(public_url: &str) -> Option<Self> {
        let url: http::Uri = public_url.parse().ok()?;
        let (scheme, host) = (url.scheme_str()?, url.host()?.to_ascii_lowercase());
        let is_local = host == "localhost" || host.ends_with(".localhost");
        let is_secure = scheme == "https" || (scheme == "http" && is_local);
        if !is_secure || is_address(&host) || host.ends_with('.') {
            return None;
        }
        let default_port = if scheme == "https" { 443 } else { 80 };
        let port = url.port_u16().filter(|port| *port != default_port);
        let port = port.map_or_else(String::new, |port| format!(":{port}"));
        let origins = [format!("{scheme}://{host}{port}")];
        Some(Self { id: RpId::Domain(AsciiDomain::try_from(host).ok()?), origins })
    }

    /// Begins the registration of a passkey of a user with the passkeys `known`.
    ///
    /// # Errors
    /// A stored passkey cannot be read, or the options cannot be written.
    pub fn begin_registration(
        &self,
        user: &User,
        known: &[Credential],
    ) -> Result<Begun<RegistrationState>, PasskeyError> {
        let handle = handle_of(user.id);
        // The library refuses names beyond RFC 8265. The name is only a label in the authenticator.
        let name = Username::try_from(user.email.as_str()).or_else(|_| Username::try_from("account"));
        let entity = PublicKeyCredentialUserEntity {
            name: name.map_err(PasskeyError::new)?,
            id: &handle,
            display_name: Nickname::try_from(user.name.as_str()).ok(),
        };
        let known = known.iter().map(descriptor_of).collect::<Result<Vec<_>, _>>()?;
        let mut options = PublicKeyCredentialCreationOptions::passkey(&self.id, entity, known);
        // Enforcement would exclude authenticators without this extension. Each sign-in verifies the user anyway.
        options.extensions.cred_protect =
            CredProtect::UserVerificationRequired(ExtensionInfo::AllowDontEnforceValue);
        let (state, client) = options.start_ceremony().map_err(PasskeyError::new)?;
        let (challenge, options) = (state.sent_challenge().0, to_json(&client)?);
        Ok(Begun { challenge, state: RegistrationState(state), options })
    }

    /// Verifies the new passkey of a user. Attestations are not requested.
    ///
    /// # Errors
    /// The answer does not fit the ceremony, this portal or the user, or its user was not verified.
    pub fn finish_registration(
        &self,
        state: RegistrationState,
        answer: &Registration,
        user: UserId,
    ) -> Result<Credential, PasskeyError> {
        let options = RegistrationVerificationOptions::<String, String> {
            allowed_origins: &self.origins,
            // Browsers add extensions of their own.
            error_on_unsolicited_extensions: false,
            ..RegistrationVerificationOptions::default()
        };
        let made = state.0.verify(&self.id, &answer.answer, &options).map_err(PasskeyError::new)?;
        if *made.user_id() != handle_of(user) {
            return Err(PasskeyError::new("the ceremony was begun by another user"));
        }
        let Ok(public_key) = made.static_state().encode();
        let Ok(state) = made.dynamic_state().encode();
        let Ok(transports) = made.transports().encode();
        Ok(Credential {
            id: encode(made.id()),
            public_key: encode(public_key),
            state: CredentialState(encode(state)),
            transports: i64::from(transports),
        })
    }

    /// Begins a sign-in by any passkey of this portal.
    ///
    /// # Errors
    /// The options cannot be written.
    pub fn begin_sign_in(&self) -> Result<Begun<SignInState>, PasskeyError> {
        let options = DiscoverableCredentialRequestOptions::passkey(&self.id);
        let (state, client) = options.start_ceremony().map_err(PasskeyError::new)?;
        let (challenge, options) = (state.sent_challenge().0, to_json(&client)?);
        Ok(Begun { challenge, state: SignInState(state), options })
    }

    /// Verifies the signature of a user's passkey. Returns its next state.
    ///
    /// # Errors
    /// The answer does not fit the ceremony, this portal, the user or the passkey, its user was not verified, or its
    /// counter is not beyond the last one.
    pub fn finish_sign_in(
        &self,
        state: SignInState,
        answer: &SignIn,
        (user, known): (UserId, &Credential),
    ) -> Result<CredentialState, PasskeyError> {
        let (id, handle) = (decode(&known.id)?, handle_of(user));
        let id = CredentialId::<&[u8]>::decode(id.as_slice()).map_err(PasskeyError::new)?;
        let public_key = decode(&known.public_key)?;
        let public_key = StoredKey::decode(public_key.as_slice()).map_err(PasskeyError::new)?;
        let stored = <[u8; 7]>::try_from(decode(&known.state.0)?)
            .map_err(|_| PasskeyError::new("the stored state of the passkey is damaged"))?;
        let stored = DynamicState::decode(stored).map_err(PasskeyError::new)?;
        let mut credential =
            AuthenticatedCredential::new(id, &handle, public_key, stored).map_err(PasskeyError::new)?;
        let options = AuthenticationVerificationOptions::<String, String> {
            allowed_origins: &self.origins,
            error_on_unsolicited_extensions: false,
            ..AuthenticationVerificationOptions::default()
        };
        state.0.verify(&self.id, &answer.answer, &mut credential, &options).map_err(PasskeyError::new)?;
        let Ok(next) = credential.dynamic_state().encode();
        Ok(CredentialState(encode(next)))
    }
}

impl Registration {
    /// Reads the answer of a browser: a `RegistrationResponseJSON`.
    ///
    /// # Errors
    /// The text has another form.
    pub fn parse(json: &str) -> Result<Self, PasskeyError> {
        let answer =
            webauthn_rp::Registration::from_json_relaxed(json.as_bytes()).map_err(PasskeyError::new)?;
        let challenge = answer.challenge_relaxed().map_err(PasskeyError::new)?.0;
        Ok(Self { answer, challenge })
    }
}

impl SignIn {
    /// Reads the answer of a browser: an `AuthenticationResponseJSON`.
    ///
    /// # Errors
    /// The text has another form, or names no user.
    pub fn parse(json: &str) -> Result<Self, PasskeyError> {
        let answer =
            DiscoverableAuthentication16::from_json_relaxed(json.as_bytes()).map_err(PasskeyError::new)?;
        let challenge = answer.challenge_relaxed().map_err(PasskeyError::new)?.0;
        let credential_id = encode(answer.raw_id());
        Ok(Self { answer, challenge, credential_id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(url: &str) -> Option<String> {
        RelyingParty::from_url(url).map(|party| party.origins.concat())
    }

    #[test]
    fn only_a_secure_address_with_a_domain_has_passkeys() {
        let portal = Some("https://portal.example.org".to_owned());
        for same in
            ["https://portal.example.org", "https://Portal.Example.org:443/", "https://portal.example.org/x"]
        {
            assert_eq!(origin(same), portal, "{same}");
        }
        assert_eq!(origin("https://gpu:8443").as_deref(), Some("https://gpu:8443"));
        assert_eq!(origin("http://localhost:8080").as_deref(), Some("http://localhost:8080"));
        assert_eq!(origin("http://berth.localhost").as_deref(), Some("http://berth.localhost"));
        for none in [
            "http://portal.example.org",
            "https://192.0.2.1",
            "https://192.0.2.1:8443/",
            "https://[2001:db8::1]",
            "https://127.1",
            "https://example.0x7f",
            "https://portal.example.org.",
            "ftp://localhost",
            "nowhere at all",
            "",
        ] {
            assert_eq!(origin(none), None, "{none}");
        }
    }

    #[test]
    fn the_options_name_the_user_and_require_verification() {
        let party = RelyingParty::from_url("https://portal.example.org").unwrap();
        let id = UserId::from_uuid(uuid::Uuid::from_u128(7));
        let user = User { id, email: "ada@example.org".to_owned(), name: "Ada".to_owned(), operator: false };
        let begun = party.begin_registration(&user, &[]).unwrap();
        for part in [
            r#""id":"portal.example.org""#,
            r#""name":"ada@example.org""#,
            r#""id":"AAAAAAAAAAAAAAAAAAAABw""#,
            r#""residentKey":"required""#,
            r#""userVerification":"required""#,
            r#""attestation":"none""#,
        ] {
            assert!(begun.options.contains(part), "{part} is not in {}", begun.options);
        }
        let begun = party.begin_sign_in().unwrap();
        assert!(begun.options.contains(r#""userVerification":"required""#), "{}", begun.options);
        assert_ne!(begun.challenge, party.begin_sign_in().unwrap().challenge);
        // A name that the library refuses does not hinder the registration.
        let odd = User { email: "\u{3164}@\u{1F600}.org".to_owned(), name: "\u{200B}".to_owned(), ..user };
        party.begin_registration(&odd, &[]).unwrap();
    }

    #[test]
    fn damaged_answers_are_refused() {
        for bad in
            ["", "{}", "null", r#"{"response":{}}"#, r#"{"id":"x","response":{"clientDataJSON":"e30"}}"#]
        {
            assert!(Registration::parse(bad).is_err() && SignIn::parse(bad).is_err(), "{bad}");
        }
    }
}
