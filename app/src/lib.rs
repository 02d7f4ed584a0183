//! The web app of Berth: rendered by the portal, then hydrated in the browser.
//!
//! The app uses only the public REST API through `api`, without server functions. Rules, prices and rights come
//! from its answers.

#![recursion_limit = "512"]

pub mod address;
pub mod api;
mod cookies;
mod hydration;
pub mod identity;
pub mod live;
pub mod pages;
mod passkeys;
mod proof;
mod rail;
mod routes;
pub mod session;
#[cfg(feature = "ssr")]
pub mod shell;
pub mod theme;
pub mod ui;

use leptos::prelude::*;
use leptos_meta::{Title, provide_meta_context};
use leptos_router::components::{ParentRoute, Route, Router, Routes};
use leptos_router::{SsrMode, path};

use pages::org_address::{OrgLayout, OrgRedirect};
use session::Layout;
use ui::NotFound;

/// Every page with its address.
#[component]
pub fn App() -> impl IntoView {
    provide_meta_context();
    let identity = identity::page_identity();
    provide_context(identity::CurrentLogo(RwSignal::new(identity.logo.clone())));
    provide_context(identity);
    provide_context(RwSignal::new(theme::page_theme()));
    provide_context(ui::zone::page_zone());
    let palette = ui::PaletteSlot::new(None);
    provide_context(palette);
    view! {
        <Router>
            <Routes fallback=|| view! { <NotFoundPage/> }>
                <Route path=path!("/setup") view=routes::SETUP ssr=SsrMode::Async/>
                <Route path=path!("/sign-in") view=routes::SIGN_IN ssr=SsrMode::Async/>
                <Route path=path!("/sign-up") view=routes::SIGN_UP ssr=SsrMode::Async/>
                <Route path=path!("/forgot") view=routes::FORGOT ssr=SsrMode::Async/>
                <Route path=path!("/reset") view=routes::RESET ssr=SsrMode::Async/>
                <Route path=path!("/verify") view=routes::VERIFY ssr=SsrMode::Async/>
                <Route path=path!("/join") view=routes::JOIN ssr=SsrMode::Async/>
                <ParentRoute path=path!("") view=Layout ssr=SsrMode::Async>
                    <ParentRoute path=path!("/orgs/:org") view=OrgLayout ssr=SsrMode::Async>
                        <Route path=path!("") view=routes::HOME ssr=SsrMode::Async/>
                        <Route path=path!("/launch") view=routes::LAUNCH ssr=SsrMode::Async/>
                        <Route path=path!("/jobs") view=routes::JOBS ssr=SsrMode::Async/>
                        <Route path=path!("/jobs/compare") view=routes::COMPARE ssr=SsrMode::Async/>
                        <Route path=path!("/jobs/:job") view=routes::JOB ssr=SsrMode::Async/>
                        <Route path=path!("/services") view=routes::SERVICES ssr=SsrMode::Async/>
                        <Route path=path!("/services/new") view=routes::NEW_SERVICE ssr=SsrMode::Async/>
                        <Route path=path!("/services/:service") view=routes::SERVICE ssr=SsrMode::Async/>
                        <Route
                            path=path!("/services/:service/new-revision")
                            view=routes::NEW_REVISION
                            ssr=SsrMode::Async
                        />
                        <Route path=path!("/reservations") view=routes::RESERVATIONS ssr=SsrMode::Async/>
                        <Route
                            path=path!("/reservations/:reservation")
                            view=routes::RESERVATION
                            ssr=SsrMode::Async
                        />
                        <Route path=path!("/cluster") view=routes::CLUSTER ssr=SsrMode::Async/>
                        <Route path=path!("/billing") view=routes::BILLING ssr=SsrMode::Async/>
                        <Route path=path!("/usage") view=routes::USAGE ssr=SsrMode::Async/>
                        <Route path=path!("/budgets") view=routes::BUDGETS ssr=SsrMode::Async/>
                        <Route path=path!("/invoices") view=routes::INVOICES ssr=SsrMode::Async/>
                        <Route path=path!("/invoices/:invoice") view=routes::INVOICE ssr=SsrMode::Async/>
                        <Route path=path!("/statements/:month") view=routes::STATEMENT ssr=SsrMode::Async/>
                        <Route path=path!("/limits") view=routes::LIMITS ssr=SsrMode::Async/>
                        <Route path=path!("/team") view=routes::TEAM ssr=SsrMode::Async/>
                        <Route path=path!("/tokens") view=routes::TOKENS ssr=SsrMode::Async/>
                        <Route path=path!("/inference-keys") view=routes::INFERENCE_KEYS ssr=SsrMode::Async/>
                        <Route path=path!("/webhooks") view=routes::WEBHOOKS ssr=SsrMode::Async/>
                        <Route path=path!("/secrets") view=routes::SECRETS ssr=SsrMode::Async/>
                        <Route path=path!("/volumes") view=routes::VOLUMES ssr=SsrMode::Async/>
                        <Route path=path!("/volumes/:volume") view=routes::VOLUME ssr=SsrMode::Async/>
                    </ParentRoute>
                    <Route path=path!("/") view=routes::ROOT ssr=SsrMode::Async/>
                    <Route path=path!("/account") view=routes::ACCOUNT ssr=SsrMode::Async/>
                    <Route
                        path=path!("/account/second-factors")
                        view=routes::FACTORS
                        ssr=SsrMode::Async
                    />
                    <Route path=path!("/launch") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/jobs") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:job") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/services") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/services/new") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/services/:service") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/inference-keys") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/reservations") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/reservations/:reservation") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/cluster") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/billing") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/usage") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/budgets") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/invoices") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/invoices/:invoice") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/statements/:month") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/limits") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/team") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/tokens") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/webhooks") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/secrets") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/volumes") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/volumes/:volume") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/operator") view=routes::OPERATOR_OVERVIEW ssr=SsrMode::Async/>
                    <Route path=path!("/operator/nodes") view=routes::NODES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/nodes/:node") view=routes::BOARDS ssr=SsrMode::Async/>
                    <Route
                        path=path!("/operator/nodes/:node/boards/:gpu")
                        view=routes::BOARD
                        ssr=SsrMode::Async
                    />
                    <Route path=path!("/operator/jobs") view=routes::ALL_JOBS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/stuck") view=routes::STUCK ssr=SsrMode::Async/>
                    <Route path=path!("/operator/gateways") view=routes::GATEWAYS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/host-names") view=routes::HOST_NAMES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/fleet") view=routes::HARDWARE ssr=SsrMode::Async/>
                    <Route path=path!("/operator/prices") view=routes::PRICES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/token-prices") view=routes::TOKEN_PRICES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/promises") view=routes::PROMISES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/orgs") view=routes::ORGS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/changes") view=routes::CHANGES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/people") view=routes::PEOPLE ssr=SsrMode::Async/>
                    <Route path=path!("/operator/operators") view=routes::OPERATORS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/invoices") view=routes::ALL_INVOICES ssr=SsrMode::Async/>
                    <Route path=path!("/operator/books") view=routes::RECONCILIATION ssr=SsrMode::Async/>
                    <Route path=path!("/operator/system") view=routes::SYSTEM ssr=SsrMode::Async/>
                    <Route path=path!("/operator/limits") view=routes::ALL_LIMITS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/limits/:org") view=routes::ORG_LIMITS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/reservations") view=routes::ALL_RESERVATIONS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/settings") view=routes::SETTINGS ssr=SsrMode::Async/>
                    <Route path=path!("/operator/gallery") view=routes::GALLERY ssr=SsrMode::Async/>
                    <Route path=path!("/operator/audit") view=routes::AUDIT ssr=SsrMode::Async/>
                </ParentRoute>
            </Routes>
            <ui::Palette data=palette/>
        </Router>
        <pages::proof_dialog::ProofDialog/>
        <Title formatter=title_html/>
    }
}

/// Returns a title as HTML on the server, because `leptos_meta` writes it without escapes. Names of other people
/// are parts of titles.
#[cfg(not(feature = "hydrate"))]
fn title_html(title: String) -> String {
    title.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Returns a title as text for the browser.
#[cfg(feature = "hydrate")]
fn title_html(title: String) -> String {
    title
}

/// The page of an unknown address.
#[component]
fn NotFoundPage() -> impl IntoView {
    view! {
        <main class="main" id="main">
            <pages::parts::Brand/>
            <NotFound/>
        </main>
    }
}

/// Hydrates the page that the portal rendered.
#[cfg(feature = "hydrate")]
#[wasm_bindgen::prelude::wasm_bindgen]
pub fn hydrate() {
    console_error_panic_hook::set_once();
    hydration::hydrate_page();
}
