//! The assembly of the portal from its parts. Must not do anything itself.

use std::ops::Deref;
use std::sync::Arc;

use berth_access::{Ports, Terminals, Tunnels};
use berth_accounts::{
    Accounts, Hasher, Invitations, MailLinks, Members, Operators, OwnAccount, Passkeys, SecondFactors,
    ServiceAccounts, Users,
};
use berth_billing::{
    Budgets, CreditExpiry, Invoices, Ledger, Payments, Reconciliations, Stripe, UsageReports,
};
use berth_fleet::{Cluster, EgressPolicies, Enrolment, Health, Inventory, Leases, Nodes, Offerings};
use berth_foundation::clock::Clock;
use berth_foundation::delivery::Transport;
use berth_foundation::idempotency::Idempotency;
use berth_foundation::loops::Loops;
use berth_foundation::objects::Objects;
use berth_foundation::telemetry::Telemetry;
use berth_foundation::{AuditLog, AuditPush, Context, Settings};
use berth_identity::Identity;
use berth_jobs::{
    Attempts, Drains, IdleWatch, Inputs, Jobs, Logs, LostNodes, OperatorJobs, Placements, Planner, Quotas,
    Scheduler, Templates,
};
use berth_recordings::Recordings;
use berth_reservations::Reservations;
use berth_scim::Scim;
use berth_service_loop::Controller;
use berth_services::{GatewaySync, LoadBoard, Services};
use berth_sso::SingleSignOn;
use berth_storage::{Bundles, Files, HandOvers, JobRetention, Secrets, StorageClasses, VolumeUses, Volumes};
use berth_store::Db;
use berth_webhooks::Webhooks;
use rand_chacha::ChaCha20Rng;

use crate::metrics::Metrics;
use crate::volume_lists::decode_list;

/// The portal: a shared reference to its parts. Each route and each layer of the router clones it for each request.
#[derive(Clone)]
pub struct Portal(Arc<PortalParts>);

impl Deref for Portal {
    type Target = PortalParts;

    fn deref(&self) -> &PortalParts {
        &self.0
    }
}

impl From<PortalParts> for Portal {
    fn from(parts: PortalParts) -> Self {
        Self(Arc::new(parts))
    }
}

/// All parts of the portal.
#[derive(Clone)]
pub struct PortalParts {
    pub context: Context,
    pub loops: Loops,
    pub idempotency: Idempotency,
    pub audit_log: AuditLog,
    pub audit_push: AuditPush,
    pub telemetry: Arc<Telemetry>,
    pub objects: Arc<Objects>,
    pub recordings: Recordings,

    pub accounts: Accounts,
    pub factors: SecondFactors,
    pub members: Members,
    pub service_accounts: ServiceAccounts,
    pub invitations: Invitations,
    pub own_account: OwnAccount,
    pub passkeys: Passkeys,
    pub mail_links: MailLinks,
    pub users: Users,
    pub operators: Operators,
    pub sso: SingleSignOn,
    pub scim: Scim,

    pub ledger: Ledger,
    pub credit_expiry: CreditExpiry,
    pub budgets: Budgets,
    pub invoices: Invoices,
    pub payments: Payments,
    pub usage: UsageReports,
    pub reconciliations: Reconciliations,

    pub files: Files,
    pub job_retention: JobRetention,
    pub bundles: Bundles,
    pub volumes: Volumes,
    pub storage_classes: StorageClasses,
    pub secrets: Secrets,

    pub leases: Arc<Leases>,
    pub cluster: Cluster,
    pub nodes: Nodes,
    pub enrolment: Enrolment,
    pub health: Health,
    pub inventory: Inventory,
    pub offerings: Offerings,
    pub egress_policies: EgressPolicies,

    pub planner: Planner,
    pub quotas: Quotas,
    pub jobs: Jobs,
    pub operator_jobs: OperatorJobs,
    pub logs: Logs,
    pub attempts: Attempts,
    pub idle_watch: IdleWatch,
    pub drains: Drains,
    pub lost_nodes: LostNodes,
    pub scheduler: Scheduler,

    pub reservations: Reservations,

    pub gateway_sync: GatewaySync,

    pub tunnels: Arc<Tunnels>,
    pub terminals: Terminals,
    pub ports: Ports,

    pub identity: Identity,
    pub templates: Templates,
    pub webhooks: Webhooks,
    pub service_loop: Controller,
    pub services: Services,
    pub metrics: Metrics,
}

