//! Navigation links in groups: the rail on wide screens, the bar with its sheet on phones.
//!
//! Links imply no rights: each page checks them.

use berth_types::operators::{OperatorRight, OperatorRole};
use leptos::prelude::*;
use leptos_router::hooks::use_location;

use crate::address::{org_link, parse_org_path};

/// A group of links.
struct Group {
    /// The unique id of the group.
    id: &'static str,
    /// The heading of the group.
    name: &'static str,
    /// Path and label of each link. A path of the organization's groups is the page below its address.
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
            ("/services", "Services"),
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
            ("/inference-keys", "Inference keys"),
            ("/webhooks", "Webhooks"),
        ],
    },
];

static OPERATOR: [Group; 2] = [
    Group {
        id: "machines",
        name: "Operator: infrastructure",
        links: &[
            ("/operator", "Overview"),
            ("/operator/nodes", "Nodes"),
            ("/operator/fleet", "Hardware"),
            ("/operator/jobs", "All jobs"),
            ("/operator/stuck", "Needs attention"),
            ("/operator/gateways", "Gateways"),
            ("/operator/host-names", "Host names"),
            ("/operator/system", "System"),
            ("/operator/reservations", "Reservations"),
        ],
    },
    Group {
        id: "money",
        name: "Operator: billing and audit",
        links: &[
            ("/operator/prices", "Prices"),
            ("/operator/token-prices", "Prices of tokens"),
            ("/operator/promises", "Promises"),
            ("/operator/orgs", "Organizations"),
            ("/operator/people", "People"),
            ("/operator/operators", "Operators"),
            ("/operator/invoices", "Invoices"),
            ("/operator/books", "Reconciliation"),
            ("/operator/limits", "Limits"),
            ("/operator/changes", "Change requests"),
            ("/operator/audit", "Audit"),
            ("/operator/settings", "Portal settings"),
        ],
    },
];

/// The tabs of the money pages, which are one link of the rail: path and label.
pub const MONEY_TABS: [(&str, &str); 4] =
    [("/billing", "Ledger"), ("/usage", "Usage"), ("/budgets", "Budgets"), ("/invoices", "Invoices")];

