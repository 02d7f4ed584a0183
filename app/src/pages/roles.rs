//! Selection of a role for a token or a member. The portal checks the right to grant it.

use berth_types::accounts::Role;
use leptos::prelude::*;

use super::parts::FieldError;

/// Returns the options of all roles.
pub fn role_options(selected: Role) -> Vec<AnyView> {
    Role::ALL
        .into_iter()
        .map(|role| {
            let selected = role == selected;
            view! { <option value=role.name() selected=selected>{role.name()}</option> }.into_any()
        })
        .collect()
}

/// The field of a role with its rights below.
#[component]
pub fn RoleField(
    /// The id and the name of the field; unique in the page.
    id: &'static str,
    /// The chosen role.
    role: RwSignal<Role>,
    /// The error below the field.
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
            <p class="field__hint">{move || role.get().description()}</p>
            <FieldError id=error_id error=error/>
        </div>
    }
}
