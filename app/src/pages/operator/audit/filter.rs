//! The filter of the audit events, from the URL and as a plain form.

use berth_types::quotas::AUDIT_ACTIONS;
use berth_types::time::Timestamp;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::action_text;
use crate::api::escape::escaped;

/// The most bytes of a name or an id in a filter of the portal.
const MAX_ACTOR_BYTES: usize = 200;
const DAY_S: i64 = 86_400;

/// The filter of the list. A text without characters accepts all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AuditListing {
    action: String,
    /// The name or the id of a user.
    actor: String,
    /// The first day in UTC, such as `2026-11-18`.
    since: String,
    /// The last day in UTC.
    until: String,
}

/// Returns the begin of a day in UTC.
fn begin_of(day: &str) -> Option<Timestamp> {
    if day.len() == 10 { format!("{day}T00:00:00Z").parse().ok() } else { None }
}

impl AuditListing {
    /// Parses the filter of a URL; invalid values are ignored.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| get(name).map(|text| text.trim().to_owned()).unwrap_or_default();
        let day = |name: &str| Some(text(name)).filter(|day| begin_of(day).is_some()).unwrap_or_default();
        let action = Some(text("action")).filter(|action| AUDIT_ACTIONS.contains(&action.as_str()));
        let actor = Some(text("actor")).filter(|actor| actor.len() <= MAX_ACTOR_BYTES);
        Self {
            action: action.unwrap_or_default(),
            actor: actor.unwrap_or_default(),
            since: day("since"),
            until: day("until"),
        }
    }

    /// Returns the query for the portal, without `?`; empty without conditions.
    pub fn query(&self) -> String {
        let time =
            |name: &str, at: Option<Timestamp>| at.map(|at| format!("{name}={}", escaped(&at.to_string())));
        let text = |name: &str, text: &str| (!text.is_empty()).then(|| format!("{name}={}", escaped(text)));
        let parts = [
            text("action", &self.action),
            text("actor", &self.actor),
            time("since", begin_of(&self.since)),
            time("until", begin_of(&self.until).map(|day| day.plus_seconds(DAY_S))),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join("&")
    }

    /// Tells whether the filter has a condition.
    pub fn is_filtered(&self) -> bool {
        *self != Self::default()
    }
}

/// Returns the form, which also works without scripts.
pub fn filter_form(listing: &AuditListing) -> AnyView {
    let mut actions: Vec<(&str, &str)> =
        AUDIT_ACTIONS.iter().map(|action| (action_text(action), *action)).collect();
    actions.sort_unstable();
    let option = |(text, action): (&'static str, &'static str)| {
        let selected = listing.action == action;
        view! { <option value=action selected=selected>{text}</option> }.into_any()
    };
    let actions: Vec<AnyView> = actions.into_iter().map(option).collect();
    let AuditListing { actor, since, until, .. } = listing.clone();
    let clear = listing
        .is_filtered()
        .then(|| view! { <a class="btn btn--quiet" href="/operator/audit">"Clear filters"</a> });
    view! {
        <form class="filters" method="get" action="/operator/audit" aria-label="Filter">
            <label class="filters__field" for="audit-action">
                "Action"
                <select class="select" id="audit-action" name="action">
                    <option value="">"all"</option>
                    {actions}
                </select>
            </label>
            <label class="filters__field" for="audit-actor">
                "User"
                <input
                    class="input"
                    id="audit-actor"
                    name="actor"
                    autocomplete="off"
                    maxlength="100"
                    placeholder="whole name or id"
                    value=actor
                />
            </label>
            <label class="filters__field" for="audit-since">
                "First day, UTC"
                <input class="input" id="audit-since" name="since" type="date" value=since/>
            </label>
            <label class="filters__field" for="audit-until">
                "Last day, UTC"
                <input class="input" id="audit-until" name="until" type="date" value=until/>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_parsed_from_a_url() {
        let parse = |query: &[(&str, &str)]| {
            AuditListing::parse(|name| {
                query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let plain =
            parse(&[("action", "moon.landed"), ("actor", " "), ("since", "soon"), ("until", "2026-02-31")]);
        assert_eq!((plain.query().as_str(), plain.is_filtered()), ("", false));
        let found = parse(&[
            ("action", "quota.set"),
            ("actor", " Ada & Co "),
            ("since", "2026-11-18"),
            ("until", "2026-11-30"),
        ]);
        assert_eq!(
            found.query(),
            "action=quota.set&actor=Ada%20%26%20Co&since=2026-11-18T00%3A00%3A00Z&until=2026-12-01T00%3A00%3A00Z"
        );
        assert!(found.is_filtered());
        assert_eq!(parse(&[("actor", "a".repeat(201).as_str())]), AuditListing::default());
    }
}
