//! Selection of a role for a token or a member. The portal checks the right to grant it.

use berth_types::accounts::Role;
use leptos::prelude::*;

use crate::ui::SelectField;

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
    let hint = Signal::derive(move || role.get().description());
    let choose = move |name: String| role.set(Role::parse(&name).unwrap_or(Role::Viewer));
    view! {
        <SelectField label="Role" id=id hint=hint error=error choose=Callback::new(choose)>
            {role_options(role.get_untracked())}
        </SelectField>
    }
}
