//! The two steps of a sign-in: the way to the provider, and the return.
//!
//! The state between the steps is in a sealed cookie, so strangers cannot fill a table with it, and the return works
//! in the same browser only.

use std::net::IpAddr;

use berth_core::admission::is_email;
use berth_foundation::credentials::{fingerprint, new_opaque};
use berth_foundation::envelope::SealingContext;
use berth_foundation::repeated::MINUTE_MS;
use berth_oidc::{ClaimedPerson, Provider, SignInValues, domain_of};
use berth_store as store;
use berth_types::factors::SignInChallenge;
use berth_types::ids::OrgId;
use berth_types::sso::SsoFailure;
use berth_types::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Refused, SingleSignOn};
use berth_accounts::accounts::SignInOrigin;
use berth_accounts::factors::Pending;
use berth_accounts::grants::NewGrant;

/// Seconds between the two steps of a sign-in.
pub const FLOW_S: i64 = 600;
/// Bytes of a code and of a cookie.
const MAX_BYTES: usize = 4_096;
/// Bytes of a slug.
pub const MAX_SLUG_BYTES: usize = 40;

const FLOW: SealingContext<'_> = SealingContext { kind: "sso-flow", org: "", name: "", version: 1 };

/// The choice of the provider.
#[derive(Debug, Default)]
pub struct Start {
    pub email: Option<String>,
    /// The slug of an organization.
    pub org: Option<String>,
}

/// The parameters of the return from a provider.
#[derive(Debug, Default)]
pub struct Return {
    pub code: Option<String>,
    pub state: Option<String>,
    pub error: Option<String>,
    /// The issuer (RFC 9207).
    pub iss: Option<String>,
}

/// The first step of a sign-in.
pub struct Begun {
    /// The address at the provider.
    pub location: String,
    /// The value of the cookie of the second step.
    pub cookie: String,
}

/// The result of the second step.
pub enum Returned {
    /// The value of the session cookie.
    Session(String),
    /// The account needs its second factor.
    Challenge(SignInChallenge),
}

/// The state between the two steps.
#[derive(Serialize, Deserialize)]
struct Flow {
    org: Option<OrgId>,
    state: String,
    nonce: String,
    verifier: String,
    expires_at: Timestamp,
}

fn expired(detail: &str) -> Refused {
    Refused::new(SsoFailure::Expired, detail)
}

