//! The web app of Berth: rendered by the portal, then alive in the browser.
//!
//! It speaks only to the public REST API, through `api`; it has no server functions and no door of
//! its own. Rules, prices and rights come from answers, never from here.

#![recursion_limit = "512"]

pub mod api;
pub mod live;
pub mod pages;
pub mod session;
#[cfg(feature = "ssr")]
pub mod shell;
pub mod ui;

use leptos::prelude::*;
use leptos_meta::provide_meta_context;
use leptos_router::components::{ParentRoute, Route, Router, Routes};
use leptos_router::{SsrMode, path};

use pages::operator;
use session::Layout;
use ui::NotFound;

/// Every page with its address.
#[component]
pub fn App() -> impl IntoView {
    provide_meta_context();
    view! {
        <Router>
            <Routes fallback=|| view! { <NotFoundPage/> }>
                <Route path=path!("/setup") view=pages::setup::SetupPage ssr=SsrMode::Async/>
                <Route path=path!("/sign-in") view=pages::sign_in::SignInPage ssr=SsrMode::Async/>
                <Route path=path!("/sign-up") view=pages::sign_up::SignUpPage ssr=SsrMode::Async/>
                <ParentRoute path=path!("") view=Layout ssr=SsrMode::Async>
                    <Route path=path!("/") view=pages::home::HomePage ssr=SsrMode::Async/>
                    <Route path=path!("/launch") view=pages::launch::LaunchPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs") view=pages::jobs::JobsPage ssr=SsrMode::Async/>
                    <Route path=path!("/jobs/:job") view=pages::job::JobPage ssr=SsrMode::Async/>
                    <Route path=path!("/cluster") view=pages::cluster::ClusterPage ssr=SsrMode::Async/>
                    <Route path=path!("/billing") view=pages::billing::BillingPage ssr=SsrMode::Async/>
                    <Route path=path!("/tokens") view=pages::tokens::TokensPage ssr=SsrMode::Async/>
                    <Route path=path!("/operator/nodes") view=operator::nodes::NodesPage ssr=SsrMode::Async/>
                    <Route path=path!("/operator/prices") view=operator::prices::PricesPage ssr=SsrMode::Async/>
                    <Route path=path!("/operator/orgs") view=operator::orgs::OrgsPage ssr=SsrMode::Async/>
                </ParentRoute>
            </Routes>
        </Router>
    }
}

/// What an address that is nobody's shows.
#[component]
fn NotFoundPage() -> impl IntoView {
    view! { <main class="main" id="main"><NotFound/></main> }
}

/// Brings the page that the portal rendered to life.
#[cfg(feature = "hydrate")]
#[wasm_bindgen::prelude::wasm_bindgen]
pub fn hydrate() {
    console_error_panic_hook::set_once();
    leptos::mount::hydrate_body(App);
}
