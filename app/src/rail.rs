//! Navigation links in groups: the rail on wide screens, the bar with its sheet on phones.
//!
//! Links imply no rights: each page checks them.

use leptos::prelude::*;
use leptos_router::hooks::use_location;

use crate::pages::billing::is_money_page;

/// A group of links.
struct Group {
    /// The unique id of the group.
    id: &'static str,
    /// The heading of the group.
    name: &'static str,
    /// Path and label of each link.
    links: &'static [(&'static str, &'static str)],
}

static TENANT: [Group; 2] = [
    Group {
        id: "work",
        name: "Work",
        links: &[
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
        links: &[
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
        name: "Operator: infrastructure",
        links: &[
            ("/operator/nodes", "Nodes"),
            ("/operator/fleet", "Hardware"),
            ("/operator/jobs", "All jobs"),
            ("/operator/stuck", "Needs attention"),
            ("/operator/system", "System"),
            ("/operator/reservations", "Reservations"),
        ],
    },
    Group {
        id: "money",
        name: "Operator: billing and audit",
        links: &[
            ("/operator/prices", "Prices"),
            ("/operator/orgs", "Organizations"),
            ("/operator/invoices", "Invoices"),
            ("/operator/books", "Reconciliation"),
            ("/operator/limits", "Limits"),
            ("/operator/audit", "Audit"),
            ("/operator/settings", "Portal settings"),
        ],
    },
];

/// The links in the bar of a phone, all of the first group; the others are under More.
const BAR_PATHS: [&str; 4] = ["/", "/launch", "/jobs", "/cluster"];

#[component]
fn RailLink(path: &'static str, name: &'static str) -> impl IntoView {
    let location = use_location();
    let current = move || {
        let here = location.pathname.get();
        let inside = here == path || path != "/" && here.starts_with(&format!("{path}/"));
        // Usage, budgets and invoices are tabs of Billing.
        (inside || path == "/billing" && is_money_page(&here)).then_some("page")
    };
    view! { <a class="rail__link" href=path aria-current=current>{name}</a> }
}

/// Returns the groups as lists with headings; `in_sheet` leaves out the links of the bar.
fn link_groups(operator: bool, in_sheet: bool) -> Vec<AnyView> {
    let all = TENANT.iter().chain(OPERATOR.iter().take(if operator { OPERATOR.len() } else { 0 }));
    let included = |path: &str| !in_sheet || !BAR_PATHS.contains(&path);
    let view = |group: &'static Group| {
        let id = format!("{}-{}", if in_sheet { "more" } else { "rail" }, group.id);
        let labelled_by = id.clone();
        let links: Vec<AnyView> = group
            .links
            .iter()
            .copied()
            .filter(|(path, _)| included(path))
            .map(|(path, name)| {
                let class =
                    if BAR_PATHS.contains(&path) { "rail__item" } else { "rail__item rail__item--wide" };
                view! { <li class=class><RailLink path=path name=name/></li> }.into_any()
            })
            .collect();
        view! {
            <div class="rail__part">
                <p class="rail__group" id=id>{group.name}</p>
                // Some screen readers ignore lists without bullets and without a role.
                <ul class="rail__list" role="list" aria-labelledby=labelled_by>{links}</ul>
            </div>
        }
        .into_any()
    };
    all.map(view).collect()
}

/// Lists the paths and the names of all links, with the group of operators' links in the name.
pub fn all_links(operator: bool) -> Vec<(&'static str, String)> {
    let tenant = TENANT.iter().flat_map(|group| group.links).map(|(path, name)| (*path, (*name).to_owned()));
    let groups = OPERATOR.iter().take(if operator { OPERATOR.len() } else { 0 });
    let operator =
        groups.flat_map(|group| group.links).map(|(path, name)| (*path, format!("Operator: {name}")));
    tenant.chain(operator).collect()
}

/// The groups of the rail; a phone shows the first group in its bar.
#[component]
pub fn RailGroups(
    /// True with the groups of an operator.
    operator: bool,
) -> impl IntoView {
    link_groups(operator, false)
}

/// The groups in the sheet of a phone, without the links of its bar.
#[component]
pub fn SheetGroups(
    /// True with the groups of an operator.
    operator: bool,
) -> impl IntoView {
    link_groups(operator, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_links_of_the_first_group() {
        let [first, ..] = &TENANT;
        assert!(BAR_PATHS.iter().all(|path| first.links.iter().any(|(known, _)| known == path)));
    }

    #[test]
    fn no_link_is_duplicate() {
        let mut paths: Vec<&str> =
            TENANT.iter().chain(&OPERATOR).flat_map(|group| group.links).map(|(path, _)| *path).collect();
        let all = paths.len();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), all);
    }
}
