//! Assignment of the pages to parts of the browser's module. A part is loaded at the first visit of one of its
//! pages.
//!
//! The parts are few, because the common code of two parts is one more file.

use leptos::prelude::*;
use leptos::wasm_split::{SplitLoaderError, wasm_split};
use leptos_router::LazyRoute;

use crate::hydration::load_part;
use crate::pages::{self, operator};
use crate::ui::Retry;

/// The view after a failed load of a page.
#[component]
fn Unloaded() -> impl IntoView {
    Retry::new(reload).when_portal_answers();
    view! {
        <div class="page">
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">"This page did not load"</strong>
                    "The connection to the portal was interrupted. Nothing was changed. The page loads again when the portal answers."
                </div>
            </div>
            <p><button class="btn" type="button" on:click=move |_| reload()>"Try again"</button></p>
        </div>
    }
}

/// Loads the present address again.
fn reload() {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        // After a failed reload the notice stays.
        let _ = window.location().reload();
    }
}

macro_rules! route {
    ($part:ident, $route:ident, $view:ident, $load:ident, $page:path) => {
        pub struct $route;

        #[wasm_split($part, wasm_split_path = ::leptos::wasm_split, preload($load), fallible)]
        fn $view() -> Result<AnyView, SplitLoaderError> {
            Ok($page().into_any())
        }

        impl LazyRoute for $route {
            fn data() -> Self {
                Self
            }
            async fn view(_this: Self) -> AnyView {
                match $view().await {
                    Ok(page) => page,
                    Err(_) => view! { <Unloaded/> }.into_any(),
                }
            }
            // Without it hydration would insert the rendered page a second time.
            async fn preload() {
                load_part(async || $load().await).await;
            }
        }
    };
}

route!(entry, Setup, setup, load_setup, pages::setup::SetupPage);
route!(entry, SignIn, sign_in, load_sign_in, pages::sign_in::SignInPage);
route!(entry, SignUp, sign_up, load_sign_up, pages::sign_up::SignUpPage);
route!(entry, Join, join, load_join, pages::join::JoinPage);
route!(entry, Root, root, load_root, pages::start::RootPage);
route!(forms, Factors, factors, load_factors, pages::account_factors::SecondFactorsPage);
route!(lists, Home, home, load_home, pages::home::HomePage);
route!(forms, Launch, launch, load_launch, pages::launch::LaunchPage);
route!(lists, Jobs, jobs, load_jobs, pages::jobs::JobsPage);
route!(job, Job, job, load_job, pages::job::JobPage);
route!(job, Compare, compare, load_compare, pages::compare::ComparePage);
route!(calendar, Reservations, reservations, load_reservations, pages::reservations::ReservationsPage);
route!(calendar, Reservation, reservation, load_reservation, pages::reservations::ReservationPage);
route!(lists, Cluster, cluster, load_cluster, pages::cluster::ClusterPage);
route!(forms, Billing, billing, load_billing, pages::billing::BillingPage);
route!(forms, Usage, usage, load_usage, pages::usage::UsagePage);
route!(forms, Budgets, budgets, load_budgets, pages::budgets::BudgetsPage);
route!(forms, Invoices, invoices, load_invoices, pages::invoices::InvoicesPage);
route!(forms, Invoice, invoice, load_invoice, pages::invoices::InvoicePage);
route!(forms, Statement, statement, load_statement, pages::invoices::StatementPage);
route!(forms, Team, team, load_team, pages::team::TeamPage);
route!(forms, Tokens, tokens, load_tokens, pages::tokens::TokensPage);
route!(forms, Webhooks, webhooks, load_webhooks, pages::webhooks::WebhooksPage);
route!(forms, Secrets, secrets, load_secrets, pages::secrets::SecretsPage);
route!(forms, Volumes, volumes, load_volumes, pages::volumes::VolumesPage);
route!(forms, Volume, volume, load_volume, pages::volumes::one::VolumePage);
route!(forms, Limits, limits, load_limits, pages::limits::LimitsPage);
route!(forms, OperatorOverview, operator_overview, load_operator_overview, operator::overview::OverviewPage);
route!(forms, Nodes, nodes, load_nodes, operator::nodes::NodesPage);
route!(forms, Boards, boards, load_boards, operator::boards::BoardsPage);
route!(forms, AllJobs, all_jobs, load_all_jobs, operator::jobs::AllJobsPage);
route!(forms, Stuck, stuck, load_stuck, operator::stuck::StuckPage);
route!(forms, Hardware, hardware, load_hardware, operator::hardware::HardwarePage);
route!(forms, Prices, prices, load_prices, operator::prices::PricesPage);
route!(forms, Orgs, orgs, load_orgs, operator::orgs::OrgsPage);
route!(forms, AllLimits, all_limits, load_all_limits, operator::limits::LimitsPage);
route!(forms, OrgLimits, org_limits, load_org_limits, operator::limits::org::OrgLimitsPage);
route!(
    forms,
    AllReservations,
    all_reservations,
    load_all_reservations,
    operator::reservations::ReservationsPage
);
route!(forms, Audit, audit, load_audit, operator::audit::AuditPage);
route!(forms, Settings, settings, load_settings, operator::settings::SettingsPage);
route!(forms, Gallery, gallery, load_gallery, pages::gallery::GalleryPage);
route!(forms, AllInvoices, all_invoices, load_all_invoices, operator::invoices::InvoicesPage);
route!(forms, System, system, load_system, operator::system::SystemPage);
route!(
    forms,
    Reconciliation,
    reconciliation,
    load_reconciliation,
    operator::reconciliation::ReconciliationPage
);
