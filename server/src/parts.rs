//! The parts of the portal with their routes. `rest` mounts the routes, and `openapi` describes them.

use aide::axum::ApiRouter;
use {
    berth_access::routes as access, berth_accounts::routes as accounts, berth_billing::routes as billing,
    berth_fleet::routes as fleet, berth_jobs::routes as jobs, berth_reservations::routes as reservations,
    berth_services::routes as services, berth_storage::routes as storage,
};

use crate::portal::Portal;
use crate::{audit_destinations, audit_log, change_requests, loops, metrics, overview};

/// A part of the portal with routes.
pub trait Part: Clone + Send + Sync + 'static {
    fn from_portal(portal: &Portal) -> &Self;
}

/// The overview reads from many parts.
impl Part for Portal {
    fn from_portal(portal: &Self) -> &Self {
        portal
    }
}

/// A visitor of the routes of all parts.
pub trait Visitor {
    fn visit<S: Part>(&mut self, routes: fn() -> ApiRouter<S>);
}

/// Declares the parts with their fields of the portal and their routes.
macro_rules! parts {
    ($($type:ty, $field:ident: $($routes:path),+;)+) => {
        $(impl Part for $type {
            fn from_portal(portal: &Portal) -> &Self {
                &portal.$field
            }
        })+

        /// Visits the routes of all parts.
        pub fn visit_parts(visitor: &mut impl Visitor) {
            $($(visitor.visit::<$type>($routes);)+)+
            visitor.visit::<Portal>(overview::routes);
            visitor.visit::<Portal>(change_requests::routes::routes);
        }
    };
}

parts! {
    berth_accounts::Accounts, accounts: accounts::accounts;
    berth_accounts::SecondFactors, factors: accounts::factors;
    berth_accounts::Members, members: accounts::members;
    berth_accounts::ServiceAccounts, service_accounts: accounts::service_accounts;
    berth_accounts::Invitations, invitations: accounts::invitations;
    berth_accounts::OwnAccount, own_account: accounts::own;
    berth_accounts::Passkeys, passkeys: accounts::passkeys;
    berth_accounts::MailLinks, mail_links: accounts::links;
    berth_accounts::Users, users: accounts::users;
    berth_accounts::Operators, operators: accounts::operators;
    berth_sso::SingleSignOn, sso: berth_sso::routes::routes;
    berth_scim::Scim, scim: berth_scim::routes::routes;
    berth_billing::Ledger, ledger: billing::ledger;
    berth_billing::Budgets, budgets: billing::budgets;
    berth_billing::Invoices, invoices: billing::invoices;
    berth_billing::Payments, payments: billing::payments;
    berth_billing::UsageReports, usage: billing::usage;
    berth_billing::Reconciliations, reconciliations: billing::reconciliations;
    berth_storage::Files, files: storage::files;
    berth_storage::JobRetention, job_retention: storage::retention;
    berth_storage::Volumes, volumes: storage::volumes;
    berth_storage::StorageClasses, storage_classes: storage::storage_classes;
    berth_storage::Secrets, secrets: storage::secrets;
    berth_fleet::Cluster, cluster: fleet::cluster;
    berth_fleet::Nodes, nodes: fleet::nodes;
    berth_fleet::Enrolment, enrolment: fleet::enrolment;
    berth_fleet::Health, health: fleet::health;
    berth_fleet::Inventory, inventory: fleet::inventory;
    berth_fleet::Offerings, offerings: fleet::offerings;
    berth_fleet::EgressPolicies, egress_policies: fleet::egress;
    berth_jobs::Quotas, quotas: jobs::quotas;
    berth_jobs::Jobs, jobs: jobs::jobs, jobs::job_streams, jobs::job_logs;
    berth_jobs::OperatorJobs, operator_jobs: jobs::operator_jobs;
    berth_jobs::Drains, drains: jobs::drains;
    berth_jobs::LostNodes, lost_nodes: jobs::lost_nodes;
    berth_reservations::Reservations, reservations: reservations::routes;
    berth_access::Terminals, terminals: access::terminals;
    berth_access::Ports, ports: access::ports;
    berth_identity::Identity, identity: berth_identity::routes::routes;
    berth_jobs::Templates, templates: jobs::templates;
    berth_services::GatewaySync, gateway_sync: berth_services::gateways::routes::routes;
    berth_webhooks::Webhooks, webhooks: berth_webhooks::routes::routes;
    berth_services::Services, services: services::services, services::hosts, services::keys, services::gateways,
        berth_services::promises::routes::routes;
    metrics::Metrics, metrics: metrics::routes::routes;
    berth_foundation::loops::Loops, loops: loops::routes::routes;
    berth_foundation::AuditLog, audit_log: audit_log::routes;
    berth_foundation::AuditPush, audit_push: audit_destinations::routes;
}
