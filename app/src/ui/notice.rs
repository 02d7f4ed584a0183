//! What went wrong, said so that a person can go on.

use berth_types::problems::Problem;
use leptos::prelude::*;

use super::set_status;

/// A problem as the portal gave it: what happened, what it means, what to do, and its id for support.
#[component]
pub fn ProblemNotice(problem: Problem) -> impl IntoView {
    let id = if problem.request_id.is_empty() {
        problem.code.clone()
    } else {
        format!("{}, {}", problem.code, problem.request_id)
    };
    let more = problem.errors.iter().map(|error| view! { <li>{error.detail.clone()}</li> }).collect_view();
    let list = (!problem.errors.is_empty()).then(|| view! { <ul>{more}</ul> });
    view! {
        <div class="banner banner--error" role="alert">
            <div class="banner__text">
                <strong class="banner__title">{problem.title.clone()}</strong>
                {problem.detail.clone()}
                {list}
                <span class="banner__id">{id}</span>
            </div>
        </div>
    }
}

/// An address that is nobody's, or somebody else's.
#[component]
pub fn NotFound() -> impl IntoView {
    set_status(404);
    view! {
        <leptos_meta::Title text="Not found · Berth"/>
        <div class="page">
            <div class="page__head"><h1>"Not found"</h1></div>
            <div class="empty">
                <p class="empty__text">
                    "There is nothing at this address, or it belongs to an organization that you are not in."
                </p>
                <p><a class="btn" href="/">"Go home"</a></p>
            </div>
        </div>
    }
}
