//! Notices of problems.

use berth_types::problems::Problem;
use leptos::prelude::*;

use super::pointers::labelled_error;
use super::{set_status, use_zone, zoned};
use crate::identity::window_title;

/// A problem of the portal with its code and request id.
#[component]
pub fn ProblemNotice(problem: Problem) -> impl IntoView {
    let id = if problem.request_id.is_empty() {
        problem.code.clone()
    } else {
        format!("{}, {}", problem.code, problem.request_id)
    };
    let more = problem.errors.iter().map(|error| view! { <li>{labelled_error(error)}</li> }).collect_view();
    let (detail, zone) = (problem.detail.clone(), use_zone());
    let list = (!problem.errors.is_empty()).then(|| view! { <ul>{more}</ul> });
    view! {
        <div class="banner banner--error" role="alert" tabindex="-1">
            <div class="banner__text">
                <strong class="banner__title">{problem.title.clone()}</strong>
                {move || zoned(&detail, zone.get())}
                {list}
                <span class="banner__id">{id}</span>
            </div>
        </div>
    }
}

/// The page of an unknown address, or of an address of another organization.
#[component]
pub fn NotFound() -> impl IntoView {
    set_status(404);
    view! {
        <leptos_meta::Title text=window_title("Not found")/>
        <div class="page">
            <div class="page__head"><h1>"Not found"</h1></div>
            <div class="empty">
                <p class="empty__text">
                    "This page does not exist, or it belongs to another organization."
                </p>
                <p><a class="btn" href="/" rel="external">"Open Home"</a></p>
            </div>
        </div>
    }
}
