//! Text fields of the filter with suggestions of the portal, which searches while the person types.

use std::future::Future;

use berth_types::accounts::OrgSummary;
use berth_types::nodes::Node;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::parts::later;
use crate::api;
use crate::api::Answer;

/// The pause after the last key before the request.
const PAUSE_MS: u64 = 200;

/// The kind of the suggested objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Suggested {
    Orgs,
    Nodes,
}

/// A value of the field with its explanation.
type Suggestion = (String, String);

fn org_suggestion(org: OrgSummary) -> Suggestion {
    (org.org.slug, org.org.name)
}

fn node_suggestion(node: Node) -> Suggestion {
    (node.name, node.state.word().to_owned())
}

impl Suggested {
    /// Gets at most 20 suggestions for a text.
    fn search(self, text: &str) -> impl Future<Output = Answer<Vec<Suggestion>>> + Send + 'static + use<> {
        let orgs = (self == Self::Orgs).then(|| api::accounts::suggest_orgs(text));
        let nodes = (self == Self::Nodes).then(|| api::nodes::suggest(text));
        async move {
            let mut found = Vec::new();
            if let Some(orgs) = orgs {
                found.extend(orgs.await?.items.into_iter().map(org_suggestion));
            }
            if let Some(nodes) = nodes {
                found.extend(nodes.await?.items.into_iter().map(node_suggestion));
            }
            Ok(found)
        }
    }
}

/// A text field with suggestions. Without scripts it is a plain text field.
#[component]
pub fn SuggestField(
    /// The kind of the suggestions.
    kind: Suggested,
    /// The id of the field.
    id: &'static str,
    /// The label.
    label: &'static str,
    /// The name of the parameter.
    name: &'static str,
    /// Names or ids that the field accepts.
    placeholder: &'static str,
    /// The value of the address.
    value: String,
) -> impl IntoView {
    let text = RwSignal::new(value.clone());
    let suggestions = RwSignal::new(Vec::<Suggestion>::new());
    Effect::new(move |before: Option<()>| {
        let typed = text.with(|text| text.trim().to_owned());
        // The value of the address needs no suggestions.
        if before.is_none() || typed.is_empty() || typed.chars().count() > 100 {
            return;
        }
        later(PAUSE_MS, move || {
            let found = kind.search(&typed);
            spawn_local(async move {
                // Without an answer the field has the suggestions before. An answer for an earlier text is late.
                let Ok(found) = found.await else { return };
                if text.try_with_untracked(|text| text.trim() == typed) == Some(true) {
                    let _ = suggestions.try_set(found);
                }
            });
        });
    });
    let list = format!("{id}-suggestions");
    let options = move || {
        let option = |(value, text): Suggestion| view! { <option value=value>{text}</option> }.into_any();
        suggestions.get().into_iter().map(option).collect::<Vec<AnyView>>()
    };
    view! {
        <label class="filters__field" for=id>
            {label}
            <input
                class="input"
                id=id
                name=name
                list=list.clone()
                autocomplete="off"
                spellcheck="false"
                maxlength="100"
                placeholder=placeholder
                value=value
                on:input=move |event| text.set(event_target_value(&event))
            />
        </label>
        <datalist id=list>{options}</datalist>
    }
}
