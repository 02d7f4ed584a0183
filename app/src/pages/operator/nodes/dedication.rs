//! The organization of a dedicated node: its text and the dialog that sets it.

use berth_types::accounts::OrgSummary;
use berth_types::ids::OrgId;
use berth_types::nodes::{Dedication, Node};
use berth_types::problems::Problem;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem, FieldError, later};
use super::dialog::NodeDialog;
use crate::api;

const FIELDS: &[&str] = &["/org"];

/// The pause after the last key before the request for suggestions.
const PAUSE_MS: u64 = 200;

/// Returns the organization of a dedicated node as a text: `Dedicated to Kelda Lab`; `None` for other nodes.
pub fn dedication_text(node: &Node) -> Option<String> {
    node.dedicated_to.as_ref().map(|org| format!("Dedicated to {}", org.name))
}

/// Gets the organization with a slug, or with a name that no other has.
///
/// # Errors
/// No organization has that name, or several have it.
pub(super) fn get_org(text: &str, orgs: &[OrgSummary]) -> Result<OrgId, Problem> {
    if let Some(found) = orgs.iter().find(|org| org.org.slug == text) {
        return Ok(found.org.id);
    }
    let mut named = orgs.iter().filter(|org| org.org.name == text);
    let detail = match (named.next(), named.next()) {
        (Some(found), None) => return Ok(found.org.id),
        (Some(_), Some(_)) => "Several organizations have this name. Enter the slug of one of them.",
        (None, _) => "No organization has this name or slug. Copy it from the page Organizations.",
    };
    Err(Problem::invalid_field("/org", detail))
}

/// The field of the organization, with suggestions of the portal.
#[component]
fn OrgField(
    /// The name or the slug of the organization.
    text: RwSignal<String>,
    /// The error of the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let suggestions = RwSignal::new(Vec::<OrgSummary>::new());
    Effect::new(move |before: Option<()>| {
        let typed = text.with(|text| text.trim().to_owned());
        if before.is_none() || typed.is_empty() || typed.chars().count() > 100 {
            return;
        }
        later(PAUSE_MS, move || {
            let found = api::accounts::suggest_orgs(&typed);
            spawn_local(async move {
                // Without an answer the field has the suggestions before. An answer for an earlier text is late.
                if let Ok(page) = found.await
                    && text.try_with_untracked(|text| text.trim() == typed) == Some(true)
                {
                    let _ = suggestions.try_set(page.items);
                }
            });
        });
    });
    let options = move || {
        let option =
            |org: OrgSummary| view! { <option value=org.org.slug>{org.org.name}</option> }.into_any();
        suggestions.get().into_iter().map(option).collect::<Vec<AnyView>>()
    };
    view! {
        <div class="field field--wide">
            <label class="field__label" for="node-dedication-org">"Dedicated to"</label>
            <input
                class="input"
                id="node-dedication-org"
                list="node-dedication-orgs"
                autocomplete="off"
                spellcheck="false"
                maxlength="100"
                placeholder="name or slug of an organization"
                aria-describedby="node-dedication-hint node-dedication-error"
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || text.get()
                on:input=move |event| text.set(event_target_value(&event))
            />
            <datalist id="node-dedication-orgs">{options}</datalist>
            <p class="field__hint" id="node-dedication-hint">"Empty: the node is open to all organizations."</p>
            <FieldError id="node-dedication-error" error=error/>
        </div>
    }
}

/// The dialog for the organization of a node.
#[component]
pub fn DedicationDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    let NodeDialog { chosen, open, .. } = state;
    let text = RwSignal::new(String::new());
    let node = state.node();
    let dedicated_to =
        move || node.with_untracked(|node| node.as_ref().and_then(|node| node.dedicated_to.clone()));
    // A refresh of the list changes no text that is being edited.
    let reset = move |()| text.set(dedicated_to().map(|org| org.name).unwrap_or_default());
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Dedicate {}", node.name),
        None => "Dedicate node".to_owned(),
    });
    let present = move || {
        let text = node.with(|node| node.as_ref().and_then(dedication_text));
        text.map_or_else(|| "Open to all organizations now.".to_owned(), |text| format!("{text} now."))
    };
    let submit = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        let typed = text.with_untracked(|text| text.trim().to_owned());
        // An id or the present organization needs no search.
        let present = dedicated_to().filter(|org| org.name == typed);
        let known = typed.parse::<OrgId>().ok().or(present.map(|org| org.org));
        let found = (known.is_none() && !typed.is_empty()).then(|| api::accounts::suggest_orgs(&typed));
        let answer = async move {
            let org = match (known, found) {
                (Some(org), _) => Some(org),
                (None, Some(found)) => Some(get_org(&typed, &found.await?.items)?),
                (None, None) => None,
            };
            api::nodes::dedicate(id, &Dedication { org }).await
        };
        state.change(call, id, answer, move || open.set(false));
    };
    view! {
        <DialogForm
            id="node-dedication"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Save"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                {present}
                " Only jobs, reservations, secrets and volumes of the chosen organization go to the node from then on, and no other organization sees it. Work of others on the node must end first."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <OrgField text=text error=call.field("/org")/>
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn org(n: u32, name: &str, slug: &str) -> OrgSummary {
        serde_json::from_value(serde_json::json!({
            "org": {
                "id": format!("org_{n:0>26}"), "name": name, "slug": slug, "created_at": "2026-01-01T00:00:00Z",
            },
            "currency": "USD", "posted_micros": 0, "held_micros": 0, "running": 0, "queued": 0, "members": 1,
        }))
        .unwrap()
    }

    #[test]
    fn an_organization_is_named_by_its_slug_or_its_own_name() {
        let orgs = [org(1, "Kelda Lab", "kelda"), org(2, "Twin", "twin"), org(3, "Twin", "twin-2")];
        let found = |text: &str| get_org(text, &orgs).ok();
        assert_eq!(found("Kelda Lab"), Some(orgs[0].org.id));
        assert_eq!(found("kelda"), Some(orgs[0].org.id));
        assert_eq!(found("twin-2"), Some(orgs[2].org.id));
        for unclear in ["Twin", "kel", ""] {
            assert!(get_org(unclear, &orgs).unwrap_err().field("/org").is_some(), "{unclear}");
        }
    }
}
