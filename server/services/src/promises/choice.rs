//! The promise that a service has.

use berth_autoscaling::promise::{Promise, PromiseWatch};
use berth_foundation::{Caller, Change, Right};
use berth_service_types::promises::{
    ChosenPromise, JudgedWindow, PromiseEvidence, PutServicePromise, ServicePromise,
};
use berth_store::services::promises::{self as rows, StoredChoice, StoredPromise, StoredWindow};
use berth_store::{self as store, Tx};
use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::documents::surcharge_text;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::lists::ListOptions;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::Promises;
use super::terms::promise;

/// Judged windows in the answer about a choice.
const SHOWN_WINDOWS: u32 = 20;

/// Evidence for a role.
fn shown(evidence: PromiseEvidence, role: Role) -> PromiseEvidence {
    let charged_micros = evidence.charged_micros.filter(|_| Right::ViewMoney.is_granted_to(role));
    PromiseEvidence { charged_micros, ..evidence }
}

fn judged(row: StoredWindow, role: Role) -> JudgedWindow {
    let sees_money = Right::ViewMoney.is_granted_to(role);
    JudgedWindow {
        begin_at: row.begin_at,
        end_at: row.end_at,
        name: row.name,
        evidence: shown(row.evidence.0, role),
        misses: row.misses.0,
        credit_micros: sees_money.then_some(row.credit_micros),
        transfer: row.transfer_id.filter(|_| sees_money),
    }
}

/// A page of the judged windows of a service for a role.
async fn windows(
    tx: &mut Tx<'_>,
    (service, role): (ServiceId, Role),
    options: &ListOptions<i64>,
) -> Result<Page<JudgedWindow>, store::StoreError> {
    let rows = rows::list_windows(tx, service, options).await?;
    Ok(options.page(rows, |row| row.begin_at.micros()).map(|row| judged(row, role)))
}

/// Refuses a class with another surcharge than the accepted one.
fn check_surcharge(accepted: Option<u32>, class: &StoredPromise) -> Result<(), Problem> {
    let surcharge = class.terms.surcharge_basis_points;
    if accepted.is_none_or(|accepted| accepted == surcharge) {
        return Ok(());
    }
    let detail = format!(
        "The surcharge of the promise {} is {} ({surcharge} basis points) now. Read its terms again.",
        class.name,
        surcharge_text(surcharge),
    );
    Err(Problem::invalid_field("/surcharge_basis_points", detail))
}

/// The choice of a class by a service.
fn choice((org, service): (OrgId, ServiceId), class: StoredPromise, now: Timestamp) -> StoredChoice {
    let terms = promise(&class.terms.0);
    let next_window = PromiseWatch::new(&terms, now).next();
    StoredChoice {
        service_id: service,
        // The write has the number.
        number: 0,
        org_id: org,
        promise_id: class.id,
        name: class.name,
        terms: class.terms,
        chosen_at: now,
        until_at: None,
        next_window,
        due_at: due_at(&terms, next_window),
        carry_micros: 0,
    }
}

/// The time of the judgement of a window.
pub fn due_at(terms: &Promise, window: i64) -> Timestamp {
    terms.begin(window.saturating_add(1)).plus_seconds(terms.late_s.into())
}

impl Promises {
    /// The promise of a service, the counts of the present window, and the last judged windows. Roles that do not see
    /// balance and statement get no charges and no credits.
    pub async fn get_choice(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
    ) -> Result<ServicePromise, Problem> {
        let role = self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::services::services::find(&mut tx, org, id).await?.ok_or_else(Problem::not_found)?;
        let windows = windows(&mut tx, (id, role), &ListOptions::newest(SHOWN_WINDOWS)).await?.items;
        let row = rows::find_present(&mut tx, id).await?;
        drop(conn);
        let Some(row) = row else {
            return Ok(ServicePromise { windows, ..ServicePromise::default() });
        };
        let mut present = self.present.find(&self.context, &row).await?;
        if let Some(window) = &mut present {
            window.evidence = shown(window.evidence, role);
        }
        let StoredChoice { promise_id, name, terms, chosen_at, .. } = row;
        let chosen = ChosenPromise { promise: promise_id, name, terms: terms.0, chosen_at };
        Ok(ServicePromise { chosen: Some(chosen), present, windows })
    }

    /// A page of the judged windows of a service, newest first without another order. The key of the list is the begin of
    /// the window in microseconds since 1970.
    pub async fn list_windows(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        options: &ListOptions<i64>,
    ) -> Result<Page<JudgedWindow>, Problem> {
        let role = self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        store::services::services::find(&mut tx, org, id).await?.ok_or_else(Problem::not_found)?;
        Ok(windows(&mut tx, (id, role), options).await?)
    }

    /// Sets the promise of a service. Whole windows after the choice count; those of the former choice that have ended
    /// are still judged. Replicas that are submitted after the choice have its surcharge.
    ///
    /// # Errors
    /// The caller lacks the right, the service is unknown, the class is not offered, or its surcharge is not the accepted
    /// one.
    pub async fn choose(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        input: PutServicePromise,
    ) -> Result<ServicePromise, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "service.promise_set", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let mut event = event.clone();
            async move {
                let service = store::services::services::find(tx, org, id).await?;
                event.detail = service.ok_or_else(Problem::not_found)?.name;
                let before = rows::find_present(tx, id).await?;
                let class = match input.promise {
                    Some(promise) => rows::find(tx, promise).await?,
                    None => None,
                };
                if input.promise.is_some() && class.is_none() {
                    let detail = "No such promise is offered. Choose another one.";
                    return Err(Problem::invalid_field("/promise", detail).into());
                }
                if let Some(class) = &class {
                    check_surcharge(input.surcharge_basis_points, class)?;
                }
                let kept = before.as_ref().map(|row| (row.promise_id, row.terms.0));
                if kept == class.as_ref().map(|row| (row.id, row.terms.0)) {
                    return Ok(false);
                }
                rows::end(tx, id, now).await?;
                let after = class.map(|class| choice((org, id), class, now));
                if let Some(row) = &after {
                    rows::choose(tx, row).await?;
                }
                // The new choice gets what the former one carries.
                if let Some(row) = &before
                    && promise(&row.terms.0).begin(row.next_window) >= now
                {
                    rows::delete(tx, id, row.number).await?;
                }
                let name = |row: Option<&StoredChoice>| row.map(|row| row.name.clone());
                let event = event.with_change(name(before.as_ref()), name(after.as_ref()));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(true)
            }
            .boxed()
        });
        if done.await? {
            self.context.publish(Change::Service(id));
        }
        self.get_choice(caller, (org, id)).await
    }
}
