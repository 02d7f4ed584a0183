//! Assignment of the pages to parts of the browser's module. A part is loaded at the first visit of one of its
//! pages.
//!
//! A page has its own part; a list shares the part of its objects. `end2end/tools/join_chunks.mjs` joins the common
//! code of the parts into few files.

use leptos::prelude::*;
use leptos::wasm_split::SplitLoaderError;
#[cfg(feature = "hydrate")]
use leptos::wasm_split::wasm_split;
use leptos_router::LazyRoute;

#[cfg(feature = "hydrate")]
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

        #[cfg(feature = "hydrate")]
        #[wasm_split($part, wasm_split_path = ::leptos::wasm_split, preload($load), fallible)]
        fn $view() -> Result<AnyView, SplitLoaderError> {
            Ok($page().into_any())
        }

        // The portal has all parts.
        #[cfg(not(feature = "hydrate"))]
        async fn $view() -> Result<AnyView, SplitLoaderError> {
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
                #[cfg(feature = "hydrate")]
                load_part(async || $load().await).await;
            }
        }
    };
}

route!(entry, Setup, setup, load_setup, pages::setup::SetupPage);
route!(entry, SignIn, sign_in, load_sign_in, pages::sign_in::SignInPage);
route!(entry, SignUp, sign_up, load_sign_up, pages::sign_up::SignUpPage);
route!(entry, Join, join, load_join, pages::join::JoinPage);
route!(entry, Forgot, forgot, load_forgot, pages::forgot::ForgotPage);
route!(entry, Reset, reset, load_reset, pages::reset::ResetPage);
route!(entry, Verify, verify, load_verify, pages::verify::VerifyPage);
route!(start, Root, root, load_root, pages::start::RootPage);
route!(home, Home, home, load_home, pages::home::HomePage);
route!(launch, Launch, launch, load_launch, pages::launch::LaunchPage);
route!(jobs, Jobs, jobs, load_jobs, pages::jobs::JobsPage);
route!(account, Factors, factors_page, load_factors, pages::account_factors::SecondFactorsPage);
route!(job, Job, job, load_job, pages::job::JobPage);
route!(compare, Compare, compare_jobs, load_compare, pages::compare::ComparePage);
route!(calendar, Reservations, reservations, load_reservations, pages::reservations::ReservationsPage);
route!(calendar, Reservation, reservation, load_reservation, pages::reservations::ReservationPage);
route!(cluster, Cluster, cluster, load_cluster, pages::cluster::ClusterPage);
route!(billing, Billing, billing, load_billing, pages::billing::BillingPage);
route!(usage, Usage, usage, load_usage, pages::usage::UsagePage);
route!(budgets, Budgets, budgets, load_budgets, pages::budgets::BudgetsPage);
route!(invoices, Invoices, invoices, load_invoices, pages::invoices::InvoicesPage);
route!(invoices, Invoice, invoice, load_invoice, pages::invoices::InvoicePage);
route!(invoices, Statement, statement, load_statement, pages::invoices::StatementPage);
route!(team, Team, team, load_team, pages::team::TeamPage);
route!(tokens, Tokens, tokens, load_tokens, pages::tokens::TokensPage);
route!(webhooks, Webhooks, webhooks, load_webhooks, pages::webhooks::WebhooksPage);
route!(secrets, Secrets, secrets, load_secrets, pages::secrets::SecretsPage);
route!(volumes, Volumes, volumes, load_volumes, pages::volumes::VolumesPage);
route!(volumes, Volume, volume, load_volume, pages::volumes::one::VolumePage);
route!(account, Account, account_page, load_account, pages::account::AccountPage);
route!(limits, Limits, limits, load_limits, pages::limits::LimitsPage);
route!(
    overview,
    OperatorOverview,
    operator_overview,
    load_operator_overview,
    operator::overview::OverviewPage
);
route!(nodes, Nodes, nodes, load_nodes, operator::nodes::NodesPage);
route!(boards, Board, board, load_board, operator::boards::one::BoardPage);
route!(boards, Boards, boards, load_boards, operator::boards::BoardsPage);
route!(all_jobs, AllJobs, all_jobs, load_all_jobs, operator::jobs::AllJobsPage);
route!(stuck, Stuck, stuck, load_stuck, operator::stuck::StuckPage);
route!(hardware, Hardware, hardware, load_hardware, operator::hardware::HardwarePage);
route!(prices, Prices, prices, load_prices, operator::prices::PricesPage);
route!(people, People, people_page, load_people, operator::people::PeoplePage);
route!(orgs, Orgs, orgs, load_orgs, operator::orgs::OrgsPage);
route!(all_limits, AllLimits, all_limits, load_all_limits, operator::limits::LimitsPage);
route!(all_limits, OrgLimits, org_limits, load_org_limits, operator::limits::org::OrgLimitsPage);
route!(
    all_reservations,
    AllReservations,
    all_reservations,
    load_all_reservations,
    operator::reservations::ReservationsPage
);
route!(audit, Audit, audit, load_audit, operator::audit::AuditPage);
route!(settings, Settings, settings, load_settings, operator::settings::SettingsPage);
route!(gallery, Gallery, gallery, load_gallery, pages::gallery::GalleryPage);
route!(all_invoices, AllInvoices, all_invoices, load_all_invoices, operator::invoices::InvoicesPage);
route!(system, System, system, load_system, operator::system::SystemPage);
route!(
    reconciliation,
    Reconciliation,
    reconciliation,
    load_reconciliation,
    operator::reconciliation::ReconciliationPage
);
