//! The account and the membership of a person with a verified identity.
//!
//! Each step decides before its first write, so a refusal changes nothing.

use berth_foundation::Change;
use berth_oidc::{ClaimedPerson, Provider, domain_of, role_of_groups};
use berth_store::sso::StoredProvider;
use berth_store::{self as store, StoreError, Tx};
use berth_types::accounts::{Role, User};
use berth_types::ids::{OrgId, UserId};
use berth_types::quotas::AuditEvent;
use berth_types::sso::SsoFailure;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::provider::Rules;
use super::{Refused, SingleSignOn};
use crate::grants::end_without_provider;
use crate::members::{end_tokens_and_invitations, role_state};
use crate::membership_rules::keeps_an_owner;

/// The stored hash of an account without a password.
const NO_PASSWORD: &str = "";

/// An admitted person.
#[derive(Clone)]
pub struct Admitted {
    pub user: User,
    pub password_hash: String,
    /// The organization with another role or membership than before.
    changed: Option<OrgId>,
}

/// The end of an admission without a person.
enum Halt {
    Refused(Refused),
    Store(StoreError),
}

impl From<StoreError> for Halt {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

type Decision<T> = Result<T, Halt>;

fn refused<T>(failure: SsoFailure, detail: &str) -> Decision<T> {
    Err(Halt::Refused(Refused::new(failure, detail)))
}

/// The identity of a sign-in, and what its admission needs.
#[derive(Clone)]
struct Candidate {
    issuer: String,
    person: ClaimedPerson,
    /// The id of the account, if it is new.
    new_id: UserId,
    now: Timestamp,
    /// Events without actor, action and detail: one for each possible act.
    blank: [AuditEvent; 4],
}

/// The account of a candidate before the sign-in.
enum Account {
    Known { user: User, password_hash: String, is_linked: bool },
    New(User),
}

impl Candidate {
    /// An event of the candidate. `slot` is its place in `blank`.
    fn event(&self, slot: usize, user: &User, action: &str, detail: String) -> Option<AuditEvent> {
        let mut event = self.blank.get(slot)?.clone();
        (event.action, event.detail) = (action.to_owned(), detail);
        (event.actor, event.subject) = (user.name.clone(), user.id.to_string());
        event.context.actor_id = Some(user.id);
        Some(event)
    }

    /// Writes an event of the candidate. `slot` is its place in `blank`.
    async fn record(
        &self,
        tx: &mut Tx<'_>,
        slot: usize,
        (org, user): (Option<OrgId>, &User),
        action: &str,
        detail: String,
    ) -> Result<(), StoreError> {
        let Some(event) = self.event(slot, user, action, detail) else { return Ok(()) };
        store::quotas::insert_audit(tx, org, &event).await
    }

    /// Finds the account by the identity, or else by the address. An address can get another person at the provider, so
    /// an account with an identity there is not linked with a second one.
    async fn find_account(&self, tx: &mut Tx<'_>, operator: bool) -> Decision<Account> {
        let email = &self.person.email;
        let linked = store::sso::find_identity(tx, &self.issuer, &self.person.subject).await?;
        let by_address = store::accounts::find_login(tx, email).await?.map(|(user, _)| user);
        let Some(id) = linked.or(by_address) else {
            let (id, name) = (self.new_id, self.person.name.clone());
            return Ok(Account::New(User { id, email: email.clone(), name, operator }));
        };
        let user = store::accounts::find_user(tx, id).await?.ok_or(StoreError::Unknown)?;
        if store::people::find_disabled_reason(tx, id).await?.is_some() {
            return refused(SsoFailure::Disabled, "The account is disabled.");
        }
        if linked.is_none() && store::sso::has_identity(tx, &self.issuer, id).await? {
            return refused(SsoFailure::AccountExists, "The account has another identity at the provider.");
        }
        let hash = store::people::find_password(tx, id).await?.ok_or(StoreError::Unknown)?;
        Ok(Account::Known { user, password_hash: hash, is_linked: linked.is_some() })
    }

    /// Creates the account, or links the identity with the known one.
    async fn put_account(
        &self,
        tx: &mut Tx<'_>,
        org: Option<OrgId>,
        account: Account,
    ) -> Result<(User, String), StoreError> {
        let (user, password_hash, is_proved) = match account {
            Account::New(user) => {
                store::accounts::insert_user(tx, &user, NO_PASSWORD, self.now).await?;
                let detail = format!("By single sign-on of {}", self.issuer);
                self.record(tx, 0, (org, &user), "user.signed_up", detail).await?;
                (user, NO_PASSWORD.to_owned(), true)
            }
            Account::Known { user, password_hash, is_linked } => {
                if !is_linked {
                    let detail = format!("{}: {}", user.email, self.issuer);
                    self.record(tx, 0, (org, &user), "sso.linked", detail).await?;
                }
                let is_proved = user.email == self.person.email
                    && store::people::verify_email(tx, user.id, self.now).await?;
                (user, password_hash, is_proved)
            }
        };
        store::sso::put_identity(tx, &self.issuer, &self.person.subject, user.id, self.now).await?;
        if is_proved {
            self.record(tx, 3, (None, &user), "email.verified", String::new()).await?;
        }
        Ok((user, password_hash))
    }