/// Runs `work` with the sealing context of the refresh token of an identity.
pub fn with_refresh_context<T>(
    issuer: &str,
    subject: &str,
    work: impl FnOnce(&SealingContext<'_>) -> T,
) -> T {
    work(&SealingContext { kind: "sso-refresh", org: issuer, name: subject, version: 1 })
}

impl SingleSignOn {
    /// Counts a step of a sign-in.
    fn count_step(&self, address: Option<IpAddr>) -> Result<(), Refused> {
        match self.throttle.count_step(address) {
            None => Ok(()),
            Some(_) => Err(Refused::new(SsoFailure::Throttled, "There were too many sign-ins.")),
        }
    }

    /// The organization of a sign-in; `None` for the operators.
    async fn find_org(&self, start: &Start) -> Result<Option<OrgId>, Refused> {
        let context = &self.providers.context;
        let missing = || Refused::new(SsoFailure::NoProvider, "There is no such organization.");
        let mut conn = context.db.read().await?;
        if let Some(slug) = start.org.as_deref().filter(|slug| !slug.is_empty()) {
            if slug.len() > MAX_SLUG_BYTES {
                return Err(missing());
            }
            let org = store::sso::find_org_by_slug(&mut conn.tx(), slug).await?;
            return org.map(Some).ok_or_else(missing);
        }
        let Some(email) = start.email.as_deref().map(str::trim).filter(|email| is_email(email)) else {
            return Ok(None);
        };
        Ok(store::sso::find_domain_org(&mut conn.tx(), &domain_of(email)).await?)
    }

    /// Writes a refusal to the audit log of an organization, or (`None`) of the portal. `step` is a part of its cause.
    async fn record_refused(&self, step: &str, org: Option<OrgId>, refused: &Refused) {
        let name = refused.failure.name();
        let cause = format!("{step} {name} {}", org.map_or_else(String::new, |org: OrgId| org.to_string()));
        let detail: String = format!("{name}: {}", refused.detail).chars().take(300).collect();
        let context = &self.providers.context;
        let event = context.visitor_event("sso.refused", "unknown".to_owned(), detail);
        context.record_repeated(&cause, MINUTE_MS, org, event).await;
    }

    /// Begins a sign-in at the provider of an organization, or of the operators.
    ///
    /// # Errors
    /// No provider is set, or it does not answer as expected. The audit log has the second cause.
    pub async fn start(&self, start: &Start, address: Option<IpAddr>) -> Result<Begun, Refused> {
        self.count_step(address)?;
        let org = self.find_org(start).await?;
        let done = self.try_start(start, org).await;
        if let Err(refused) = &done
            && matches!(refused.failure, SsoFailure::Provider | SsoFailure::Internal)
        {
            self.record_refused("sso start", org, refused).await;
        }
        done
    }

    async fn try_start(&self, start: &Start, org: Option<OrgId>) -> Result<Begun, Refused> {
        let context = &self.providers.context;
        let (provider, _) = self.providers.get_provider(org).await?;
        let values = SignInValues {
            state: context.random(new_opaque),
            nonce: context.random(new_opaque),
            verifier: context.random(new_opaque),
        };
        let email = start.email.as_deref().map(str::trim).filter(|email| is_email(email));
        let location = self.protocol.authorize_url(&provider, &values, email).await?;
        let SignInValues { state, nonce, verifier } = values;
        let flow = Flow { org, state, nonce, verifier, expires_at: context.now().plus_seconds(FLOW_S) };
        let text = serde_json::to_string(&flow).map_err(|error| Refused::new(SsoFailure::Internal, error))?;
        let keys = context.keys().map_err(|error| Refused::new(SsoFailure::Internal, error))?;
        Ok(Begun { location, cookie: keys.seal(&FLOW, &text)? })
    }

    /// Opens the state of the first step, once.
    fn open_flow(&self, cookie: Option<&str>, state: Option<&str>) -> Result<Flow, Refused> {
        let context = &self.providers.context;
        let cookie = cookie.filter(|cookie| cookie.len() <= MAX_BYTES);
        let cookie = cookie.ok_or_else(|| expired("The browser has no cookie of the first step."))?;
        let keys = context.keys().map_err(|error| Refused::new(SsoFailure::Internal, error))?;
        let text = keys.open_sealed(&FLOW, cookie).map_err(|_| expired("The cookie is not valid."))?;
        let flow: Flow = serde_json::from_str(&text).map_err(|_| expired("The cookie is not valid."))?;
        if flow.expires_at <= context.now() {
            return Err(expired("The first step is more than ten minutes old."));
        }
        if state != Some(flow.state.as_str()) {
            return Err(expired("The state is of another sign-in."));
        }
        if !self.states.claim(fingerprint(&flow.state)) {
            return Err(expired("The state was used before."));
        }
        Ok(flow)
    }

    /// Completes a sign-in after the return from the provider to the address of `at`, an organization or (`None`) the
    /// operators.
    ///
    /// # Errors
    /// The state, the provider's answer or the rules refuse the sign-in. The refusal is in the audit log.
    pub async fn complete(
        &self,
        at: Option<OrgId>,
        returned: Return,
        cookie: Option<&str>,
        from: SignInOrigin,
    ) -> Result<Returned, Refused> {
        let mut org = None;
        let done = self.try_complete(at, returned, cookie, from, &mut org).await;
        if let Err(refused) = &done {
            self.record_refused("sso", org, refused).await;
        }
        done
    }

    async fn try_complete(
        &self,
        at: Option<OrgId>,
        returned: Return,
        cookie: Option<&str>,
        from: SignInOrigin,
        org: &mut Option<OrgId>,
    ) -> Result<Returned, Refused> {
        self.count_step(from.address)?;
        let flow = self.open_flow(cookie, returned.state.as_deref())?;
        *org = flow.org;
        if flow.org != at {
            // The code is of the provider of `at`: no other provider may receive it.
            return Err(Refused::new(
                SsoFailure::Token,
                "The answer came to the address of another provider.",
            ));
        }
        if let Some(error) = returned.error {
            return Err(Refused::new(SsoFailure::Denied, format!("The provider answered {error:?}.")));
        }
        let code = returned.code.filter(|code| !code.is_empty() && code.len() <= MAX_BYTES);
        let code = code.ok_or_else(|| Refused::new(SsoFailure::Denied, "The answer has no code."))?;
        let (provider, rules) = self.providers.get_provider(flow.org).await?;
        if returned.iss.is_some_and(|iss| iss != provider.issuer) {
            return Err(Refused::new(SsoFailure::Token, "The answer is of another issuer."));
        }
        let Flow { state, nonce, verifier, .. } = flow;
        let values = SignInValues { state, nonce, verifier };
        let verified = self.protocol.exchange(&provider, code, values, rules.group_claim()).await?;
        let person = ClaimedPerson::read(&verified.claims, rules.group_claim())?;
        let grant = self.new_grant(&provider, &person, verified.refresh_token)?;
        let admitted = match self.admit(&provider, &rules, person).await {
            Ok(admitted) => admitted,
            Err(refused) => {
                if refused.failure == SsoFailure::NoRole && grant.org.is_none() {
                    self.end_former_operator(grant).await?;
                }
                return Err(refused);
            }
        };
        let has_factor = grant.second_factor;
        let pending = Pending {
            user: admitted.user.id,
            email: admitted.user.email,
            password_hash: admitted.password_hash,
            grant: Some(grant),
            passkey: None,
        };
        // A person with a second factor needs it, unless the provider verified one.
        if !has_factor && let Some(challenge) = self.accounts.factors.open_challenge(pending.clone()).await? {
            return Ok(Returned::Challenge(challenge));
        }
        let (cookie, _) = self.accounts.finish_sign_in(pending, None, from).await?;
        Ok(Returned::Session(cookie))
    }

    fn new_grant(
        &self,
        provider: &Provider,
        person: &ClaimedPerson,
        refresh_token: Option<String>,
    ) -> Result<NewGrant, Refused> {
        let keys =
            self.providers.context.keys().map_err(|error| Refused::new(SsoFailure::Internal, error))?;
        let seal = |token: String| {
            with_refresh_context(&provider.issuer, &person.subject, |context| keys.seal(context, &token))
        };
        Ok(NewGrant {
            org: provider.org,
            issuer: provider.issuer.clone(),
            client_id: provider.client_id.clone(),
            subject: person.subject.clone(),
            sid: person.sid.clone(),
            second_factor: person.second_factor,
            sealed_refresh: refresh_token.map(seal).transpose()?,
        })
    }
}
