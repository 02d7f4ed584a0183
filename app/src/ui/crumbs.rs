//! The way from a list to one of its objects.

use leptos::prelude::*;

/// The list of an object, as a link, and the name of the object.
#[component]
pub fn Crumbs(
    /// The name of the list.
    list: &'static str,
    /// The path of the list.
    #[prop(into)]
    path: Signal<String>,
    /// The name of the object.
    name: String,
) -> impl IntoView {
    view! {
        <nav class="crumbs" aria-label="Breadcrumb">
            <ol>
                <li><a href=move || path.get()>{list}</a></li>
                <li><span aria-current="page" class="quiet">{name}</span></li>
            </ol>
        </nav>
    }
}