/// Returns true if a path belongs to a money page.
fn is_money_page(path: &str) -> bool {
    // Statements belong to the tab of invoices.
    let mut paths = MONEY_TABS.iter().map(|(tab, _)| *tab).chain(["/statements"]);
    paths.any(|tab| path.strip_prefix(tab).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')))
}

/// The links in the bar of a phone, all of the first group; the others are under More.
const BAR_PATHS: [&str; 4] = ["/", "/launch", "/jobs", "/cluster"];
/// The same for an operator without an organization.
const OPERATOR_BAR_PATHS: [&str; 4] = ["/operator", "/operator/nodes", "/operator/fleet", "/operator/jobs"];

#[component]
fn RailLink(path: &'static str, name: &'static str) -> impl IntoView {
    let pathname = use_location().pathname;
    let operator = path.starts_with("/operator");
    let link = org_link(path);
    let href = move || if operator { path.to_owned() } else { link() };
    let current = move || {
        let here = pathname.get();
        let page = if operator { Some(here.as_str()) } else { parse_org_path(&here).map(|(_, page)| page) };
        page.is_some_and(|page| is_inside(path, page)).then_some("page")
    };
    view! { <a class="rail__link" href=href aria-current=current>{name}</a> }
}

/// Returns true if a page belongs to the link with this path.
fn is_inside(path: &str, page: &str) -> bool {
    // The paths of the two overviews begin the paths of other links.
    let has_pages = path != "/" && path != "/operator";
    let inside = page == path || has_pages && page.starts_with(&format!("{path}/"));
    // Usage, budgets and invoices are tabs of Billing.
    inside || path == "/billing" && is_money_page(page)
}

/// Returns true if a role reads the page of a link.
fn is_open_to(role: OperatorRole, path: &str) -> bool {
    let inspected = ["/operator/people", "/operator/operators", "/operator/audit"];
    !inspected.contains(&path) || OperatorRight::Inspect.is_granted_to(role)
}

/// Returns the groups as lists with headings; `in_sheet` leaves out the links of the bar.
fn link_groups(tenant: bool, operator: Option<OperatorRole>, in_sheet: bool) -> Vec<AnyView> {
    let bar = if tenant { BAR_PATHS } else { OPERATOR_BAR_PATHS };
    let tenant = TENANT.iter().take(if tenant { TENANT.len() } else { 0 });
    let all = tenant.chain(OPERATOR.iter().take(if operator.is_some() { OPERATOR.len() } else { 0 }));
    let included = move |path: &str| {
        (!in_sheet || !bar.contains(&path)) && operator.is_none_or(|role| is_open_to(role, path))
    };
    let view = |group: &'static Group| {
        let id = format!("{}-{}", if in_sheet { "more" } else { "rail" }, group.id);
        let labelled_by = id.clone();
        let links: Vec<AnyView> = group
            .links
            .iter()
            .copied()
            .filter(|(path, _)| included(path))
            .map(|(path, name)| {
                let class = if bar.contains(&path) { "rail__item" } else { "rail__item rail__item--wide" };
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
pub fn all_links(tenant: bool, operator: Option<OperatorRole>) -> Vec<(&'static str, String)> {
    let groups = TENANT.iter().take(if tenant { TENANT.len() } else { 0 });
    let tenant = groups.flat_map(|group| group.links).map(|(path, name)| (*path, (*name).to_owned()));
    let links = OPERATOR.iter().flat_map(|group| group.links);
    let links = links.filter(|(path, _)| operator.is_some_and(|role| is_open_to(role, path)));
    tenant.chain(links.map(|(path, name)| (*path, format!("Operator: {name}")))).collect()
}

/// The groups of the rail; a phone shows the first group in its bar.
#[component]
pub fn RailGroups(
    /// True with the groups of an organization.
    tenant: bool,
    /// The role of an operator, who gets the groups of operators.
    operator: Option<OperatorRole>,
) -> impl IntoView {
    link_groups(tenant, operator, false)
}

/// The groups in the sheet of a phone, without the links of its bar.
#[component]
pub fn SheetGroups(
    /// True with the groups of an organization.
    tenant: bool,
    /// The role of an operator, who gets the groups of operators.
    operator: Option<OperatorRole>,
) -> impl IntoView {
    link_groups(tenant, operator, true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_has_links_of_the_first_group() {
        for ([first, ..], bar) in [(&TENANT, BAR_PATHS), (&OPERATOR, OPERATOR_BAR_PATHS)] {
            assert!(bar.iter().all(|path| first.links.iter().any(|(known, _)| known == path)));
        }
    }

    #[test]
    fn a_page_belongs_to_one_link() {
        let links = |page: &str| {
            let paths = TENANT.iter().flat_map(|group| group.links).map(|(path, _)| *path);
            paths.filter(|path| is_inside(path, page)).collect::<Vec<_>>()
        };
        assert_eq!(links("/"), ["/"]);
        assert_eq!(links("/jobs/job_1"), ["/jobs"]);
        assert_eq!(links("/usage"), ["/billing"]);
        assert_eq!(links("/elsewhere"), Vec::<&str>::new());
    }

    #[test]
    fn money_pages_are_recognized_by_their_path() {
        for path in ["/billing", "/usage", "/invoices/inv_1", "/statements/2026-11"] {
            assert!(is_money_page(path), "{path}");
        }
        for path in ["/", "/jobs", "/usages", "/operator/invoices"] {
            assert!(!is_money_page(path), "{path}");
        }
    }

    #[test]
    fn links_are_those_of_the_role() {
        let paths = |role| all_links(false, role).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(paths(None), Vec::<&str>::new());
        let auditor = paths(Some(OperatorRole::Auditor));
        assert_eq!(auditor, paths(Some(OperatorRole::Owner)));
        let fleet = paths(Some(OperatorRole::Fleet));
        let hidden: Vec<&str> = auditor.into_iter().filter(|path| !fleet.contains(path)).collect();
        assert_eq!(hidden, ["/operator/people", "/operator/operators", "/operator/audit"]);
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
