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
use leptos_router::{Lazy, SsrMode, path};

use pages::org_address::{OrgLayout, OrgRedirect};
use session::Layout;
use ui::NotFound;

/// Every page with its address.
#[component]
pub fn App() -> impl IntoView {
    provide_meta_context();
    provide_context(identity::page_identity());
    provide_context(RwSignal::new(theme::page_theme()));
    provide_context(ui::zone::page_zone());
    view! {
        <Router>
            <Routes fallback=|| view! { <NotFoundPage/> }>
                <Route path=path!("/setup") view={Lazy::<routes::Setup>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/sign-in") view={Lazy::<routes::SignIn>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/sign-up") view={Lazy::<routes::SignUp>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/forgot") view={Lazy::<routes::Forgot>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/reset") view={Lazy::<routes::Reset>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/verify") view={Lazy::<routes::Verify>::new()} ssr=SsrMode::Async/>
                <Route path=path!("/join") view={Lazy::<routes::Join>::new()} ssr=SsrMode::Async/>
                <ParentRoute path=path!("") view=Layout ssr=SsrMode::Async>
                    <ParentRoute path=path!("/orgs/:org") view=OrgLayout ssr=SsrMode::Async>
                        <Route path=path!("") view={Lazy::<routes::Home>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/launch") view={Lazy::<routes::Launch>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/jobs") view={Lazy::<routes::Jobs>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/jobs/compare") view={Lazy::<routes::Compare>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/jobs/:job") view={Lazy::<routes::Job>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/reservations") view={Lazy::<routes::Reservations>::new()} ssr=SsrMode::Async/>
                        <Route
                            path=path!("/reservations/:reservation")
                            view={Lazy::<routes::Reservation>::new()}
                            ssr=SsrMode::Async
                        />
                        <Route path=path!("/cluster") view={Lazy::<routes::Cluster>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/billing") view={Lazy::<routes::Billing>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/usage") view={Lazy::<routes::Usage>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/budgets") view={Lazy::<routes::Budgets>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/invoices") view={Lazy::<routes::Invoices>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/invoices/:invoice") view={Lazy::<routes::Invoice>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/statements/:month") view={Lazy::<routes::Statement>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/limits") view={Lazy::<routes::Limits>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/team") view={Lazy::<routes::Team>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/tokens") view={Lazy::<routes::Tokens>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/webhooks") view={Lazy::<routes::Webhooks>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/secrets") view={Lazy::<routes::Secrets>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/volumes") view={Lazy::<routes::Volumes>::new()} ssr=SsrMode::Async/>
                        <Route path=path!("/volumes/:volume") view={Lazy::<routes::Volume>::new()} ssr=SsrMode::Async/>
                    </ParentRoute>
                    <Route path=path!("/") view={Lazy::<routes::Root>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/account") view={Lazy::<routes::Account>::new()} ssr=SsrMode::Async/>
                    <Route
                        path=path!("/account/second-factors")
                        view={Lazy::<routes::Factors>::new()}
                        ssr=SsrMode::Async
                    />
                    <Route path=path!("/launch") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/jobs") view=OrgRedirect ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:job") view=OrgRedirect ssr=SsrMode::Async/>
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
                    <Route path=path!("/operator") view={Lazy::<routes::OperatorOverview>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/nodes") view={Lazy::<routes::Nodes>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/nodes/:node") view={Lazy::<routes::Boards>::new()} ssr=SsrMode::Async/>
                    <Route
                        path=path!("/operator/nodes/:node/boards/:gpu")
                        view={Lazy::<routes::Board>::new()}
                        ssr=SsrMode::Async
                    />
                    <Route path=path!("/operator/jobs") view={Lazy::<routes::AllJobs>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/stuck") view={Lazy::<routes::Stuck>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/fleet") view={Lazy::<routes::Hardware>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/prices") view={Lazy::<routes::Prices>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/orgs") view={Lazy::<routes::Orgs>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/people") view={Lazy::<routes::People>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/invoices") view={Lazy::<routes::AllInvoices>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/books") view={Lazy::<routes::Reconciliation>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/system") view={Lazy::<routes::System>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/limits") view={Lazy::<routes::AllLimits>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/limits/:org") view={Lazy::<routes::OrgLimits>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/reservations") view={Lazy::<routes::AllReservations>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/settings") view={Lazy::<routes::Settings>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/gallery") view={Lazy::<routes::Gallery>::new()} ssr=SsrMode::Async/>
                    <Route path=path!("/operator/audit") view={Lazy::<routes::Audit>::new()} ssr=SsrMode::Async/>
                </ParentRoute>
            </Routes>
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
