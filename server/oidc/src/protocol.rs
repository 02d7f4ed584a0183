//! The messages of OpenID Connect: metadata and keys of providers, sign-ins, refreshes, and signed tokens.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use berth_foundation::delivery::{DeliveryError, Fetch, Transport};
use berth_foundation::{Context, Settings};
use berth_types::ids::OrgId;
use berth_types::sso::SsoFailure;
use berth_types::time::Timestamp;
use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use lru::LruCache;
use openidconnect::core::{
    CoreAuthenticationFlow, CoreClient, CoreClientAuthMethod, CoreErrorResponseType, CoreIdToken,
    CoreIdTokenVerifier, CoreJsonWebKey, CoreJsonWebKeySet, CoreJwsSigningAlgorithm, CoreProviderMetadata,
};
use openidconnect::{
    AsyncHttpClient, AuthType, AuthorizationCode, ClaimsVerificationError, ClientId, ClientSecret, CsrfToken,
    EndpointMaybeSet, EndpointNotSet, EndpointSet, HttpRequest, HttpResponse, IssuerUrl, JsonWebKey,
    LoginHint, Nonce, OAuth2TokenResponse, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken,
    RequestTokenError, Scope, SignatureVerificationError, TokenResponse,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::OidcError;
use crate::claims::{add_missing, check_not_before};
use crate::logout::is_logout_type;

/// Providers with metadata in memory. The least recent one makes room for a new one.
const PROVIDERS: usize = 1_024;
/// Seconds for which metadata and keys are used without another request.
const METADATA_S: i64 = 3_600;
/// The least time between two requests for the keys of a provider, in seconds.
const KEYS_S: i64 = 60;
/// Bytes of a signed token.
const MAX_TOKEN_BYTES: usize = 64 << 10;
/// Signatures by public keys. A provider cannot choose `none` or a shared secret.
const ALGORITHMS: [CoreJwsSigningAlgorithm; 9] = [
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha256,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha384,
    CoreJwsSigningAlgorithm::RsaSsaPkcs1V15Sha512,
    CoreJwsSigningAlgorithm::RsaSsaPssSha256,
    CoreJwsSigningAlgorithm::RsaSsaPssSha384,
    CoreJwsSigningAlgorithm::RsaSsaPssSha512,
    CoreJwsSigningAlgorithm::EcdsaP256Sha256,
    CoreJwsSigningAlgorithm::EcdsaP384Sha384,
    CoreJwsSigningAlgorithm::EdDsa,
];

/// A provider with the client of the portal at it. It has no `Debug`, since the secret is in it.
#[derive(Clone)]
pub struct Provider {
    /// The organization; absent for the provider of the operators.
    pub org: Option<OrgId>,
    pub issuer: String,
    pub client_id: String,
    pub client_secret: String,
}

/// The random values of one sign-in.
#[derive(Clone)]
pub struct SignInValues {
    pub state: String,
    pub nonce: String,
    /// The verifier of PKCE.
    pub verifier: String,
}

/// The answer of a provider to a sign-in, verified.
pub struct Verified {
    /// The claims of the ID token, with missing ones from the user information.
    pub claims: Map<String, Value>,
    pub refresh_token: Option<String>,
}

/// A refresh without a new answer.
#[derive(Debug)]
pub enum RefreshError {
    /// The provider ended the grant.
    Ended,
    /// The provider did not answer as expected.
    NoAnswer(String),
}

/// A failed request to a provider.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(String);

impl From<DeliveryError> for FetchError {
    fn from(error: DeliveryError) -> Self {
        Self(error.reason)
    }
}

/// The client of the library over the transport of the portal.
struct Http {
    transport: Arc<Transport>,
    trusted: bool,
}

impl<'c> AsyncHttpClient<'c> for Http {
    type Error = FetchError;
    type Future = BoxFuture<'c, Result<HttpResponse, FetchError>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let request = Fetch {
                method: head.method,
                url: head.uri.to_string(),
                headers: head.headers,
                body,
                trusted: self.trusted,
            };
            let fetched = self.transport.fetch(request).await?;
            let mut response = HttpResponse::new(fetched.body);
            *response.status_mut() = fetched.status;
            *response.headers_mut() = fetched.headers;
            Ok(response)
        })
    }
}

type ProviderClient = CoreClient<
    EndpointSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointMaybeSet,
    EndpointMaybeSet,
>;

/// The metadata of a provider with its keys.
#[derive(Clone)]
struct Discovered {
    issuer: String,
    fetched_at: Timestamp,
    metadata: Arc<CoreProviderMetadata>,
}

