//! Loading of data, of an organization or without one, with the states before the answer.

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos_meta::Title;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::parts::{Loading, NoOrg, when_some};
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::use_session;
use crate::ui::{NotFound, Retry, RetryNotice, suspended};

/// Data that a page loads, on the server or in the browser.
pub trait PageData: Clone + Serialize + DeserializeOwned + Send + Sync + 'static {}
impl<T: Clone + Serialize + DeserializeOwned + Send + Sync + 'static> PageData for T {}

/// Returns the page of an object that does not load, with a heading and a way out.
pub fn problem_page(problem: Problem, retry: Retry) -> AnyView {
    view! {
        <Title text=window_title("Page not available")/>
        <div class="page">
            <div class="page__head"><h1>"Page not available"</h1></div>
            <RetryNotice problem=problem retry=retry/>
            <p><a class="btn" href="/" rel="external">"Open Home"</a></p>
        </div>
    }
    .into_any()
}

/// Loads data of the chosen organization, again after another choice, and renders it.
pub fn org_view<T: PageData, F: Future<Output = Answer<T>> + Send + 'static>(
    load: fn(OrgId) -> F,
    draw: fn(T) -> AnyView,
) -> AnyView {
    let org = use_session().org;
    let data: Resource<Answer<Option<T>>> =
        Resource::new(move || org.get(), move |org: Option<OrgId>| when_some(org.map(load)));
    data_view(data, draw)
}

/// Renders data of an organization, its problem, or the state without an organization.
pub fn data_view<T: PageData>(
    data: Resource<Answer<Option<T>>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
) -> AnyView {
    answer_view(data, move |value| org_value(value, draw))
}

/// Renders data without an organization, or its problem.
pub fn answer_view<T: PageData>(
    data: Resource<Answer<T>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
) -> AnyView {
    loaded_view(data, draw, false)
}

/// Renders one object of an organization, or its problem. An unknown object has the page of an unknown address.
pub fn org_object_view<T: PageData>(
    data: Resource<Answer<Option<T>>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
) -> AnyView {
    object_view(data, move |value| org_value(value, draw))
}

/// Renders one object without an organization, or its problem. An unknown object has the page of an unknown address.
pub fn object_view<T: PageData>(
    data: Resource<Answer<T>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
) -> AnyView {
    loaded_view(data, draw, true)
}

/// Renders a value, or the state without an organization.
fn org_value<T>(value: Option<T>, draw: impl Fn(T) -> AnyView) -> AnyView {
    match value {
        Some(value) => draw(value),
        None => view! { <NoOrg/> }.into_any(),
    }
}

/// Renders data or its problem. `is_object` is true if an unknown object has the page of an unknown address.
fn loaded_view<T: PageData>(
    data: Resource<Answer<T>>,
    draw: impl Fn(T) -> AnyView + Copy + Send + 'static,
    is_object: bool,
) -> AnyView {
    let retry = Retry::new(move || data.refetch());
    view! {
        <Suspense fallback=|| view! { <Loading/> }>
            {move || suspended(async move {
                let answer = data.await;
                move || match answer {
                    Err(problem) if is_object && problem.status == 404 => view! { <NotFound/> }.into_any(),
                    Err(problem) if is_object => problem_page(problem, retry),
                    Err(problem) => view! { <RetryNotice problem=problem retry=retry/> }.into_any(),
                    Ok(value) => {
                        retry.succeeded();
                        draw(value)
                    }
                }
            })}
        </Suspense>
    }
    .into_any()
}
