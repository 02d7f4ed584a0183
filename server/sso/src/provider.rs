//! The providers of organizations and of the operators, and their settings.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use berth_core::domains::first_check;
use berth_foundation::envelope::SealingContext;
use berth_foundation::{Caller, Change, Right};
use berth_oidc::{Provider, callback_url, check_issuer, is_shared_issuer};
use berth_store::sso::StoredProvider;
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError, Tx};
use berth_types::accounts::Role;
use berth_types::ids::OrgId;
use berth_types::operators::OperatorRole;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::MAX_AUDIT_CHANGE_BYTES;
use berth_types::scim::Provisioning;
use berth_types::sso::{
    GroupRole, Identities, MAX_DOMAIN_CHARS, MAX_DOMAINS, MAX_GROUPS, MAX_ISSUER_CHARS, MAX_SECRET_CHARS,
    MAX_TEXT_CHARS, PutSsoProvider, SsoFailure, SsoProvider, SsoSettings,
};
use futures::FutureExt;
use serde_json::json;

use super::ends::end_tokens;
use super::{Providers, Refused};
use berth_accounts::grants::{end_without_provider, publish_ended};
use berth_accounts::members::recheck_manage_right;

/// The claim with the groups of operators.
const OPERATOR_CLAIM: &str = "groups";
/// The longest wait for the metadata of a new issuer. A person waits for it.
const ISSUER_WAIT: Duration = Duration::from_secs(5);
/// Characters of the cause of a refused issuer.
const MAX_CAUSE_CHARS: usize = 300;

/// The rules of a provider.
#[derive(Clone)]
pub enum Rules {
    Org(Box<StoredProvider>),
    /// The group of the operators, and the role of a new one.
    Operators(String, OperatorRole),
}

impl Rules {
    pub fn group_claim(&self) -> &str {
        match self {
            Self::Org(row) => &row.group_claim,
            Self::Operators(..) => OPERATOR_CLAIM,
        }
    }
}

