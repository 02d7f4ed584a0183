//! The classes of promises, which operators offer.

use berth_foundation::{Caller, Change, Gate, OperatorAct, Right, idempotency, recheck_operator_right};
use berth_service_types::promises::{NewPromise, PatchPromise, Promise};
use berth_store::services::promises::{self as rows, StoredPromise};
use berth_store::types::JsonColumn;
use berth_store::{self as store, Tx, WriteError};
use berth_types::Page;
use berth_types::change_requests::{ChangeAction, Outcome};
use berth_types::ids::{ChangeRequestId, OrgId, PromiseId, ServiceId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::quotas::AuditEvent;
use futures::FutureExt;

use super::Promises;
use super::terms::check_terms;
use crate::checks::is_name;

/// Offered classes of the portal.
const MAX_PROMISES: i64 = 100;
/// Services in the event of an organization about the end of a class.
const MAX_NAMED: usize = 20;

/// A class for operators, with the number of its services.
fn wire(row: StoredPromise) -> Promise {
    let services = u64::try_from(row.services).ok();
    Promise { services, ..offered(row) }
}

/// A class for organizations.
fn offered(row: StoredPromise) -> Promise {
    let StoredPromise { id, name, terms, created_at, created_by, .. } = row;
    Promise { id, name, terms: terms.0, created_at, created_by, services: None }
}

/// The name and the terms for the audit log.
fn text(row: &StoredPromise) -> Option<String> {
    serde_json::to_string(&NewPromise { name: row.name.clone(), terms: row.terms.0 }).ok()
}

/// A new or changed class as an act of an operator. `before` is the present one.
fn act(before: Option<&StoredPromise>, after: &StoredPromise) -> OperatorAct {
    let terms = |row: &StoredPromise| serde_json::to_string(&row.terms.0).unwrap_or_default();
    let (action, target, detail) = match before {
        None => (ChangeAction::AddPromise, after.name.clone(), format!("{}: {}", after.name, terms(after))),
        Some(before) => {
            let name = &before.name;
            let detail = format!("{name}: from {}; to {}, named {}", terms(before), terms(after), after.name);
            (ChangeAction::ChangePromise, before.id.to_string(), detail)
        }
    };
    OperatorAct { action, org: None, target, amount_micros: None, reason: String::new(), detail }
}

fn check_name(name: &str, errors: &mut Vec<FieldError>) {
    if !is_name(name) {
        let detail = "Use 1 to 40 lower-case letters, digits and hyphens, with a letter first.";
        errors.push(FieldError::new("/name", detail));
    }
}

/// The end of a class for the audit log of each organization, with the first of its services that had it. The services come
/// by organization.
fn ended_texts(class: &str, services: &[(OrgId, ServiceId, String)]) -> Vec<(OrgId, String)> {
    let own = services.chunk_by(|(org, ..), (next, ..)| org == next);
    own.filter_map(|own| {
        let (org, ..) = own.first()?;
        let more = own.len().saturating_sub(MAX_NAMED);
        let named: Vec<&str> = own.iter().take(MAX_NAMED).map(|(.., name)| name.as_str()).collect();
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        Some((*org, format!("{class}: no longer the promise of {}{rest}", named.join(", "))))
    })
    .collect()
}

/// Refuses the name of another offered class.
async fn check_free(tx: &mut Tx<'_>, row: &StoredPromise) -> Result<(), WriteError> {
    let found = rows::find_by_name(tx, &row.name).await?;
    if found.is_some_and(|other| other.id != row.id) {
        let detail = format!("The promise {} already exists. Choose another name.", row.name);
        return Err(Problem::conflict("promise.exists", "Name in use", detail).into());
    }
    Ok(())
}

impl Promises {
    async fn show_class(&self, id: PromiseId) -> Result<Promise, Problem> {
        let mut conn = self.context.db.read().await?;
        let found = rows::find(&mut conn.tx(), id).await?;
        found.map(wire).ok_or_else(Problem::not_found)
    }

    /// Offers a class of promises. `approved` is the change request that the caller approves.
    ///
    /// # Errors
    /// The caller lacks the right, the terms are invalid, or the name is in use.
    pub async fn create_promise(
        &self,
        caller: &Caller,
        input: NewPromise,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Promise>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.context.check_proof(caller)?;
        if let Some(created) = caller.already_created() {
            if let Some(request) = Gate::find_requested(&self.context, caller).await? {
                return Ok(Outcome::Requested(request));
            }
            let id = created.parse().map_err(|_| Problem::internal())?;
            return self.show_class(id).await.map(Outcome::Done);
        }
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let mut errors = check_terms(&input.terms);
        check_name(&input.name, &mut errors);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let now = self.context.now();
        let row = StoredPromise {
            id: self.context.new_id(now),
            name: input.name,
            terms: JsonColumn(input.terms),
            created_at: now,
            created_by: caller.user.name.clone(),
            services: 0,
        };
        let event = self.context.audit_event(caller, "promise.created", row.id.to_string(), row.name.clone());
        let event = event.with_change(None, text(&row));
        let (new, key, user) = (row, caller.idempotency_key.clone(), caller.user.id);
        let done = self.context.db.try_write(move |tx| {
            let (row, event, key, gate) = (new.clone(), event.clone(), key.clone(), gate.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageMoney).await?;
                check_free(tx, &row).await?;
                if rows::count(tx).await? >= MAX_PROMISES {
                    let detail = "The portal has at most 100 promises. Retire an unused one.";
                    return Err(Problem::conflict("promise.limit", "Too many promises", detail).into());
                }
                if let Some(request) = gate.pass(tx, &act(None, &row)).await? {
                    return Ok(Outcome::Requested(request));
                }
                idempotency::claim(tx, key.as_ref(), &row.id.to_string(), now).await?;
                rows::insert(tx, &row).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(Outcome::Done(wire(row)))
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// Changes an offered class for new choices. Services that have it keep its former terms. `approved` is the change
    /// request that the caller approves.
    ///
    /// # Errors
    /// The caller lacks the right, the class is not offered, the change is invalid, or the name is in use.
    pub async fn change_promise(
        &self,
        caller: &Caller,
        id: PromiseId,
        input: PatchPromise,
        approved: Option<ChangeRequestId>,
    ) -> Result<Outcome<Promise>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.context.check_proof(caller)?;
        if let Some(request) = Gate::find_requested(&self.context, caller).await? {
            return Ok(Outcome::Requested(request));
        }
        let gate = Gate::new(&self.context, caller, approved, &input)?;
        let mut errors = input.terms.as_ref().map(check_terms).unwrap_or_default();
        if let Some(name) = &input.name {
            check_name(name, &mut errors);
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let user = caller.user.id;
        let event = self.context.audit_event(caller, "promise.changed", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (input, mut event, gate) = (input.clone(), event.clone(), gate.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageMoney).await?;
                let before = rows::find(tx, id).await?.ok_or_else(Problem::not_found)?;
                let after = StoredPromise {
                    name: input.name.unwrap_or_else(|| before.name.clone()),
                    terms: input.terms.map_or_else(|| before.terms.clone(), JsonColumn),
                    ..before.clone()
                };
                if before == after && approved.is_none() {
                    return Ok(Outcome::Done(wire(after)));
                }
                check_free(tx, &after).await?;
                if let Some(request) = gate.pass(tx, &act(Some(&before), &after)).await? {
                    return Ok(Outcome::Requested(request));
                }
                rows::update(tx, &after).await?;
                event.detail.clone_from(&after.name);
                store::quotas::insert_audit(tx, None, &event.with_change(text(&before), text(&after)))
                    .await?;
                Ok(Outcome::Done(wire(after)))
            }
            .boxed()
        });
        Ok(done.await?)
    }

    /// Ends the offer of a class, and the choices of services that have it, with an event for each of their organizations.
    /// Their whole windows are still judged.
    ///
    /// # Errors
    /// The caller lacks the right, or the class is not offered.
    pub async fn retire_promise(&self, caller: &Caller, id: PromiseId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        self.context.check_proof(caller)?;
        let (now, user) = (self.context.now(), caller.user.id);
        let event = self.context.audit_event(caller, "promise.retired", id.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, mut event) = (context.clone(), event.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageMoney).await?;
                event.detail = rows::find(tx, id).await?.ok_or_else(Problem::not_found)?.name;
                let choosing = rows::list_choosing(tx, id).await?;
                rows::retire(tx, id, now).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                for (org, detail) in ended_texts(&event.detail, &choosing) {
                    let event = AuditEvent { id: context.new_id(now), detail, ..event.clone() };
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(choosing)
            }
            .boxed()
        });
        for (_, service, _) in done.await? {
            self.context.publish(Change::Service(service));
        }
        Ok(())
    }

    /// A page of the offered classes, for operators.
    pub async fn list_all(
        &self,
        caller: &Caller,
        options: &ListOptions<PromiseId>,
    ) -> Result<Page<Promise>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        self.page(options, wire).await
    }

    /// A page of the offered classes, for the members of an organization.
    pub async fn list_offered(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<PromiseId>,
    ) -> Result<Page<Promise>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.page(options, offered).await
    }

    async fn page(
        &self,
        options: &ListOptions<PromiseId>,
        show: fn(StoredPromise) -> Promise,
    ) -> Result<Page<Promise>, Problem> {
        let mut conn = self.context.db.read().await?;
        let rows = rows::list_page(&mut conn.tx(), options).await?;
        Ok(options.page(rows, |row| row.id).map(show))
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_event_of_each_organization_names_its_first_services() {
        let org = |n: u128| OrgId::from_uuid(Uuid::from_u128(n));
        let service = |n: u128| (org(n.min(2)), ServiceId::from_uuid(Uuid::from_u128(n)), format!("s{n}"));
        let texts = |last: u128| ended_texts("gold", &(1..=last).map(service).collect::<Vec<_>>());
        assert!(texts(0).is_empty());
        let first = (org(1), "gold: no longer the promise of s1".to_owned());
        let second = (org(2), "gold: no longer the promise of s2, s3".to_owned());
        assert_eq!(texts(3), [first.clone(), second]);
        for (last, end) in [(21, ", s20, s21"), (22, ", s21 and 1 more")] {
            let texts = texts(last);
            assert_eq!((texts.len(), &texts[0]), (2, &first));
            assert!(texts[1].1.ends_with(end), "{texts:?}");
        }
    }
}