/// The client for Stripe; absent without a key.
fn stripe(settings: &Settings) -> Option<Arc<Stripe>> {
    let key = settings.stripe_key.as_deref().filter(|key| !key.is_empty())?;
    // With an empty secret anybody could sign events.
    let secrets = settings.stripe_webhook_secrets.iter().map(|s| s.trim().to_owned());
    let secrets: Vec<String> = secrets.filter(|s| !s.is_empty()).collect();
    if secrets.is_empty() {
        tracing::warn!("Stripe is configured without a webhook secret: no payment will be credited");
    }
    for text in Stripe::unusual_settings(&settings.stripe_url, key, &secrets) {
        tracing::warn!("{text}");
    }
    let client = berth_foundation::delivery::client(false)?;
    Some(Arc::new(Stripe::new(client, &settings.stripe_url, key, &secrets)))
}

/// The parts that need only settings.
struct ExternalParts {
    stripe: Option<Arc<Stripe>>,
    transport: Arc<Transport>,
    recordings: Recordings,
    objects: Arc<Objects>,
}

impl ExternalParts {
    fn new(settings: &Settings) -> Result<Self, String> {
        let (smtp, outbox) = (settings.smtp.as_deref(), settings.data.join("outbox"));
        let transport = Transport::new(settings.private_webhooks, smtp, &settings.mail_from, &outbox)?;
        Ok(Self {
            stripe: stripe(settings),
            transport: Arc::new(transport),
            recordings: Recordings::with_retention(&settings.data, settings.keep_readings),
            objects: Arc::new(Objects::new(&settings.data, settings.object_store.clone())),
        })
    }
}

/// The accounts with their parts.
fn accounts(context: &Context, transport: &Arc<Transport>) -> (Hasher, SecondFactors, Accounts) {
    let hasher = Hasher::new(2, context.settings.password_cost);
    let factors = SecondFactors::new(context.clone(), hasher.clone(), transport.clone());
    let accounts = Accounts::new(context.clone(), hasher.clone(), factors.clone());
    (hasher, factors, accounts)
}

/// The parts for files that workers hand over.
fn storage(context: &Context, objects: &Arc<Objects>) -> (Arc<HandOvers>, Files, VolumeUses) {
    let handovers = Arc::new(HandOvers::new(context.now()));
    let files = Files::new(context.clone(), objects.clone(), handovers.clone());
    let volume_uses = VolumeUses::new(context.clone(), handovers.clone());
    (handovers, files, volume_uses)
}

/// The parts that run jobs, and the loop that keeps the replicas of services as jobs.
struct JobParts {
    planner: Planner,
    placements: Placements,
    logs: Logs,
    attempts: Attempts,
    jobs: Jobs,
    service_loop: Controller,
}

impl JobParts {
    fn new(
        context: &Context,
        (telemetry, recordings): (&Arc<Telemetry>, &Recordings),
        (secrets, volumes, files): (&Secrets, &VolumeUses, &Files),
    ) -> Self {
        let ctx = || context.clone();
        let planner = Planner::new(ctx(), volumes.clone());
        let placements = Placements::new(ctx(), volumes.clone(), telemetry.clone());
        let logs = Logs::new(ctx(), recordings.clone());
        let inputs = Inputs { secrets: secrets.clone(), volumes: volumes.clone(), files: files.clone() };
        let attempts = Attempts::new(ctx(), recordings.clone(), logs.clone(), inputs);
        let jobs = Jobs::new(ctx(), planner.clone(), recordings.clone());
        let board = LoadBoard::new(context.now());
        let service_loop = Controller::subscribed(ctx(), jobs.clone(), attempts.clone(), board);
        Self { planner, placements, logs, attempts, jobs, service_loop }
    }
}

/// The parts that watch the portal itself.
fn watches(context: &Context) -> (Arc<Telemetry>, Loops, Reconciliations, AuditPush) {
    let (telemetry, loops) = (Arc::new(Telemetry::new(context.now())), Loops::new(context.clone()));
    (telemetry, loops, Reconciliations::new(context.clone()), AuditPush::new(context.clone()))
}

/// The tunnels into attempts, and the terminals through them.
fn access(context: &Context) -> (Arc<Tunnels>, Terminals) {
    let tunnels = Tunnels::subscribed(context);
    let terminals = Terminals::new(context.clone(), tunnels.clone());
    (tunnels, terminals)
}

