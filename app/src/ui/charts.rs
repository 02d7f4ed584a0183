//! stub
use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::Metrics;
use leptos::prelude::*;
/// stub
#[component]
pub fn Charts(org: OrgId, job: JobId, seed: Metrics) -> impl IntoView {
    let _ = (org, job, seed);
    view! { <div></div> }
}
