//! The parts of the portal, put together. Must not do anything itself.

use std::sync::Arc;

use berth_access::{Ports, Terminals, Tunnels};
use berth_accounts::{Accounts, Hasher, Invitations, Members};
use berth_billing::{
    Budgets, CreditExpiry, Invoices, Ledger, Payments, Reconciliations, Stripe, UsageReports,
};
use berth_fleet::{Cluster, Enrolment, Health, Inventory, Leases, Nodes, Offerings};
use berth_foundation::clock::Clock;
use berth_foundation::delivery::Transport;
use berth_foundation::idempotency::Idempotency;
use berth_foundation::loops::Loops;
use berth_foundation::objects::Objects;
use berth_foundation::telemetry::Telemetry;
use berth_foundation::{Context, Settings};
use berth_jobs::{
    Attempts, Drains, IdleWatch, Inputs, Jobs, Logs, LostNodes, OperatorJobs, Placements, Planner, Quotas,
    Scheduler,
};
use berth_recordings::Recordings;
use berth_reservations::Reservations;
use berth_storage::{Bundles, Files, HandOvers, Secrets, VolumeUses, Volumes};
use berth_store::Db;
use rand_chacha::ChaCha20Rng;

use crate::metrics::Metrics;
use crate::webhooks::Webhooks;

/// Cheap to clone.
#[derive(Clone)]
pub struct Portal {
    pub context: Context,
    pub loops: Loops,
    pub idempotency: Idempotency,
    pub telemetry: Arc<Telemetry>,
    pub objects: Arc<Objects>,
    pub recordings: Recordings,

    pub accounts: Accounts,
    pub members: Members,
    pub invitations: Invitations,

    pub ledger: Ledger,
    pub credit_expiry: CreditExpiry,
    pub budgets: Budgets,
    pub invoices: Invoices,
    pub payments: Payments,
    pub usage: UsageReports,
    pub reconciliations: Reconciliations,

    pub files: Files,
    pub bundles: Bundles,
    pub volumes: Volumes,
    pub secrets: Secrets,

    pub leases: Arc<Leases>,
    pub cluster: Cluster,
    pub nodes: Nodes,
    pub enrolment: Enrolment,
    pub health: Health,
    pub inventory: Inventory,
    pub offerings: Offerings,

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

    pub tunnels: Arc<Tunnels>,
    pub terminals: Terminals,
    pub ports: Ports,

    pub webhooks: Webhooks,
    pub metrics: Metrics,
}

/// The client for Stripe; absent without a key.
fn stripe(settings: &Settings) -> Option<Arc<Stripe>> {
    let key = settings.stripe_key.as_deref().filter(|key| !key.is_empty())?;
    // An empty secret would let anybody sign.
    let secrets = settings.stripe_webhook_secrets.iter().map(|s| s.trim().to_owned());
    let secrets: Vec<String> = secrets.filter(|s| !s.is_empty()).collect();
    if secrets.is_empty() {
        tracing::warn!("there is no webhook secret of Stripe's, so no payment will ever be credited");
    }
    Stripe::new(&settings.stripe_url, key, &secrets).map(Arc::new)
}

fn transport(settings: &Settings) -> Transport {
    let outbox = settings.data.join("outbox");
    let made =
        Transport::new(settings.private_webhooks, settings.smtp.as_deref(), &settings.mail_from, &outbox);
    made.unwrap_or_else(|error| {
        tracing::error!(error, "nothing is sent to webhooks or by mail");
        Transport::none()
    })
}

/// The parts that settings alone make.
struct Outside {
    stripe: Option<Arc<Stripe>>,
    transport: Arc<Transport>,
    recordings: Recordings,
    objects: Arc<Objects>,
}

impl Outside {
    fn new(settings: &Settings) -> Self {
        Self {
            stripe: stripe(settings),
            transport: Arc::new(transport(settings)),
            recordings: Recordings::keeping(&settings.data, settings.keep_readings),
            objects: Arc::new(Objects::new(&settings.data, settings.object_store.clone())),
        }
    }
}

impl Portal {
    pub fn new(db: Db, settings: Settings, clock: Arc<dyn Clock>, rng: ChaCha20Rng) -> Self {
        let Outside { stripe, transport, recordings, objects } = Outside::new(&settings);
        let context = Context::new(db, settings, clock, rng);
        let of = || context.clone();
        let telemetry = Arc::new(Telemetry::new(context.now()));
        let loops = Loops::new(of());

        let hasher = Hasher::new(2);
        let accounts = Accounts::new(of(), hasher.clone());
        let reconciliations = Reconciliations::new(of());

        let handovers = Arc::new(HandOvers::since(context.now()));
        let files = Files::new(of(), objects.clone(), handovers.clone());
        let volume_uses = VolumeUses::new(of(), handovers.clone());
        let secrets = Secrets::new(of());

        let leases = Arc::new(Leases::since(context.monotonic_ms()));
        let cluster = Cluster::new(of(), leases.clone());
        let offerings = Offerings::new(of());

        let planner = Planner::new(of(), volume_uses.clone());
        let logs = Logs::new(of(), recordings.clone());
        let inputs = Inputs { secrets: secrets.clone(), volumes: volume_uses.clone(), files: files.clone() };
        let attempts = Attempts::new(of(), recordings.clone(), logs.clone(), inputs);
        let placements = Placements::new(of(), volume_uses, telemetry.clone());

        let tunnels = Tunnels::subscribed(&context);
        let terminals = Terminals::new(of(), tunnels.clone());

        Self {
            loops: loops.clone(),
            idempotency: Idempotency::new(of()),
            members: Members::new(of()),
            invitations: Invitations::new(of(), hasher, transport.clone()),
            ledger: Ledger::new(of()),
            credit_expiry: CreditExpiry::new(of()),
            budgets: Budgets::new(of()),
            invoices: Invoices::new(of()),
            payments: Payments::new(of(), stripe),
            usage: UsageReports::new(of()),
            bundles: Bundles::new(of(), objects.clone(), handovers.clone()),
            volumes: Volumes::new(of(), objects.clone(), handovers),
            nodes: Nodes::new(of(), offerings.clone(), cluster.clone(), leases.clone()),
            enrolment: Enrolment::new(of(), cluster.clone()),
            health: Health::new(of()),
            inventory: Inventory::new(of()),
            quotas: Quotas::new(of(), planner.clone()),
            jobs: Jobs::new(of(), planner.clone(), recordings.clone()),
            operator_jobs: OperatorJobs::new(of()),
            idle_watch: IdleWatch::new(of(), recordings.clone(), attempts.clone()),
            drains: Drains::new(of(), attempts.clone()),
            lost_nodes: LostNodes::new(of(), leases.clone(), cluster.clone(), attempts.clone()),
            scheduler: Scheduler::new(planner.clone(), attempts.clone(), placements, telemetry.clone()),
            reservations: Reservations::new(of(), planner.clone(), attempts.clone()),
            ports: Ports::new(of(), terminals.clone(), tunnels.clone()),
            webhooks: Webhooks::new(of(), secrets.clone(), transport),
            metrics: Metrics::new(
                (of(), accounts.clone()),
                (reconciliations.clone(), cluster.clone()),
                (telemetry.clone(), loops),
            ),
            telemetry,
            objects,
            recordings,
            accounts,
            reconciliations,
            files,
            secrets,
            leases,
            cluster,
            offerings,
            planner,
            logs,
            attempts,
            tunnels,
            terminals,
            context,
        }
    }
}
