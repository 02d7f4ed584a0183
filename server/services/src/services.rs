//! The creation, change and deletion of services. The loop of services keeps their states and replicas.

use berth_foundation::{Caller, Change, Context, Right, has_right, idempotency, recheck_operator_right};
use berth_jobs::Jobs;
use berth_service_types::revisions::{NewRevision, RevisionState};
use berth_service_types::services::{
    NewService, PatchService, Service, ServiceAccess, ServiceHour, ServiceState, TokenPrice,
};
use berth_serving::snapshot::MAX_SERVICES;
use berth_store::services::revisions::StoredRevision;
use berth_store::services::services::{StoredDecision, StoredService};
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::ids::{OrgId, ServiceId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::{Page, Sort};
use futures::FutureExt;

use crate::addresses::{check_hosts, check_models, host_of};
use crate::checks::{check_model_list, check_patch, check_service, check_token_price};
use crate::gateway_admin::GatewayAdmin;
use crate::hosts::{HostProofs, begin_proofs};
use crate::keys::InferenceKeys;
use crate::promises::Promises;
use crate::{rollouts, show};

/// Services of an organization.
const MAX_ORG_SERVICES: i64 = 100;

/// The services of organizations, with their revisions and keys, and the gateways.
#[derive(Clone)]
pub struct Services {
    pub(crate) context: Context,
    pub(crate) jobs: Jobs,
    pub(crate) keys: InferenceKeys,
    pub(crate) gateways: GatewayAdmin,
    pub hosts: HostProofs,
    pub promises: Promises,
}

/// The name of the job of a replica.
pub(crate) fn replica_name(service: &str, number: i64) -> String {
    format!("{service}-r{number}")
}

/// The state of a service for the audit log.
fn state_text(row: &StoredService) -> Option<String> {
    let state = PatchService {
        access: Some(row.access),
        hosts: Some(row.hosts.0.clone()),
        models: Some(row.models.0.clone()),
        scaling: Some(row.scaling.0.clone()),
        rollout: Some(row.rollout.0),
        stopped: Some(row.stopped),
    };
    serde_json::to_string(&state).ok()
}

/// A service after a change. Absent fields stay.
fn changed(before: &StoredService, change: PatchService) -> StoredService {
    let PatchService { access, hosts, models, scaling, rollout, stopped } = change;
    StoredService {
        access: access.unwrap_or(before.access),
        hosts: hosts.map_or_else(|| before.hosts.clone(), JsonColumn),
        models: models.map_or_else(|| before.models.clone(), JsonColumn),
        scaling: scaling.map_or_else(|| before.scaling.clone(), JsonColumn),
        rollout: rollout.map_or_else(|| before.rollout.clone(), JsonColumn),
        stopped: stopped.unwrap_or(before.stopped),
        ..before.clone()
    }
}

/// Puts a pointer before those of the fields of a job. A whole body has no pointer.
fn with_base(problem: Problem, base: &str) -> Problem {
    let moved = |error: FieldError| FieldError { pointer: format!("{base}{}", error.pointer), ..error };
    Problem { errors: problem.errors.into_iter().map(moved).collect(), ..problem }
}

/// Refuses a service beyond the limits of its organization and of the portal.
async fn check_limits(tx: &mut Tx<'_>, row: &StoredService) -> Result<(), WriteError> {
    if store::services::services::has_name(tx, row.org_id, &row.name).await? {
        let detail = format!("The service {} already exists. Choose another name.", row.name);
        return Err(Problem::conflict("service.exists", "Name in use", detail).into());
    }
    let limit = |detail: &str| Problem::conflict("service.limit", "Too many services", detail);
    if store::services::services::count(tx, Some(row.org_id)).await? >= MAX_ORG_SERVICES {
        return Err(limit("An organization has at most 100 services. Delete an unused one.").into());
    }
    let most = i64::try_from(MAX_SERVICES).unwrap_or(i64::MAX);
    if store::services::services::count(tx, None).await? >= most {
        return Err(limit("The portal has 10000 services. Nothing was created. Ask the operator.").into());
    }
    Ok(())
}

impl Services {
    pub fn new(context: Context, jobs: Jobs) -> Self {
        let (keys, gateways) = (InferenceKeys::new(context.clone()), GatewayAdmin::new(context.clone()));
        let (hosts, promises) = (HostProofs::new(context.clone()), Promises::new(context.clone()));
        Self { context, jobs, keys, gateways, hosts, promises }
    }

    /// Checks the job of a revision against the stored objects that it names.
    ///
    /// # Errors
    /// The job could never start, or names unknown objects.
    pub(crate) async fn check_job(&self, org: OrgId, spec: &NewRevision, base: &str) -> Result<(), Problem> {
        let checked = berth_jobs::jobs::check_replica_job(&self.jobs, org, &spec.job).await;
        checked.map_err(|problem| with_base(problem, &format!("{base}/job")))
    }

    /// The host of the portal, which leads to no service.
    fn own_host(&self) -> Option<String> {
        host_of(&self.context.settings.public_url)
    }

    /// A service for a caller who may run jobs.
    pub(crate) async fn show(&self, org: OrgId, id: ServiceId) -> Result<Service, Problem> {
        self.show_to(org, id, true).await
    }

    /// A service; `with_keys` for callers who may run jobs.
    async fn show_to(&self, org: OrgId, id: ServiceId, with_keys: bool) -> Result<Service, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let row = store::services::services::find(&mut tx, org, id).await?.ok_or_else(Problem::not_found)?;
        let shown = show::services(&mut tx, vec![row], with_keys, self.context.now()).await?.pop();
        shown.ok_or_else(Problem::not_found)
    }

    /// Creates a service with its first revision. The loop of services starts the replicas.
    ///
    /// # Errors
    /// The service is invalid, its name, a host or a model is in use, or the organization has too many services.
    pub async fn create_service(
        &self,
        caller: &Caller,
        org: OrgId,
        mut input: NewService,
    ) -> Result<Service, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        if let Some(created) = caller.already_created() {
            return self.show(org, created.parse().map_err(|_| Problem::internal())?).await;
        }
        // A name that is too long is a fault of the service and not of its job.
        input.revision.job.name = replica_name(input.name.get(..40).unwrap_or(&input.name), 1);
        let errors = check_service(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        self.context.disk.check_submission()?;
        self.check_job(org, &input.revision, "/revision").await?;
        let (service, revision) = self.new_rows(caller, org, input)?;
        let (id, now, own_host) = (service.id, service.created_at, self.own_host());
        let event = self.context.audit_event(caller, "service.created", id.to_string(), service.name.clone());
        let event = event.with_change(None, state_text(&service));
        let (key, context) = (caller.idempotency_key.clone(), self.context.clone());
        let done = self.context.db.try_write(move |tx| {
            let (service, revision, own_host) = (service.clone(), revision.clone(), own_host.clone());
            let (event, key, context) = (event.clone(), key.clone(), context.clone());
            async move {
                check_limits(tx, &service).await?;
                check_hosts(tx, &service, own_host.as_deref()).await?;
                check_models(tx, &service).await?;
                idempotency::claim(tx, key.as_ref(), &id.to_string(), now).await?;
                store::services::services::insert(tx, &service).await?;
                begin_proofs(tx, &context, &service, now).await?;
                rollouts::submit(tx, &revision).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Service(id));
        self.show(org, id).await
    }

    /// The rows of a new service and its first revision.
    fn new_rows(
        &self,
        caller: &Caller,
        org: OrgId,
        input: NewService,
    ) -> Result<(StoredService, StoredRevision), Problem> {
        let now = self.context.now();
        let created_by = caller.user.name.clone();
        let service = StoredService {
            id: self.context.new_id(now),
            org_id: org,
            org_slug: String::new(),
            name: input.name,
            protocol: input.protocol,
            access: input.access,
            hosts: JsonColumn(input.hosts),
            models: JsonColumn(input.models),
            max_body_bytes: i64::try_from(input.max_body_bytes).map_err(|_| Problem::internal())?,
            scaling: JsonColumn(input.scaling),
            rollout: JsonColumn(input.rollout),
            stopped: false,
            state: ServiceState::Waking,
            detail: "The first revision starts.".to_owned(),
            decision: StoredDecision(None),
            nano_per_prompt_token: 0,
            nano_per_completion_token: 0,
            version: 1,
            created_at: now,
            created_by: created_by.clone(),
        };
        let revision = StoredRevision {
            id: self.context.new_id(now),
            service_id: service.id,
            org_id: org,
            number: 1,
            state: RevisionState::Staging,
            detail: String::new(),
            weight_percent: 0,
            spec: JsonColumn(input.revision),
            created_at: now,
            created_by,
        };
        Ok((service, revision))
    }

    pub async fn get_service(&self, caller: &Caller, org: OrgId, id: ServiceId) -> Result<Service, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        self.show_to(org, id, has_right(&self.context, caller, org, Right::Run).await?).await
    }

    /// A page of the services of an organization.
    pub async fn list_services(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<ServiceId>,
    ) -> Result<Page<Service>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let with_keys = has_right(&self.context, caller, org, Right::Run).await?;
        self.page(Some(org), with_keys, options).await
    }

    /// A page of the services of all organizations, for operators.
    pub async fn list_all(
        &self,
        caller: &Caller,
        options: &ListOptions<ServiceId>,
    ) -> Result<Page<Service>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        self.page(None, false, options).await
    }

    async fn page(
        &self,
        org: Option<OrgId>,
        with_keys: bool,
        options: &ListOptions<ServiceId>,
    ) -> Result<Page<Service>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut items = store::services::services::list_page(&mut tx, org, options).await?;
        let ids = store::services::services::list_page_ids(&mut tx, org, options).await?;
        let Page { items: ids, next_cursor } = options.page(ids, |id| *id);
        items.retain(|row| ids.contains(&row.id));
        let items = show::services(&mut tx, items, with_keys, self.context.now()).await?;
        Ok(Page { items, next_cursor })
    }

    /// Changes access, hosts, models, scaling, the rule of canaries, or whether the service is stopped. Absent fields stay.
    ///
    /// # Errors
    /// The change is invalid, or a host or a public model is in use.
    pub async fn change_service(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        input: PatchService,
    ) -> Result<Service, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let errors = check_patch(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let (own_host, context) = (self.own_host(), self.context.clone());
        let event = self.context.audit_event(caller, "service.changed", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (input, own_host, mut event) = (input.clone(), own_host.clone(), event.clone());
            let context = context.clone();
            async move {
                let found = store::services::services::find(tx, org, id).await?;
                let before = found.ok_or_else(Problem::not_found)?;
                let after = changed(&before, input);
                let errors = check_model_list(after.protocol, &after.models);
                if !errors.is_empty() {
                    return Err(Problem::invalid(errors).into());
                }
                if state_text(&before) == state_text(&after) {
                    return Ok(false);
                }
                let has_new_hosts = before.hosts != after.hosts;
                if has_new_hosts {
                    // A gateway or the portal may have a present host by now, which is no fault of this change.
                    check_hosts(tx, &after, own_host.as_deref()).await?;
                }
                check_models(tx, &after).await?;
                if !store::services::services::update(tx, &after).await? {
                    return Err(StoreError::Stale.into());
                }
                if before.access == ServiceAccess::Public && after.access != before.access {
                    store::services::services::end_public(tx, id, context.now()).await?;
                }
                if after.stopped {
                    store::services::promise_evidence::drop_wake(tx, id).await?;
                }
                if has_new_hosts {
                    begin_proofs(tx, &context, &after, context.now()).await?;
                }
                event.detail.clone_from(&after.name);
                let event = event.with_change(state_text(&before), state_text(&after));
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(true)
            }
            .boxed()
        });
        if done.await? {
            self.context.publish(Change::Service(id));
        }
        self.show(org, id).await
    }

    /// Deletes a service. Its models are free at once, its hosts lead nowhere, the texts of its revisions are removed, and the loop
    /// of services ends its replicas.
    pub async fn delete_service(&self, caller: &Caller, org: OrgId, id: ServiceId) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "service.deleted", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let mut event = event.clone();
            async move {
                let found = store::services::services::find(tx, org, id).await?;
                event.detail = found.ok_or_else(Problem::not_found)?.name;
                store::services::services::delete(tx, org, id, now).await?;
                store::services::promises::end(tx, id, now).await?;
                store::services::promise_evidence::drop_wake(tx, id).await?;
                for row in store::services::revisions::list_progress(tx, id).await? {
                    let found = store::services::revisions::find(tx, id, row.number).await?;
                    let revision = found.ok_or(StoreError::Stale)?;
                    let spec = JsonColumn(show::without_texts(revision.spec.0));
                    store::services::revisions::set_spec(tx, id, row.number, &spec).await?;
                }
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        self.context.publish(Change::Service(id));
        Ok(())
    }

    /// Sets the price of the tokens of a service.
    ///
    /// # Errors
    /// The caller lacks the right, or an amount is not valid.
    pub async fn set_token_price(
        &self,
        caller: &Caller,
        id: ServiceId,
        input: TokenPrice,
    ) -> Result<Service, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageMoney).await?;
        let errors = check_token_price(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let nanos = (input.prompt_micros_per_million / 1_000, input.completion_micros_per_million / 1_000);
        let user = caller.user.id;
        let event = self.context.audit_event(caller, "token_price.set", id.to_string(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let mut event = event.clone();
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageMoney).await?;
                let found = store::services::services::find_any(tx, id).await?;
                let before = found.ok_or_else(Problem::not_found)?;
                store::services::services::set_token_price(tx, id, nanos).await?;
                event.detail = before.name;
                let former = TokenPrice {
                    prompt_micros_per_million: before.nano_per_prompt_token.saturating_mul(1_000),
                    completion_micros_per_million: before.nano_per_completion_token.saturating_mul(1_000),
                };
                let text = |price: &TokenPrice| serde_json::to_string(price).ok();
                let event = event.with_change(text(&former), text(&input));
                store::quotas::insert_audit(tx, Some(before.org_id), &event).await?;
                Ok(before.org_id)
            }
            .boxed()
        });
        let org = done.await?;
        self.context.publish(Change::Service(id));
        self.show_to(org, id, false).await
    }

    /// A page of the use of a service, also of a deleted one, in each of the last `hours` hours with requests, newest first
    /// without another order. The key of the list is the begin of the hour in microseconds since 1970.
    pub async fn list_use(
        &self,
        caller: &Caller,
        (org, id): (OrgId, ServiceId),
        hours: u32,
        options: &ListOptions<i64>,
    ) -> Result<Page<ServiceHour>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let since = show::since_hours(self.context.now(), hours);
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        if !store::services::services::is_of_org(&mut tx, org, id).await? {
            return Err(Problem::not_found());
        }
        let mut items = show::hours(store::services::uses::list_hours(&mut tx, id, since).await?);
        if options.sort == Sort::Desc {
            items.reverse();
        }
        if let Some(after) = options.cursor {
            items.retain(|hour| match options.sort {
                Sort::Asc => hour.at.micros() > after,
                Sort::Desc => hour.at.micros() < after,
            });
        }
        Ok(options.page(items, |hour| hour.at.micros()))
    }
}
