//! Assignment of the pages to parts of the browser's module. A part is loaded at the first visit of one of its
//! pages.
//!
//! A page has its own part; a list shares the part of its objects. `end2end/tools/join_chunks.mjs` joins the common
//! code of the parts into few files.

use std::pin::Pin;

use leptos::prelude::*;
use leptos::wasm_split::SplitLoaderError;
#[cfg(feature = "hydrate")]
use leptos::wasm_split::wasm_split;
use leptos_router::ChooseView;

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

type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A page whose part of the module is loaded at its first visit. All pages are values of this one type, because each
/// type of a page would repeat the code of the router in the main module.
#[derive(Clone, Copy)]
pub struct LazyPage {
    #[cfg(feature = "hydrate")]
    load: fn() -> LocalFuture<Result<(), SplitLoaderError>>,
    view: fn() -> LocalFuture<Result<AnyView, SplitLoaderError>>,
}

impl ChooseView for LazyPage {
    async fn choose(self) -> AnyView {
        match (self.view)().await {
            Ok(page) => page,
            Err(_) => view! { <Unloaded/> }.into_any(),
        }
    }

    // Without it hydration would insert the rendered page a second time.
    async fn preload(&self) {
        #[cfg(feature = "hydrate")]
        load_part(self.load).await;
    }
}

macro_rules! page {
    ($part:ident, $page:ident, $view:ident, $load:ident, $component:path) => {
        #[cfg(feature = "hydrate")]
        #[wasm_split($part, wasm_split_path = ::leptos::wasm_split, preload($load), fallible)]
        fn $view() -> Result<AnyView, SplitLoaderError> {
            Ok($component().into_any())
        }

        // The portal has all parts.
        #[cfg(not(feature = "hydrate"))]
        async fn $view() -> Result<AnyView, SplitLoaderError> {
            Ok($component().into_any())
        }

        pub const $page: LazyPage = LazyPage {
            #[cfg(feature = "hydrate")]
            load: || Box::pin($load()),
            view: || Box::pin($view()),
        };
    };
}

