//! stub
use berth_types::ids::{JobId, OrgId};
use leptos::prelude::*;
/// stub
#[component]
pub fn LogView(org: OrgId, job: JobId) -> impl IntoView {
    let _ = (org, job);
    view! { <div></div> }
}
