//! The account and the membership of a person with a verified identity.
//!
//! Each step decides before its first write, so a refusal changes nothing.

use berth_foundation::credentials::fingerprint;
use berth_foundation::{Change, Context};
use berth_oidc::{ClaimedPerson, Provider, domain_of, role_of_groups};
use berth_store::sso::StoredProvider;
use berth_store::{self as store, StoreError, Tx};
use berth_types::accounts::User;
use berth_types::ids::{OrgId, UserId};
use berth_types::operators::OperatorRole;
use berth_types::quotas::AuditEvent;
use berth_types::sso::SsoFailure;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::membership::{NO_PASSWORD, list_group_names, put_member};
use super::provider::Rules;
use super::{Refused, SingleSignOn};
use berth_accounts::grants::end_without_provider;

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
    context: Context,
    issuer: String,
    person: ClaimedPerson,
    /// The id of the account, if it is new.
    new_id: UserId,
    now: Timestamp,
    /// Events without actor, action and detail: one for each possible act.
    blank: [AuditEvent; 3],
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
            self.record(tx, 2, (None, &user), "email.verified", String::new()).await?;
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
        let (mut before, mut groups) = (None, person.groups.clone());
        if let Account::Known { user, password_hash, is_linked } = &account {
            if user.operator {
                return refused(SsoFailure::Operator, "The account is an operator's.");
            }
            before = store::accounts::find_role(tx, org, user.id).await?;
            if before.is_none() && store::scim::is_inactive(tx, org, user.id).await? {
                return refused(SsoFailure::NotMember, "The provider deactivated the person by SCIM.");
            }
            groups.extend(list_group_names(tx, org, user.id).await?);
            if !is_linked
                && before.is_none()
                && (password_hash != NO_PASSWORD || store::factors::has_factor(tx, user.id).await?)
            {
                let detail = "The account has a password or a second factor, and is no member.";
                return refused(SsoFailure::AccountExists, detail);
            }
            // The domain of a linked account may belong to another organization by now.
            let domain = domain_of(&user.email);
            if store::sso::find_domain_org(tx, &domain).await? != Some(org) {
                return refused(SsoFailure::Domain, "The domain of the linked account is not confirmed.");
            }
        }
        let role = role_of_groups(&groups, &rules.roles, rules.default_role);
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
        let is_changed = match self.event(1, &user, "", String::new()) {
            Some(event) => {
                let roles = (before, role);
                put_member(tx, &self.context, (org, &user), roles, (event, "by single sign-on")).await?
            }
            None => false,
        };
        Ok(Admitted { user, password_hash, changed: is_changed.then_some(org) })
    }

    /// Admits an operator. A new one gets `role`; a known one keeps the own role.
    async fn admit_operator(&self, tx: &mut Tx<'_>, group: &str, role: OperatorRole) -> Decision<Admitted> {
        if !self.person.groups.iter().any(|own| own == group) {
            return refused(SsoFailure::NoRole, "The person is not in the group of the operators.");
        }
        let account = self.find_account(tx, true).await?;
        if let Account::Known { user, .. } = &account
            && !user.operator
        {
            return refused(SsoFailure::AccountExists, "The account with the address is no operator's.");
        }
        // The deletion of the account does not undo the removal of an operator.
        if let Account::New(user) = &account
            && store::operators::is_former(tx, &fingerprint(&user.email)).await?
        {
            return refused(SsoFailure::NoRole, "The person was removed from the operators.");
        }
        let is_new = matches!(account, Account::New(_));
        let (user, password_hash) = self.put_account(tx, None, account).await?;
        if is_new {
            store::operators::put_role(tx, user.id, Some(role)).await?;
            let detail = format!("{}: {}, by single sign-on", user.email, role.name());
            self.record(tx, 1, (None, &user), "operator.added", detail).await?;
        }
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
        let context = &self.providers.context;
        let now = context.now();
        let blank = std::array::from_fn(|_| context.visitor_event("", String::new(), String::new()));
        let candidate = Candidate {
            context: context.clone(),
            issuer: provider.issuer.clone(),
            person,
            new_id: context.new_id(now),
            now,
            blank,
        };
        let rules = rules.clone();
        let done = context.db.write(move |tx| {
            let (candidate, rules) = (candidate.clone(), rules.clone());
            async move {
                let decided = match &rules {
                    Rules::Org(row) => candidate.admit(tx, row).await,
                    Rules::Operators(group, role) => candidate.admit_operator(tx, group, *role).await,
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