page!(entry, SETUP, setup, load_setup, pages::setup::SetupPage);
page!(entry, SIGN_IN, sign_in, load_sign_in, pages::sign_in::SignInPage);
page!(entry, SIGN_UP, sign_up, load_sign_up, pages::sign_up::SignUpPage);
page!(entry, JOIN, join, load_join, pages::join::JoinPage);
page!(entry, FORGOT, forgot, load_forgot, pages::forgot::ForgotPage);
page!(entry, RESET, reset, load_reset, pages::reset::ResetPage);
page!(entry, VERIFY, verify, load_verify, pages::verify::VerifyPage);
page!(start, ROOT, root, load_root, pages::start::RootPage);
page!(home, HOME, home, load_home, pages::home::HomePage);
page!(launch, LAUNCH, launch, load_launch, pages::launch::LaunchPage);
page!(jobs, JOBS, jobs, load_jobs, pages::jobs::JobsPage);
page!(account, FACTORS, factors_page, load_factors, pages::account_factors::SecondFactorsPage);
page!(job, JOB, job, load_job, pages::job::JobPage);
page!(compare, COMPARE, compare_jobs, load_compare, pages::compare::ComparePage);
page!(services, SERVICES, services, load_services, pages::services::ServicesPage);
page!(services, SERVICE, service, load_service, pages::services::one::ServicePage);
page!(new_service, NEW_SERVICE, new_service, load_new_service, pages::services::create::NewServicePage);
page!(
    new_service,
    NEW_REVISION,
    new_revision,
    load_new_revision,
    pages::services::new_revision::NewRevisionPage
);
page!(
    inference_keys,
    INFERENCE_KEYS,
    inference_keys,
    load_inference_keys,
    pages::inference_keys::InferenceKeysPage
);
page!(calendar, RESERVATIONS, reservations, load_reservations, pages::reservations::ReservationsPage);
page!(calendar, RESERVATION, reservation, load_reservation, pages::reservations::ReservationPage);
page!(cluster, CLUSTER, cluster, load_cluster, pages::cluster::ClusterPage);
page!(billing, BILLING, billing, load_billing, pages::billing::BillingPage);
page!(usage, USAGE, usage, load_usage, pages::usage::UsagePage);
page!(budgets, BUDGETS, budgets, load_budgets, pages::budgets::BudgetsPage);
page!(invoices, INVOICES, invoices, load_invoices, pages::invoices::InvoicesPage);
page!(invoices, INVOICE, invoice, load_invoice, pages::invoices::InvoicePage);
page!(invoices, STATEMENT, statement, load_statement, pages::invoices::StatementPage);
page!(team, TEAM, team, load_team, pages::team::TeamPage);
page!(tokens, TOKENS, tokens, load_tokens, pages::tokens::TokensPage);
page!(webhooks, WEBHOOKS, webhooks, load_webhooks, pages::webhooks::WebhooksPage);
page!(secrets, SECRETS, secrets, load_secrets, pages::secrets::SecretsPage);
page!(volumes, VOLUMES, volumes, load_volumes, pages::volumes::VolumesPage);
page!(volumes, VOLUME, volume, load_volume, pages::volumes::one::VolumePage);
page!(account, ACCOUNT, account_page, load_account, pages::account::AccountPage);
page!(limits, LIMITS, limits, load_limits, pages::limits::LimitsPage);
page!(
    overview,
    OPERATOR_OVERVIEW,
    operator_overview,
    load_operator_overview,
    operator::overview::OverviewPage
);
page!(nodes, NODES, nodes, load_nodes, operator::nodes::NodesPage);
page!(boards, BOARD, board, load_board, operator::boards::one::BoardPage);
page!(boards, BOARDS, boards, load_boards, operator::boards::BoardsPage);
page!(all_jobs, ALL_JOBS, all_jobs, load_all_jobs, operator::jobs::AllJobsPage);
page!(stuck, STUCK, stuck, load_stuck, operator::stuck::StuckPage);
page!(gateways, GATEWAYS, gateways, load_gateways, operator::gateways::GatewaysPage);
page!(gateways, HOST_NAMES, host_names, load_host_names, operator::host_names::HostNamesPage);
page!(hardware, HARDWARE, hardware, load_hardware, operator::hardware::HardwarePage);
page!(prices, PRICES, prices, load_prices, operator::prices::PricesPage);
page!(token_prices, TOKEN_PRICES, token_prices, load_token_prices, operator::token_prices::TokenPricesPage);
page!(promises, PROMISES, promises, load_promises, operator::promises::PromisesPage);
page!(people, PEOPLE, people_page, load_people, operator::people::PeoplePage);
page!(operators, OPERATORS, operators, load_operators, operator::operators::OperatorsPage);
page!(orgs, ORGS, orgs, load_orgs, operator::orgs::OrgsPage);
page!(changes, CHANGES, changes, load_changes, operator::changes::ChangesPage);
page!(all_limits, ALL_LIMITS, all_limits, load_all_limits, operator::limits::LimitsPage);
page!(all_limits, ORG_LIMITS, org_limits, load_org_limits, operator::limits::org::OrgLimitsPage);
page!(
    all_reservations,
    ALL_RESERVATIONS,
    all_reservations,
    load_all_reservations,
    operator::reservations::ReservationsPage
);
page!(audit, AUDIT, audit, load_audit, operator::audit::AuditPage);
page!(settings, SETTINGS, settings, load_settings, operator::settings::SettingsPage);
page!(gallery, GALLERY, gallery, load_gallery, pages::gallery::GalleryPage);
page!(all_invoices, ALL_INVOICES, all_invoices, load_all_invoices, operator::invoices::InvoicesPage);
page!(system, SYSTEM, system, load_system, operator::system::SystemPage);
page!(
    reconciliation,
    RECONCILIATION,
    reconciliation,
    load_reconciliation,
    operator::reconciliation::ReconciliationPage
);
