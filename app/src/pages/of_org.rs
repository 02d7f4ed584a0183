//! What a page asks for about an organization, and what stands there until it has come.
//!
//! Must not know a particular page or a particular call.

use std::future::Future;

use berth_types::ids::OrgId;
use leptos::prelude::*;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parts::{Loading, NoOrg, when_some};
use crate::api::Answer;
use crate::session::use_session;
use crate::ui::*;

/// Asks about the organization that is looked at, again for each that is chosen, and draws the answer.
pub fn of_org<T, F>(load: fn(OrgId) -> F, draw: fn(T) -> AnyView) -> AnyView
where
    T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static,
    F: Future<Output = Answer<T>> + Send + 'static,
{
    let org = use_session().org;
    let data: Resource<Answer<Option<T>>> =
        Resource::new(move || org.get(), move |org: Option<OrgId>| when_some(org.map(load)));
    drawn(data, draw)
}

/// Draws what was asked for once it is there, or what went wrong; nothing is asked for without an
/// organization.
pub fn drawn<T>(
    data: Resource<Answer<Option<T>>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
) -> AnyView
where
    T: Clone + Send + Sync + 'static,
{
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || Suspend::new(async move {
                match data.await {
                    Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                    Ok(None) => view! { <NoOrg/> }.into_any(),
                    Ok(Some(value)) => draw(value),
                }
            })}
        </Suspense>
    }
    .into_any()
}