    /// Admits a person by the rules of an organization.
    async fn admit(&self, tx: &mut Tx<'_>, rules: &StoredProvider) -> Decision<Admitted> {
        let (org, person) = (rules.org_id, &self.person);
        if store::sso::find_domain_org(tx, &person.domain).await? != Some(org) {
            return refused(SsoFailure::Domain, "The domain of the address is not confirmed.");
        }
        let account = self.find_account(tx, false).await?;
        let mut before = None;
        if let Account::Known { user, password_hash, is_linked } = &account {
            if user.operator {
                return refused(SsoFailure::Operator, "The account is an operator's.");
            }
            before = store::accounts::find_role(tx, org, user.id).await?;
            if !is_linked && before.is_none() && password_hash != NO_PASSWORD {
                return refused(SsoFailure::AccountExists, "The account has a password and is no member.");
            }
            // The domain of a linked account may belong to another organization by now.
            let domain = domain_of(&user.email);
            if store::sso::find_domain_org(tx, &domain).await? != Some(org) {
                return refused(SsoFailure::Domain, "The domain of the linked account is not confirmed.");
            }
        }
        let role = role_of_groups(&person.groups, &rules.roles, rules.default_role);
        match (before, role) {
            (None, _) if !rules.create_members => {
                return refused(SsoFailure::NotMember, "First sign-ins create no members.");
            }
            (None, None) => return refused(SsoFailure::NoRole, "No group has a role."),
            (Some(_), None) if !rules.roles.is_empty() => {
                return refused(SsoFailure::NoRole, "No group has a role.");
            }
            _ => {}
        }
        let (user, password_hash) = self.put_account(tx, Some(org), account).await?;
        // Without listed groups the role of a member stays.
        let role = if before.is_some() && rules.roles.is_empty() { before } else { role };
        let is_changed = self.put_member(tx, org, &user, (before, role)).await?;
        Ok(Admitted { user, password_hash, changed: is_changed.then_some(org) })
    }

    /// Makes a member, or changes the role of one. The only owner stays. Returns true after a change.
    async fn put_member(
        &self,
        tx: &mut Tx<'_>,
        org: OrgId,
        user: &User,
        (before, role): (Option<Role>, Option<Role>),
    ) -> Result<bool, StoreError> {
        let Some(role) = role.filter(|role| before != Some(*role)) else { return Ok(false) };
        let Some(before) = before else {
            store::members::join(tx, org, user.id, role, self.now).await?;
            let detail = format!("{}: {}, by single sign-on", user.email, role.name());
            self.record(tx, 1, (Some(org), user), "member.joined", detail).await?;
            return Ok(true);
        };
        let owners = store::members::count_owners(tx, org).await?;
        if !keeps_an_owner(before, Some(role), owners) {
            return Ok(false);
        }
        store::members::set_role(tx, org, user.id, role).await?;
        let ended = end_tokens_and_invitations(tx, org, user.id, Some(role)).await?;
        let detail = format!(
            "{}: {}, before {}, by the groups of the provider{ended}",
            user.email,
            role.name(),
            before.name()
        );
        if let Some(event) = self.event(2, user, "member.role_changed", detail) {
            let event = event.with_change(role_state(before), role_state(role));
            store::quotas::insert_audit(tx, Some(org), &event).await?;
        }
        Ok(true)
    }

    /// Admits an operator.
    async fn admit_operator(&self, tx: &mut Tx<'_>, group: &str) -> Decision<Admitted> {
        if !self.person.groups.iter().any(|own| own == group) {
            return refused(SsoFailure::NoRole, "The person is not in the group of the operators.");
        }
        let account = self.find_account(tx, true).await?;
        if let Account::Known { user, .. } = &account
            && !user.operator
        {
            return refused(SsoFailure::AccountExists, "The account with the address is no operator's.");
        }
        let (user, password_hash) = self.put_account(tx, None, account).await?;
        Ok(Admitted { user, password_hash, changed: None })
    }
}

impl SingleSignOn {
    /// Admits a person with a verified identity: finds, links or creates the account, and sets the role.
    ///
    /// # Errors
    /// The rules of the provider refuse the person.
    pub(super) async fn admit(
        &self,
        provider: &Provider,
        rules: &Rules,
        person: ClaimedPerson,
    ) -> Result<Admitted, Refused> {
        let context = &self.accounts.context;
        let now = context.now();
        let blank = std::array::from_fn(|_| context.visitor_event("", String::new(), String::new()));
        let candidate =
            Candidate { issuer: provider.issuer.clone(), person, new_id: context.new_id(now), now, blank };
        let rules = rules.clone();
        let done = context.db.write(move |tx| {
            let (candidate, rules) = (candidate.clone(), rules.clone());
            async move {
                let decided = match &rules {
                    Rules::Org(row) => candidate.admit(tx, row).await,
                    Rules::Operators(group) => candidate.admit_operator(tx, group).await,
                };
                match decided {
                    Ok(admitted) => {
                        // A new member, or a former owner, has no password by the rule of the organization.
                        let ended = match admitted.changed {
                            Some(org) => end_without_provider(tx, org).await?,
                            None => Vec::new(),
                        };
                        Ok(Ok((admitted, ended)))
                    }
                    Err(Halt::Refused(refused)) => Ok(Err(refused)),
                    Err(Halt::Store(error)) => Err(error),
                }
            }
            .boxed()
        });
        let (admitted, ended) = done.await??;
        self.providers.publish_ended(&ended);
        if let Some(org) = admitted.changed {
            context.publish(Change::Member { org, user: admitted.user.id });
        }
        Ok(admitted)
    }
}