/// The parts of the hosts that others need.
fn fleet(context: &Context) -> (Arc<Leases>, Cluster, Offerings, Enrolment) {
    let leases = Arc::new(Leases::new(context.monotonic_ms()));
    let cluster = Cluster::new(context.clone(), leases.clone());
    let enrolment = Enrolment::new(context.clone(), cluster.clone());
    (leases, cluster, Offerings::new(context.clone()), enrolment)
}

impl Portal {
    /// # Errors
    /// The text for the operator about an invalid option of mail.
    pub fn new(db: Db, settings: Settings, clock: Arc<dyn Clock>, rng: ChaCha20Rng) -> Result<Self, String> {
        let ExternalParts { stripe, transport, recordings, objects } = ExternalParts::new(&settings)?;
        let context = Context::new(db, settings, clock, rng);
        let ctx = || context.clone();
        let (telemetry, loops, reconciliations, audit_push) = watches(&context);
        let (hasher, factors, accounts) = accounts(&context, &transport);
        let (handovers, files, volume_uses) = storage(&context, &objects);
        let (leases, cluster, offerings, enrolment) = fleet(&context);
        let (secrets, (tunnels, terminals)) = (Secrets::new(ctx()), access(&context));
        let JobParts { planner, placements, logs, attempts, jobs, service_loop } =
            JobParts::new(&context, (&telemetry, &recordings), (&secrets, &volume_uses, &files));
        Ok(Self::from(PortalParts {
            loops: loops.clone(),
            idempotency: Idempotency::new(ctx()),
            audit_log: AuditLog::new(ctx()),
            members: Members::new(ctx()),
            service_accounts: ServiceAccounts::new(ctx()),
            invitations: Invitations::new(ctx(), hasher, transport.clone()),
            own_account: OwnAccount::new(accounts.clone()),
            passkeys: Passkeys::new(accounts.clone()),
            mail_links: MailLinks::new(accounts.clone()),
            users: Users::new(&accounts),
            operators: Operators::new(&accounts),
            sso: SingleSignOn::new(context.clone(), accounts.clone(), transport.clone()),
            scim: Scim::new(ctx()),
            ledger: Ledger::new(ctx()),
            credit_expiry: CreditExpiry::new(ctx()),
            budgets: Budgets::new(ctx()),
            invoices: Invoices::new(ctx()),
            payments: Payments::new(ctx(), stripe),
            usage: UsageReports::new(ctx()),
            job_retention: JobRetention::new(ctx(), recordings.clone(), files.clone()),
            bundles: Bundles::new(ctx(), objects.clone(), handovers.clone()),
            volumes: Volumes::new(ctx(), objects.clone(), handovers, decode_list),
            storage_classes: StorageClasses::new(ctx()),
            nodes: Nodes::new(ctx(), offerings.clone(), cluster.clone(), leases.clone()),
            gateway_sync: GatewaySync::new(ctx(), enrolment.clone(), Arc::new(service_loop.board().clone())),
            enrolment,
            health: Health::new(ctx(), offerings.clone()),
            inventory: Inventory::new(ctx()),
            egress_policies: EgressPolicies::new(ctx()),
            quotas: Quotas::new(ctx(), planner.clone()),
            service_loop,
            operator_jobs: OperatorJobs::new(ctx()),
            idle_watch: IdleWatch::new(ctx(), recordings.clone(), attempts.clone()),
            drains: Drains::new(ctx(), attempts.clone()),
            lost_nodes: LostNodes::new(ctx(), leases.clone(), cluster.clone(), attempts.clone()),
            scheduler: Scheduler::new(planner.clone(), attempts.clone(), placements, telemetry.clone()),
            reservations: Reservations::new(ctx(), planner.clone(), attempts.clone()),
            ports: Ports::new(ctx(), terminals.clone(), tunnels.clone()),
            identity: Identity::new(ctx(), offerings.clone()),
            templates: Templates::new(context.settings.templates.as_deref()),
            webhooks: Webhooks::new(ctx(), secrets.clone(), transport),
            services: Services::new(ctx(), jobs.clone()),
            metrics: Metrics::new(
                (ctx(), accounts.clone()),
                (reconciliations.clone(), cluster.clone()),
                (telemetry.clone(), loops, audit_push.clone()),
            ),
            audit_push,
            telemetry,
            objects,
            recordings,
            accounts,
            factors,
            reconciliations,
            files,
            secrets,
            leases,
            cluster,
            offerings,
            planner,
            jobs,
            logs,
            attempts,
            tunnels,
            terminals,
            context,
        }))
    }
}
