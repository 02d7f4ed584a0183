//! New revisions, their part of the requests, and the way back to the revision before.

use berth_autoscaling::rollout::{Effect, Event, RevisionNumber, Rollout};
use berth_foundation::{Caller, Change, Right, idempotency};
use berth_service_types::revisions::{NewRevision, PutTraffic, Revision, RevisionState};
use berth_service_types::services::Service;
use berth_store::services::revisions::StoredRevision;
use berth_store::services::services::StoredService;
use berth_store::types::JsonColumn;
use berth_store::{self as store, Tx, WriteError};
use berth_types::Page;
use berth_types::ids::{OrgId, RevisionId, ServiceId};
use berth_types::lists::ListOptions;
use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::checks::check_revision;
use crate::services::{Services, replica_name};
use crate::{canary_keys, rollouts, show};

/// Applies an event of a person to the rollout of a service. Returns the rollout before it, if it changed anything.
async fn apply(tx: &mut Tx<'_>, id: ServiceId, event: Event) -> Result<Option<Rollout>, WriteError> {
    let before = rollouts::load(tx, id).await?;
    let mut after = before.clone();
    if after.apply(event).map_err(rollouts::refusal)? == Effect::Nothing {
        return Ok(None);
    }
    rollouts::store(tx, id, &before, &after).await?;
    store::services::services::raise_version(tx, id).await?;
    Ok(Some(before))
}

/// Sets the percentage and the keys of a revision. Other keys alone change neither its steps nor a percentage that is not
/// reached yet. Returns true if anything changed.
async fn set_traffic(
    tx: &mut Tx<'_>,
    service: &StoredService,
    input: &PutTraffic,
    now: Timestamp,
) -> Result<bool, WriteError> {
    let id = service.id;
    let number = RevisionNumber::try_from(input.revision).ok();
    let known = store::services::revisions::find(tx, id, input.revision).await?;
    let (Some(number), Some(known)) = (number, known) else {
        let detail = "The service has no revision with this number.";
        return Err(Problem::invalid_field("/revision", detail).into());
    };
    let keys = JsonColumn(canary_keys::check(tx, service, input, now).await?);
    let is_present = known.state == RevisionState::Canary && known.weight_percent == i64::from(input.percent);
    if is_present && store::services::revisions::set_canary_keys(tx, id, input.revision, &keys).await? {
        store::services::services::raise_version(tx, id).await?;
        return Ok(true);
    }
    // A refusal comes before the first write.
    let moved = apply(tx, id, Event::Traffic(number, input.percent)).await?.is_some();
    if !store::services::revisions::set_canary_keys(tx, id, input.revision, &keys).await? {
        return Ok(moved);
    }
    if !moved {
        store::services::services::raise_version(tx, id).await?;
    }
    Ok(true)
}

/// The text of a traffic for the audit log.
fn traffic_text(input: &PutTraffic) -> String {
    let ids: Vec<String> = input.canary_keys.iter().map(ToString::to_string).collect();
    let keys = if ids.is_empty() { String::new() } else { format!(", always for {}", ids.join(", ")) };
    format!("revision {}: {} %{keys}", input.revision, input.percent)
}

/// Goes back: withdraws the revision on its way, or returns to the one before the live one with all requests. Returns the
/// text for the audit log, if anything changed.
async fn go_back(tx: &mut Tx<'_>, id: ServiceId, person: &str) -> Result<Option<String>, WriteError> {
    let Some(before) = apply(tx, id, Event::Rollback).await? else { return Ok(None) };
    let comes_new =
        before.revisions().find(|(number, one)| Some(*number) == before.candidate() && !one.returns);
    let Some((withdrawn, _)) = comes_new else {
        let live = before.revisions().find(|(number, _)| Some(*number) == before.live());
        let way = live.and_then(|(number, revision)| Some((number, revision.before?)));
        if let Some((live, former)) = way {
            // The reason for its next state. The loop clears it if the former revision does not come back.
            let detail = format!("{person} went back to revision {former}.");
            store::services::revisions::set_detail(tx, id, i64::from(live), &detail).await?;
        }
        return Ok(Some("to the revision before the live one".to_owned()));
    };
    let detail = format!("{person} withdrew the revision.");
    store::services::revisions::set_detail(tx, id, i64::from(withdrawn), &detail).await?;
    Ok(Some(format!("revision {withdrawn}")))
}

/// Finds the service of a write, and adds its name to the audit event.
async fn named(
    tx: &mut Tx<'_>,
    (org, id): (OrgId, ServiceId),
    mut event: AuditEvent,
    detail: &str,
) -> Result<AuditEvent, WriteError> {
    let found = store::services::services::find(tx, org, id).await?;
    event.detail = format!("{}, {detail}", found.ok_or_else(Problem::not_found)?.name);
    Ok(event)
}