/// The redirect URI of the portal at the provider of an organization, or (`None`) of the operators. Each provider has
/// its own, so the code of one provider never reaches another one.
pub fn callback_url(settings: &Settings, org: Option<OrgId>) -> String {
    let portal = settings.public_url.trim_end_matches('/');
    match org {
        Some(org) => format!("{portal}/api/v1/sso/{org}/callback"),
        None => format!("{portal}/api/v1/sso/operators/callback"),
    }
}

fn failed(detail: impl ToString) -> OidcError {
    OidcError::new(SsoFailure::Provider, detail)
}

fn not_valid(detail: impl ToString) -> OidcError {
    OidcError::new(SsoFailure::Token, detail)
}

/// The text of an error with its causes.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// The claims of a token, without a verification.
fn read_claims(token: &str) -> Option<Map<String, Value>> {
    let payload = token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

/// Verifies the type of a logout token, and its signature by one of the keys with its key id. `None`: there is no such
/// key.
fn verify_signature(token: &str, keys: &CoreJsonWebKeySet) -> Option<Result<(), OidcError>> {
    #[derive(Deserialize)]
    struct Header {
        alg: CoreJwsSigningAlgorithm,
        kid: Option<String>,
        typ: Option<String>,
        crit: Option<Value>,
    }
    let malformed = || Some(Err(not_valid("The token is malformed.")));
    let Some((message, signature)) = token.rsplit_once('.') else { return malformed() };
    let header = message.split('.').next().and_then(|text| URL_SAFE_NO_PAD.decode(text).ok());
    let header: Option<Header> = header.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let (Some(header), Ok(signature)) = (header, URL_SAFE_NO_PAD.decode(signature)) else {
        return malformed();
    };
    if !ALGORITHMS.contains(&header.alg) || header.crit.is_some() {
        return Some(Err(not_valid("The signature of the token is not permitted.")));
    }
    if !is_logout_type(header.typ.as_deref()) {
        return Some(Err(not_valid("The type of the token is not that of a logout token.")));
    }
    let fits = |key: &&CoreJsonWebKey| {
        let id = key.key_id().map(|id| id.as_str());
        header.kid.is_none() || id == header.kid.as_deref()
    };
    let mut candidates = keys.keys().iter().filter(fits).peekable();
    candidates.peek()?;
    let verified =
        candidates.any(|key| key.verify_signature(&header.alg, message.as_bytes(), &signature).is_ok());
    Some(if verified { Ok(()) } else { Err(not_valid("The signature of the token is wrong.")) })
}

/// Fetches the metadata of a provider with its keys.
async fn fetch_metadata(http: &Http, issuer: &str) -> Result<CoreProviderMetadata, OidcError> {
    let issuer = IssuerUrl::new(issuer.to_owned()).map_err(failed)?;
    CoreProviderMetadata::discover_async(issuer, http).await.map_err(|error| failed(with_causes(&error)))
}

/// Reads the metadata and the keys of an issuer of an organization once, without a copy in memory.
///
/// # Errors
/// The address is not permitted, or its answer is not the metadata of this issuer.
pub async fn check_issuer(transport: Arc<Transport>, issuer: &str) -> Result<(), OidcError> {
    fetch_metadata(&Http { transport, trusted: false }, issuer).await.map(|_| ())
}

/// The messages to all providers.
#[derive(Clone)]
pub struct Protocol {
    context: Context,
    transport: Arc<Transport>,
    discovered: Arc<Mutex<LruCache<Option<OrgId>, Discovered>>>,
}

impl Protocol {
    pub fn new(context: Context, transport: Arc<Transport>) -> Self {
        let entries = NonZeroUsize::new(PROVIDERS).unwrap_or(NonZeroUsize::MIN);
        Self { context, transport, discovered: Arc::new(Mutex::new(LruCache::new(entries))) }
    }

    fn http(&self, provider: &Provider) -> Http {
        Http { transport: self.transport.clone(), trusted: provider.org.is_none() }
    }

    /// The metadata of a provider, at most `age_s` seconds old.
    async fn discover(
        &self,
        provider: &Provider,
        age_s: i64,
    ) -> Result<Arc<CoreProviderMetadata>, OidcError> {
        let now = self.context.now();
        let known = {
            let mut discovered = self.discovered.lock().unwrap_or_else(PoisonError::into_inner);
            discovered.get(&provider.org).cloned()
        };
        if let Some(known) = known.filter(|known| known.issuer == provider.issuer)
            && now < known.fetched_at.plus_seconds(age_s)
        {
            return Ok(known.metadata);
        }
        let metadata = Arc::new(fetch_metadata(&self.http(provider), &provider.issuer).await?);
        let new = Discovered { issuer: provider.issuer.clone(), fetched_at: now, metadata: metadata.clone() };
        self.discovered.lock().unwrap_or_else(PoisonError::into_inner).put(provider.org, new);
        Ok(metadata)
    }

    fn client(
        &self,
        provider: &Provider,
        metadata: &CoreProviderMetadata,
    ) -> Result<ProviderClient, OidcError> {
        let redirect =
            RedirectUrl::new(callback_url(&self.context.settings, provider.org)).map_err(failed)?;
        let (id, secret) =
            (ClientId::new(provider.client_id.clone()), ClientSecret::new(provider.client_secret.clone()));
        let client = CoreClient::from_provider_metadata(metadata.clone(), id, Some(secret));
        let client = client.set_redirect_uri(redirect);
        let in_body = metadata.token_endpoint_auth_methods_supported().is_some_and(|methods| {
            methods.contains(&CoreClientAuthMethod::ClientSecretPost)
                && !methods.contains(&CoreClientAuthMethod::ClientSecretBasic)
        });
        Ok(if in_body { client.set_auth_type(AuthType::RequestBody) } else { client })
    }

    /// The address at the provider that begins a sign-in.
    ///
    /// # Errors
    /// The metadata of the provider cannot be read.
    pub async fn authorize_url(
        &self,
        provider: &Provider,
        values: &SignInValues,
        email: Option<&str>,
    ) -> Result<String, OidcError> {
        let metadata = self.discover(provider, METADATA_S).await?;
        let client = self.client(provider, &metadata)?;
        let (state, nonce) = (values.state.clone(), values.nonce.clone());
        let verifier = PkceCodeVerifier::new(values.verifier.clone());
        let mut request = client
            .authorize_url(
                CoreAuthenticationFlow::AuthorizationCode,
                move || CsrfToken::new(state),
                move || Nonce::new(nonce),
            )
            .add_scope(Scope::new("email".to_owned()))
            .add_scope(Scope::new("profile".to_owned()))
            .set_pkce_challenge(PkceCodeChallenge::from_code_verifier_sha256(&verifier));
        let supported = metadata.scopes_supported();
        for optional in ["offline_access", "groups"] {
            if supported.is_some_and(|scopes| scopes.iter().any(|scope| scope.as_str() == optional)) {
                request = request.add_scope(Scope::new(optional.to_owned()));
            }
        }
        // Google has a parameter in place of the scope for refresh tokens.
        if provider.issuer == "https://accounts.google.com" {
            request = request.add_extra_param("access_type", "offline").add_extra_param("prompt", "consent");
        }
        if let Some(email) = email {
            request = request.set_login_hint(LoginHint::new(email.to_owned()));
        }
        let (url, _, _) = request.url();
        if url.scheme() != "https" && provider.issuer.starts_with("https:") {
            return Err(failed("The authorization endpoint is not https."));
        }
        Ok(url.to_string())
    }

    /// Verifies an ID token.
    fn verify_id_token(
        &self,
        provider: &Provider,
        metadata: &CoreProviderMetadata,
        token: &CoreIdToken,
        nonce: &Nonce,
    ) -> Result<(), ClaimsVerificationError> {
        let now = chrono::DateTime::from_timestamp_micros(self.context.now().micros()).unwrap_or_default();
        let id = ClientId::new(provider.client_id.clone());
        let (issuer, keys) = (metadata.issuer().clone(), metadata.jwks().clone());
        let verifier = CoreIdTokenVerifier::new_public_client(id, issuer, keys)
            .set_allowed_algs(ALGORITHMS)
            .set_time_fn(move || now);
        token.claims(&verifier, nonce).map(|_| ())
    }

    /// Exchanges the code of a sign-in and verifies the ID token. Asks for the user information if the token has no
    /// address or no groups.
    ///
    /// # Errors
    /// The provider did not answer, or the token is not valid.
    pub async fn exchange(
        &self,
        provider: &Provider,
        code: String,
        values: SignInValues,
        group_claim: &str,
    ) -> Result<Verified, OidcError> {
        let metadata = self.discover(provider, METADATA_S).await?;
        let (client, http) = (self.client(provider, &metadata)?, self.http(provider));
        let request = client
            .exchange_code(AuthorizationCode::new(code))
            .map_err(failed)?
            .set_pkce_verifier(PkceCodeVerifier::new(values.verifier));
        let answer = request.request_async(&http).await.map_err(|error| failed(with_causes(&error)))?;
        let token = answer.id_token().ok_or_else(|| not_valid("The answer has no ID token."))?;
        let nonce = Nonce::new(values.nonce);
        let mut verified = self.verify_id_token(provider, &metadata, token, &nonce);
        if matches!(
            verified,
            Err(ClaimsVerificationError::SignatureVerification(SignatureVerificationError::NoMatchingKey))
        ) {
            // The provider has a new key.
            let metadata = self.discover(provider, KEYS_S).await?;
            verified = self.verify_id_token(provider, &metadata, token, &nonce);
        }
        verified.map_err(|error| not_valid(with_causes(&error)))?;
        let mut claims =
            read_claims(&token.to_string()).ok_or_else(|| not_valid("The claims cannot be read."))?;
        check_not_before(&claims, self.context.now().millis() / 1_000)?;
        if !claims.contains_key("email") || !claims.contains_key(group_claim) {
            let access = answer.access_token().secret().clone();
            let found = self.user_information(&http, &metadata, &access, &claims).await?;
            add_missing(&mut claims, found);
        }
        let refresh_token = answer.refresh_token().map(|token| token.secret().clone());
        Ok(Verified { claims, refresh_token })
    }

    /// The claims of the user information of the same subject; empty without its endpoint.
    async fn user_information(
        &self,
        http: &Http,
        metadata: &CoreProviderMetadata,
        access_token: &str,
        claims: &Map<String, Value>,
    ) -> Result<Map<String, Value>, OidcError> {
        let Some(endpoint) = metadata.userinfo_endpoint() else { return Ok(Map::new()) };
        let mut request = HttpRequest::new(Vec::new());
        *request.uri_mut() = endpoint.as_str().parse::<Uri>().map_err(failed)?;
        let bearer = HeaderValue::from_str(&format!("Bearer {access_token}")).map_err(failed)?;
        request.headers_mut().insert("authorization", bearer);
        let answer = http.call(request).await.map_err(failed)?;
        if !answer.status().is_success() {
            return Err(failed(format!("The user information has the status {}.", answer.status())));
        }
        let found: Map<String, Value> = serde_json::from_slice(answer.body()).map_err(failed)?;
        if found.get("sub") != claims.get("sub") {
            return Err(not_valid("The user information is of another subject."));
        }
        Ok(found)
    }

    /// Refreshes a grant. Returns the new refresh token, if the provider gave one.
    ///
    /// # Errors
    /// The provider ended the grant, or did not answer.
    pub async fn refresh(
        &self,
        provider: &Provider,
        refresh_token: String,
    ) -> Result<Option<String>, RefreshError> {
        let no_answer = |error: OidcError| RefreshError::NoAnswer(error.detail);
        let metadata = self.discover(provider, METADATA_S).await.map_err(no_answer)?;
        let client = self.client(provider, &metadata).map_err(no_answer)?;
        let (http, token) = (self.http(provider), RefreshToken::new(refresh_token));
        let request = client
            .exchange_refresh_token(&token)
            .map_err(|error| RefreshError::NoAnswer(error.to_string()))?;
        match request.request_async(&http).await {
            Ok(answer) => Ok(answer.refresh_token().map(|token| token.secret().clone())),
            Err(RequestTokenError::ServerResponse(answer))
                if matches!(answer.error(), CoreErrorResponseType::InvalidGrant) =>
            {
                Err(RefreshError::Ended)
            }
            Err(error) => Err(RefreshError::NoAnswer(with_causes(&error))),
        }
    }

    /// Verifies the type and the signature of a logout token and returns its claims.
    ///
    /// # Errors
    /// The token is malformed or of another type, or no key of the provider fits.
    pub async fn verify_logout_token(
        &self,
        provider: &Provider,
        token: &str,
    ) -> Result<Map<String, Value>, OidcError> {
        if token.len() > MAX_TOKEN_BYTES || token.split('.').count() != 3 {
            return Err(not_valid("The token is malformed."));
        }
        let metadata = self.discover(provider, METADATA_S).await?;
        let verified = match verify_signature(token, metadata.jwks()) {
            Some(verified) => verified,
            None => {
                let metadata = self.discover(provider, KEYS_S).await?;
                let found = verify_signature(token, metadata.jwks());
                found.unwrap_or_else(|| Err(not_valid("The provider has no such key.")))
            }
        };
        verified?;
        read_claims(token).ok_or_else(|| not_valid("The claims cannot be read."))
    }
}
