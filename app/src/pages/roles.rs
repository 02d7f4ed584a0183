//! A choice of roles, for a token or for a person.
//!
//! Must not decide who may give which: that is the portal's word.

use berth_types::accounts::Role;
use leptos::prelude::*;

use super::parts::FieldError;

/// The roles to choose from.
pub fn role_options(picked: Role) -> Vec<AnyView> {
    Role::ALL
        .into_iter()
        .map(|role| {
            let picked = role == picked;
            view! { <option value=role.name() selected=picked>{role.name()}</option> }.into_any()
        })
        .collect()
}

/// A choice of one, with what it may do.
#[component]
pub fn RoleField(
    /// Also its name; unique in the page.
    id: &'static str,
    /// The chosen one.
    role: RwSignal<Role>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let error_id = format!("{id}-error");
    let described = error_id.clone();
    view! {
        <div class="field">
            <label class="field__label" for=id>"Role"</label>
            <select
                id=id
                name=id
                aria-describedby=described
                on:change=move |ev| {
                    role.set(Role::parse(&event_target_value(&ev)).unwrap_or(Role::Viewer));
                }
            >
                {role_options(role.get_untracked())}
            </select>
            <p class="field__hint">{move || role.get().words()}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}