/// Runs `work` with the sealing context of the secret of an organization's client.
pub fn with_client_context<T>(org: OrgId, work: impl FnOnce(&SealingContext<'_>) -> T) -> T {
    let org = org.to_string();
    work(&SealingContext { kind: "sso-client", org: &org, name: "", version: 1 })
}

/// Checks a text of one line. `most` is in characters.
fn check_text(pointer: &str, text: &str, most: usize, errors: &mut Vec<FieldError>) {
    if text.trim().is_empty() {
        errors.push(FieldError::new(pointer, "This field is required."));
    } else if text.chars().count() > most {
        errors.push(FieldError::new(pointer, format!("Use at most {most} characters.")));
    } else if text.chars().any(char::is_control) {
        errors.push(FieldError::new(pointer, "Use printable characters only."));
    }
}

/// The domain in lower case; `None` unless it is the name of a host with a dot.
pub fn normal_domain(text: &str) -> Option<String> {
    let domain = text.trim().to_lowercase();
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    let fits = domain.len() <= MAX_DOMAIN_CHARS && domain.contains('.') && domain.split('.').all(label);
    fits.then_some(domain)
}

fn check_roles(roles: &[GroupRole], errors: &mut Vec<FieldError>) {
    if roles.len() > MAX_GROUPS {
        errors.push(FieldError::new("/roles", "Use at most 100 groups."));
        return;
    }
    let mut known: HashMap<&str, Role> = HashMap::new();
    for (index, entry) in roles.iter().enumerate() {
        let pointer = format!("/roles/{index}/group");
        check_text(&pointer, &entry.group, MAX_TEXT_CHARS, errors);
        let role = *known.entry(&entry.group).or_insert(entry.role);
        if role != entry.role {
            let detail = format!(
                "This group has the role {} already. Only one of the two can have an effect, so enter each group once.",
                role.name()
            );
            errors.push(FieldError::new(pointer, detail));
        }
    }
}

fn check_issuer_text(issuer: &str, errors: &mut Vec<FieldError>) {
    let detail = if issuer.contains(['?', '#', ' ']) {
        "Enter the issuer without query and fragment."
    } else if is_shared_issuer(issuer) {
        "common, organizations and consumers are not the issuer of one organization. Enter https://login.microsoftonline.com/TENANT/v2.0 with the id of your tenant."
    } else {
        return;
    };
    errors.push(FieldError::new("/issuer", detail));
}

fn check_domains(input: &[String], errors: &mut Vec<FieldError>) -> Vec<String> {
    if input.is_empty() || input.len() > MAX_DOMAINS {
        errors.push(FieldError::new("/domains", "Enter 1 to 20 domains."));
    }
    let mut domains = Vec::new();
    for (index, text) in input.iter().take(MAX_DOMAINS).enumerate() {
        // No e-mail address ends with a bare IP address.
        match normal_domain(text).filter(|domain| domain.parse::<IpAddr>().is_err()) {
            Some(domain) => domains.push(domain),
            None => {
                let detail = "Enter a domain, such as example.org, and no IP address.";
                errors.push(FieldError::new(format!("/domains/{index}"), detail));
            }
        }
    }
    domains.sort_unstable();
    domains.dedup();
    domains
}

/// The state of a provider in audit events, without the secret. A state that is too long for an event has the numbers of
/// its roles and domains only.
fn provider_state(row: &StoredProvider, domains: &[String]) -> String {
    let mut state = json!({
        "issuer": row.issuer, "client_id": row.client_id, "group_claim": row.group_claim, "roles": row.roles.0,
        "default_role": row.default_role.map(Role::name), "create_members": row.create_members,
        "required": row.required, "domains": domains,
    });
    if state.to_string().len() > MAX_AUDIT_CHANGE_BYTES
        && let Some(fields) = state.as_object_mut()
    {
        fields.insert("roles".to_owned(), json!(row.roles.0.len()));
        fields.insert("domains".to_owned(), json!(domains.len()));
    }
    state.to_string()
}

async fn list_domain_names(tx: &mut Tx<'_>, org: OrgId) -> Result<Vec<String>, StoreError> {
    let known = store::sso_domains::list(tx, org).await?;
    Ok(known.into_iter().map(|known| known.domain).collect())
}

fn no_provider() -> Problem {
    Problem::conflict(
        "sso.missing",
        "No single sign-on",
        "The organization has no single sign-on. Nothing was changed. Set the provider first.",
    )
}

impl Providers {
    /// The provider of an organization, or (`None`) of the operators, with its rules.
    ///
    /// # Errors
    /// There is no such provider, or its secret cannot be opened.
    pub(super) async fn get_provider(&self, org: Option<OrgId>) -> Result<(Provider, Rules), Refused> {
        let context = &self.context;
        let missing = || Refused::new(SsoFailure::NoProvider, "There is no provider.");
        let Some(org) = org else {
            let found = context.settings.operator_provider.clone().ok_or_else(missing)?;
            let provider = Provider {
                org: None,
                issuer: found.issuer,
                client_id: found.client_id,
                client_secret: found.client_secret,
            };
            return Ok((provider, Rules::Operators(found.group, found.role)));
        };
        let mut conn = context.db.read().await?;
        let row = store::sso::find_provider(&mut conn.tx(), org).await?.ok_or_else(missing)?;
        drop(conn);
        let keys = context.keys().map_err(|error| Refused::new(SsoFailure::Internal, error))?;
        let client_secret =
            with_client_context(org, |context| keys.open_sealed(context, &row.sealed_secret))?;
        let (issuer, client_id) = (row.issuer.clone(), row.client_id.clone());
        let provider = Provider { org: Some(org), issuer, client_id, client_secret };
        Ok((provider, Rules::Org(Box::new(row))))
    }

    pub(super) async fn read_settings(&self, tx: &mut Tx<'_>, org: OrgId) -> Result<SsoSettings, Problem> {
        let row = store::sso::find_provider(tx, org).await?;
        let domains = store::sso_domains::list(tx, org).await?;
        let slug = store::accounts::find_org(tx, org).await?.ok_or_else(Problem::not_found)?.slug;
        let portal = self.context.settings.public_url.trim_end_matches('/');
        Ok(SsoSettings {
            provider: row.map(|row| SsoProvider {
                issuer: row.issuer,
                client_id: row.client_id,
                group_claim: row.group_claim,
                roles: row.roles.0,
                default_role: row.default_role,
                create_members: row.create_members,
                required: row.required,
                domains,
            }),
            callback_url: callback_url(&self.context.settings, Some(org)),
            logout_url: format!("{portal}/api/v1/sso/{org}/logout"),
            start_url: format!("{portal}/api/v1/sso/start?org={slug}"),
            provisioning: Provisioning {
                base_url: format!("{portal}/api/v1/scim/{org}/v2"),
                members: store::scim::count_members(tx, org).await?,
                last_request_at: store::scim::find_last_request(tx, org).await?,
            },
        })
    }

    /// The single sign-on of an organization.
    ///
    /// # Errors
    /// 403 for others than owners.
    pub async fn settings(&self, caller: &Caller, org: OrgId) -> Result<SsoSettings, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut conn = self.context.db.read().await?;
        self.read_settings(&mut conn.tx(), org).await
    }

    /// Checks the body of a provider. Returns the domains.
    fn check_provider(&self, input: &PutSsoProvider) -> Result<Vec<String>, Problem> {
        let mut errors = Vec::new();
        check_text("/issuer", &input.issuer, MAX_ISSUER_CHARS, &mut errors);
        if errors.is_empty() {
            match self.transport.check_url(&input.issuer) {
                Ok(()) => check_issuer_text(&input.issuer, &mut errors),
                Err(detail) => errors.push(FieldError::new("/issuer", detail)),
            }
        }
        check_text("/client_id", &input.client_id, MAX_TEXT_CHARS, &mut errors);
        check_text("/group_claim", &input.group_claim, MAX_TEXT_CHARS, &mut errors);
        if let Some(secret) = &input.client_secret {
            check_text("/client_secret", secret, MAX_SECRET_CHARS, &mut errors);
        }
        check_roles(&input.roles, &mut errors);
        let domains = check_domains(&input.domains, &mut errors);
        if errors.is_empty() { Ok(domains) } else { Err(Problem::invalid(errors)) }
    }

    /// Reads the metadata of a new issuer. While the service of the stored issuer does not answer, its other settings can
    /// be changed.
    ///
    /// # Errors
    /// 422 with the cause, if the service does not answer as this issuer. 429 beyond the quota of the organization, or if
    /// too many others are read now.
    async fn check_new_issuer(&self, org: OrgId, issuer: &str) -> Result<(), Problem> {
        let mut conn = self.context.db.read().await?;
        let stored = store::sso::find_provider(&mut conn.tx(), org).await?;
        drop(conn);
        if stored.is_some_and(|row| row.issuer == issuer) {
            return Ok(());
        }
        if let Some(wait_s) = self.issuer_throttle.count_read(org) {
            let detail = "Your organization has tried many issuers. Nothing was changed.";
            return Err(Problem::throttled(detail, wait_s));
        }
        let Ok(_place) = self.issuer_reads.try_acquire() else {
            let detail = "The portal reads many issuers at the moment. Nothing was changed.";
            return Err(Problem::throttled(detail, ISSUER_WAIT.as_secs()));
        };
        let read = tokio::time::timeout(ISSUER_WAIT, check_issuer(self.transport.clone(), issuer)).await;
        let cause: String = match read {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.detail.chars().take(MAX_CAUSE_CHARS).collect(),
            Err(_) => format!("No answer within {} s", ISSUER_WAIT.as_secs()),
        };
        let detail = format!(
            "The service did not answer as this issuer: {}. Nothing was changed. Enter the issuer exactly as the service names it.",
            cause.trim_end_matches('.')
        );
        Err(Problem::invalid_field("/issuer", detail))
    }

    /// The sealed secret of a client: a new one, or the stored one of the same client.
    async fn seal_secret(&self, org: OrgId, input: &PutSsoProvider) -> Result<String, Problem> {
        let context = &self.context;
        let Some(secret) = &input.client_secret else {
            let mut conn = context.db.read().await?;
            let stored = store::sso::find_provider(&mut conn.tx(), org).await?;
            let same = |row: &StoredProvider| row.issuer == input.issuer && row.client_id == input.client_id;
            return stored
                .filter(same)
                .map(|row| row.sealed_secret)
                .ok_or_else(|| Problem::invalid_field("/client_secret", "Enter the secret of this client."));
        };
        let sealed = context.keys().and_then(|keys| {
            with_client_context(org, |context| keys.seal(context, secret)).map_err(|error| error.to_string())
        });
        sealed.map_err(|error| {
            tracing::error!(error, "the secret of a client cannot be sealed");
            Problem::internal()
        })
    }

    /// Sets the provider of an organization. Another issuer or client ends the sessions by the former one, and the API
    /// tokens that were made in them. A provider that becomes required ends the sessions by password of members with an
    /// address of a confirmed domain, except owners and operators.
    ///
    /// # Errors
    /// 403 for others than owners, and without a fresh proof. 422 for invalid fields, and for a new issuer that does not
    /// answer as itself.
    pub async fn put_provider(
        &self,
        caller: &Caller,
        org: OrgId,
        input: PutSsoProvider,
    ) -> Result<SsoSettings, Problem> {
        let context = &self.context;
        context.authorise(caller, org, Right::Manage).await?;
        context.check_person(caller)?;
        let domains = self.check_provider(&input)?;
        let sealed_secret = self.seal_secret(org, &input).await?;
        self.check_new_issuer(org, &input.issuer).await?;
        let is_new_secret = input.client_secret.is_some();
        let (by, now) = (caller.user.id, context.now());
        let row = StoredProvider {
            org_id: org,
            issuer: input.issuer,
            client_id: input.client_id,
            sealed_secret,
            group_claim: input.group_claim,
            roles: JsonColumn(input.roles),
            default_role: input.default_role,
            create_members: input.create_members,
            required: input.required,
            updated_at: now,
        };
        let secret = if is_new_secret { "; new client secret" } else { "" };
        let detail = format!("{}; domains: {}{secret}", row.issuer, domains.join(", "));
        let event = context.audit_event(caller, "sso.provider_set", org.to_string(), detail);
        let this = self.clone();
        let done = context.db.try_write(move |tx| {
            let (this, row, domains, event) = (this.clone(), row.clone(), domains.clone(), event.clone());
            async move {
                recheck_manage_right(tx, org, by).await?;
                let before = store::sso::find_provider(tx, org).await?;
                let is_same = |before: &StoredProvider| {
                    before.issuer == row.issuer && before.client_id == row.client_id
                };
                store::sso::put_provider(tx, &row).await?;
                let known = list_domain_names(tx, org).await?;
                for domain in known.iter().filter(|known| !domains.contains(known)) {
                    store::sso::delete_domain(tx, org, domain).await?;
                }
                for domain in &domains {
                    let proof = this.new_proof();
                    store::sso_domains::add(tx, org, (domain, &proof), (now, first_check(now))).await?;
                }
                let (mut ended, mut tokens) = (Vec::new(), Vec::new());
                if before.as_ref().is_some_and(|before| !is_same(before)) {
                    // The new client refreshes no grant of the former one.
                    let listed = store::sso::list_org_tokens(tx, org).await?;
                    tokens = end_tokens(tx, listed).await?;
                    ended = store::sso::end_org_sessions(tx, org).await?;
                }
                ended.extend(end_without_provider(tx, org).await?);
                let before = before.map(|before| provider_state(&before, &known));
                let event = event.with_change(before, Some(provider_state(&row, &domains)));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok((ended, tokens))
            }
            .boxed()
        });
        let (ended, tokens) = done.await?;
        self.publish_ended(&ended);
        tokens.into_iter().for_each(|token| context.publish(Change::TokenRevoked(token)));
        let mut conn = context.db.read().await?;
        self.read_settings(&mut conn.tx(), org).await
    }

    /// Removes the provider of an organization, with its domains and its sessions.
    ///
    /// # Errors
    /// 403 for others than owners, and without a fresh proof. 409 without a provider.
    pub async fn delete_provider(&self, caller: &Caller, org: OrgId) -> Result<(), Problem> {
        let context = &self.context;
        context.authorise(caller, org, Right::Manage).await?;
        context.check_person(caller)?;
        let by = caller.user.id;
        let event = context.audit_event(caller, "sso.provider_removed", org.to_string(), String::new());
        let done = context.db.try_write(move |tx| {
            let event = event.clone();
            async move {
                recheck_manage_right(tx, org, by).await?;
                let before = store::sso::find_provider(tx, org).await?.ok_or_else(no_provider)?;
                let domains = list_domain_names(tx, org).await?;
                store::sso::delete_provider(tx, org).await?;
                let ended = store::sso::end_org_sessions(tx, org).await?;
                let event = event.with_change(Some(provider_state(&before, &domains)), None);
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(ended)
            }
            .boxed()
        });
        self.publish_ended(&done.await?);
        Ok(())
    }

    /// The identities of the caller.
    ///
    /// # Errors
    /// 403 for a token.
    pub async fn identities(&self, caller: &Caller) -> Result<Identities, Problem> {
        caller.own_session(&self.context)?;
        let mut conn = self.context.db.read().await?;
        let identities = store::sso::list_identities(&mut conn.tx(), caller.user.id).await?;
        Ok(Identities { identities })
    }

    /// Ends the streams of sessions that are deleted already.
    pub(super) fn publish_ended(&self, hashes: &[String]) {
        publish_ended(&self.context, hashes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_is_the_name_of_a_host() {
        assert_eq!(normal_domain(" Example.ORG ").as_deref(), Some("example.org"));
        assert_eq!(normal_domain("a-1.b.example").as_deref(), Some("a-1.b.example"));
        let long = format!("{}.org", "x".repeat(64));
        for bad in
            ["", "org", ".org", "a..org", "-a.org", "a-.org", "a b.org", "a@b.org", "é.org", "a_b.org", &long]
        {
            assert_eq!(normal_domain(bad), None, "{bad}");
        }
    }

    #[test]
    fn an_address_is_no_domain_of_mail() {
        let input = ["b.example", "127.0.0.1", "A.example", "a.example"].map(str::to_owned);
        let mut errors = Vec::new();
        assert_eq!(check_domains(&input, &mut errors), ["a.example", "b.example"]);
        let pointers: Vec<String> = errors.into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/domains/1"]);
    }

    #[test]
    fn a_group_has_one_role() {
        let entry = |group: &str, role| GroupRole { group: group.to_owned(), role };
        let pointers = |roles: &[GroupRole]| {
            let mut errors = Vec::new();
            check_roles(roles, &mut errors);
            errors.into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        let same = [entry("a", Role::Owner), entry("A", Role::Viewer), entry("a", Role::Owner)];
        assert_eq!(pointers(&same), Vec::<String>::new());
        let both = [entry("a", Role::Owner), entry("b", Role::Owner), entry("a", Role::Viewer)];
        assert_eq!(pointers(&both), ["/roles/2/group"]);
    }
}
