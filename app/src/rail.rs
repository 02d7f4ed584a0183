//! The places of the app in groups: the rail at a desk, the bar and its sheet in a hand.
//!
//! Decides no right: what a person may not see, its page does not show them.

use leptos::prelude::*;
use leptos_router::hooks::use_location;

use crate::pages::billing::is_about_money;

/// Places that belong together.
struct Group {
    /// Tells the groups of one list apart.
    id: &'static str,
    /// Above its places.
    name: &'static str,
    /// Path and name of each.
    places: &'static [(&'static str, &'static str)],
}

static TENANT: [Group; 2] = [
    Group {
        id: "work",
        name: "Work",
        places: &[
            ("/", "Home"),
            ("/launch", "Launch"),
            ("/jobs", "Jobs"),
            ("/reservations", "Reservations"),
            ("/cluster", "Cluster"),
            ("/volumes", "Volumes"),
        ],
    },
    Group {
        id: "organization",
        name: "Organization",
        places: &[
            ("/billing", "Billing"),
            ("/limits", "Limits"),
            ("/team", "Team"),
            ("/secrets", "Secrets"),
            ("/tokens", "Tokens"),
            ("/webhooks", "Webhooks"),
        ],
    },
];

static OPERATOR: [Group; 2] = [
    Group {
        id: "machines",
        name: "Operator: machines",
        places: &[
            ("/operator/nodes", "Nodes"),
            ("/operator/fleet", "Fleet"),
            ("/operator/jobs", "All jobs"),
            ("/operator/stuck", "Stuck"),
            ("/operator/system", "System"),
            ("/operator/reservations", "Reservations"),
        ],
    },
    Group {
        id: "money",
        name: "Operator: money and records",
        places: &[
            ("/operator/prices", "Prices"),
            ("/operator/orgs", "Organizations"),
            ("/operator/invoices", "Invoices"),
            ("/operator/books", "Books"),
            ("/operator/limits", "Limits"),
            ("/operator/audit", "Audit"),
        ],
    },
];

/// The places that fit into the bar of a phone, all of the first group; the others are under More.
const ALWAYS: [&str; 4] = ["/", "/launch", "/jobs", "/cluster"];

#[component]
fn RailLink(path: &'static str, name: &'static str) -> impl IntoView {
    let location = use_location();
    let current = move || {
        let here = location.pathname.get();
        let inside = here == path || path != "/" && here.starts_with(&format!("{path}/"));
        // Usage, budgets and invoices are tabs of Billing.
        (inside || path == "/billing" && is_about_money(&here)).then_some("page")
    };
    view! { <a class="rail__link" href=path aria-current=current>{name}</a> }
}

/// The groups that somebody has, each as a list under its name; `in_sheet` leaves out what the bar shows.
fn groups(operator: bool, in_sheet: bool) -> Vec<AnyView> {
    let all = TENANT.iter().chain(OPERATOR.iter().take(if operator { OPERATOR.len() } else { 0 }));
    let wanted = |path: &str| !in_sheet || !ALWAYS.contains(&path);
    let part = |group: &'static Group| {
        let id = format!("{}-{}", if in_sheet { "more" } else { "rail" }, group.id);
        let named_by = id.clone();
        let links: Vec<AnyView> = group
            .places
            .iter()
            .copied()
            .filter(|(path, _)| wanted(path))
            .map(|(path, name)| {
                let class = if ALWAYS.contains(&path) { "rail__item" } else { "rail__item rail__item--wide" };
                view! { <li class=class><RailLink path=path name=name/></li> }.into_any()
            })
            .collect();
        view! {
            <div class="rail__part">
                <p class="rail__group" id=id>{group.name}</p>
                // Lists without bullets are lists for everyone only when they say so.
                <ul class="rail__list" role="list" aria-labelledby=named_by>{links}</ul>
            </div>
        }
        .into_any()
    };
    all.map(part).collect()
}

/// What stands in the rail, and its first group in the bar of a phone.
#[component]
pub fn RailGroups(
    /// Those of an operator too.
    operator: bool,
) -> impl IntoView {
    groups(operator, false)
}

/// What the bar of a phone has no room for.
#[component]
pub fn SheetGroups(
    /// Those of an operator too.
    operator: bool,
) -> impl IntoView {
    groups(operator, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_shows_places_of_the_first_group() {
        let [first, ..] = &TENANT;
        assert!(ALWAYS.iter().all(|path| first.places.iter().any(|(known, _)| known == path)));
    }

    #[test]
    fn no_place_stands_twice() {
        let mut paths: Vec<&str> =
            TENANT.iter().chain(&OPERATOR).flat_map(|group| group.places).map(|(path, _)| *path).collect();
        let all = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), all);
    }
}