impl Services {
    /// A page of the revisions of a service by number.
    pub async fn list_revisions(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        options: &ListOptions<i64>,
    ) -> Result<Page<Revision>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let found = store::services::services::find(&mut tx, org, id).await?;
        found.ok_or_else(Problem::not_found)?;
        let rows = store::services::revisions::list_page(&mut tx, id, options).await?;
        Ok(options.page(rows, |row| row.number).map(show::revision))
    }

    /// The specification of a revision with the texts of script, variables and files, for a further revision. Secrets are
    /// names only.
    ///
    /// # Errors
    /// The caller may run no jobs, or the service has no such revision.
    pub async fn get_specification(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        revision: RevisionId,
    ) -> Result<NewRevision, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let found = store::services::services::find(&mut tx, org, id).await?;
        found.ok_or_else(Problem::not_found)?;
        let row = store::services::revisions::find_by_id(&mut tx, id, revision).await?;
        Ok(row.ok_or_else(Problem::not_found)?.spec.0)
    }

    async fn show_revision(&self, id: ServiceId, number: i64) -> Result<Revision, Problem> {
        let mut conn = self.context.db.read().await?;
        let row = store::services::revisions::find(&mut conn.tx(), id, number).await?;
        row.map(show::revision).ok_or_else(Problem::not_found)
    }

    /// Creates a revision and begins its rollout.
    ///
    /// # Errors
    /// The revision is invalid, or another one is on its way.
    pub async fn create_revision(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        mut input: NewRevision,
    ) -> Result<Revision, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if let Some(created) = caller.already_created() {
            return self.show_revision(id, created.parse().map_err(|_| Problem::internal())?).await;
        }
        let service = self.show(org, id).await?;
        // The write has the number.
        input.job.name = replica_name(&service.name, 1);
        let errors = check_revision("", &input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        self.context.disk.check_submission()?;
        self.check_job(org, &input, "").await?;
        let now = self.context.now();
        let row = StoredRevision {
            id: self.context.new_id(now),
            service_id: id,
            org_id: org,
            number: 0,
            state: RevisionState::Staging,
            detail: String::new(),
            weight_percent: 0,
            spec: JsonColumn(input),
            created_at: now,
            created_by: caller.user.name.clone(),
        };
        let event = self.context.audit_event(caller, "revision.created", id.to_string(), String::new());
        let key = caller.idempotency_key.clone();
        let done = self.context.db.try_write(move |tx| {
            let (mut row, event, key) = (row.clone(), event.clone(), key.clone());
            let name = service.name.clone();
            async move {
                row.number = store::services::revisions::last_number(tx, id).await? + 1;
                row.spec.0.job.name = replica_name(&name, row.number);
                let event = named(tx, (org, id), event, &format!("revision {}", row.number)).await?;
                rollouts::submit(tx, &row).await?;
                store::services::services::raise_version(tx, id).await?;
                idempotency::claim(tx, key.as_ref(), &row.number.to_string(), now).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(row.number)
            }
            .boxed()
        });
        let number = done.await?;
        self.context.publish(Change::Service(id));
        self.show_revision(id, number).await
    }

    /// Sets the part of the requests of the revision on its way, and the keys whose requests all go to it. The part stays
    /// until a person changes it, and the keys until the end of the way.
    ///
    /// # Errors
    /// The revision is unknown or not on its way, or a key may not use the service.
    pub async fn put_traffic(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        input: PutTraffic,
    ) -> Result<Service, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "service.traffic_set", id.to_string(), String::new());
        let changed = self.context.db.try_write(move |tx| {
            let (mut event, input) = (event.clone(), input.clone());
            async move {
                let found = store::services::services::find(tx, org, id).await?;
                let service = found.ok_or_else(Problem::not_found)?;
                event.detail = format!("{}, {}", service.name, traffic_text(&input));
                let changed = set_traffic(tx, &service, &input, now).await?;
                if changed {
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(changed)
            }
            .boxed()
        });
        if changed.await? {
            self.context.publish(Change::Service(id));
        }
        self.show(org, id).await
    }

    /// Withdraws the revision on its way. Without one, the revision before the live one comes back.
    ///
    /// # Errors
    /// There is no revision to go back to.
    pub async fn roll_back(&self, caller: &Caller, org: OrgId, id: ServiceId) -> Result<Service, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if caller.already_created().is_some() {
            return self.show(org, id).await;
        }
        let now = self.context.now();
        let event = self.context.audit_event(caller, "service.rolled_back", id.to_string(), String::new());
        let (key, person) = (caller.idempotency_key.clone(), caller.user.name.clone());
        let changed = self.context.db.try_write(move |tx| {
            let (event, key, person) = (event.clone(), key.clone(), person.clone());
            async move {
                let found = store::services::services::find(tx, org, id).await?;
                found.ok_or_else(Problem::not_found)?;
                let detail = go_back(tx, id, &person).await?;
                idempotency::claim(tx, key.as_ref(), &id.to_string(), now).await?;
                let Some(detail) = detail else { return Ok(false) };
                let event = named(tx, (org, id), event, &detail).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok::<bool, WriteError>(true)
            }
            .boxed()
        });
        if changed.await? {
            self.context.publish(Change::Service(id));
        }
        self.show(org, id).await
    }
}
