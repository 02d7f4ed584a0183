//! Section of the named networks: ranges of addresses that egress policies open.

use berth_types::egress::{NamedNetwork, PutNetwork};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::super::curl::ListCurl;
use super::super::super::parts::{Call, ready};
use super::super::may;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/ranges"];

/// The state of form, rows and dialog.
#[derive(Clone, Copy)]
struct SectionState {
    networks: RwSignal<Vec<NamedNetwork>>,
    /// The network of the dialog.
    target: ConfirmTarget<String>,
    ready: ReadSignal<bool>,
    /// True with controls for changes.
    writes: bool,
}

/// Inserts a network into a list sorted by name, or replaces it.
fn insert_sorted(networks: &mut Vec<NamedNetwork>, made: NamedNetwork) {
    networks.retain(|network| network.name != made.name);
    let at = networks.partition_point(|network| network.name < made.name);
    networks.insert(at, made);
}

/// Returns the organizations of a network, such as `Lab, Yard and 3 more`.
fn orgs_text(network: &NamedNetwork) -> String {
    let names: Vec<&str> = network.orgs.iter().map(|org| org.name.as_str()).collect();
    let more = network.org_count.saturating_sub(u32::try_from(names.len()).unwrap_or(u32::MAX));
    match (names.is_empty(), more) {
        (true, _) => "none".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{} and {more} more", names.join(", ")),
    }
}

/// Returns the ranges of a text: one a line, or with spaces or commas between them.
fn ranges(text: &str) -> Vec<String> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',');
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The list of all named networks, with its form.
#[component]
pub fn NetworksSection(
    /// The networks of the first read.
    networks: Vec<NamedNetwork>,
) -> impl IntoView {
    let state = SectionState {
        networks: RwSignal::new(networks),
        target: ConfirmTarget::none(),
        ready: ready(),
        writes: may(OperatorRight::ManageFleet),
    };
    let none = Memo::new(move |_| state.networks.with(Vec::is_empty));
    view! {
        <section class="section">
            <div class="section__head"><h2>"Named networks"</h2></div>
            <p class="prose">
                "A named network opens its ranges to the jobs of the organizations whose network policy names it. Nodes, metadata of clouds and other jobs stay closed inside of a range."
            </p>
            {move || {
                if none.get() {
                    empty("No named networks yet. A job reaches the internet, and no private address.")
                } else {
                    state.networks.with(|networks| table(networks, state))
                }
            }}
            <ListCurl
                path=Signal::derive(|| "/operator/networks".to_owned())
                label="Named networks with curl"
            />
        </section>
        {state.writes.then(|| view! { <NetworkForm state=state/> })}
        <RemoveDialog state=state/>
    }
}

fn table(networks: &[NamedNetwork], state: SectionState) -> AnyView {
    table_of(
        "Named networks",
        &[("Name", ""), ("Ranges", ""), ("Organizations", ""), ACTIONS],
        networks.iter().map(|network| row(network, state)).collect(),
    )
}

fn row(network: &NamedNetwork, state: SectionState) -> AnyView {
    let (name, ranges, orgs) = (network.name.clone(), network.ranges.join(", "), orgs_text(network));
    let remove = state.writes.then(|| {
        state.target.button(network.name.clone(), "Remove", format!("Remove {}", network.name), state.ready)
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{name}</span></th>
            <td role="cell" data-label="Ranges"><span class="mono break">{ranges}</span></td>
            <td role="cell" data-label="Organizations">{orgs}</td>
            <td role="cell" class="table__actions">{remove}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn NetworkForm(state: SectionState) -> impl IntoView {
    let call = Call::idle();
    let (name, text) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let known =
        move || state.networks.with(|networks| networks.iter().any(|n| name.with(|name| *name == n.name)));
    let verb = Signal::derive(move || {
        let verb = if known() { "Replace ranges" } else { "Add network" };
        verb.to_owned()
    });
    let submit = move |()| {
        let chosen = name.get_untracked().trim().to_owned();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if chosen.is_empty() || chosen.len() > 63 || chosen.starts_with('-') || !chosen.chars().all(is_name) {
            let detail = "Enter 1 to 63 lower-case letters, digits and hyphens, no hyphen first.";
            call.problem.set(Some(Problem::invalid_field("/name", detail)));
            return;
        }
        let body = PutNetwork { ranges: ranges(&text.get_untracked()) };
        call.run(api::egress::put(&chosen, &body), move |made: NamedNetwork| {
            state.networks.update(|networks| insert_sorted(networks, made));
            name.set(String::new());
            text.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New network or ranges"
            call=call
            beside_fields=FIELDS
            verb=verb
            quiet=true
            submit=Callback::new(submit)
        >
            <Field
                label="Network name"
                name="network-name"
                kind="text"
                value=name
                hint=Some("Lower-case letters, digits and hyphens, such as storage. An existing network gets the new ranges at the next starts of jobs.".to_owned())
                error=call.field("/name")
            />
            <TextArea
                label="Ranges"
                id="network-ranges"
                rows=3
                mono=true
                value=text
                hint="One a line, such as 10.8.0.0/16 or fd00:8::/32. At most 32 of each version of IP."
                error=call.list_field("/ranges")
            />
        </CardForm>
    }
}

#[component]
fn RemoveDialog(state: SectionState) -> impl IntoView {
    let call = Call::idle();
    let remove = move |()| {
        let Some(name) = state.target.one.get_untracked() else { return };
        let removed = name.clone();
        call.run(api::egress::remove(&name), move |()| {
            state.networks.update(|networks| networks.retain(|network| network.name != removed));
            state.target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="remove-network"
            title=state.target.title("Remove", "network", String::as_str)
            open=state.target.open
            call=call
            keep="Keep network"
            verb="Remove network"
            confirm=Callback::new(remove)
        >
            <p>"A network that a policy names is not removed. Running jobs are not changed."</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::egress::NetworkOrg;

    fn network(name: &str, orgs: &[&str], org_count: u32) -> NamedNetwork {
        let org = |name: &&str| NetworkOrg {
            id: "org_00000000000000000000000001".parse().unwrap(),
            name: (*name).to_owned(),
        };
        let orgs = orgs.iter().map(org).collect();
        NamedNetwork { name: name.to_owned(), ranges: Vec::new(), org_count, orgs }
    }

    #[test]
    fn a_network_occurs_once_and_in_order() {
        let mut all = vec![network("a", &[], 0), network("c", &[], 0)];
        insert_sorted(&mut all, network("b", &[], 0));
        insert_sorted(&mut all, network("c", &[], 2));
        let all: Vec<(&str, u32)> = all.iter().map(|n| (n.name.as_str(), n.org_count)).collect();
        assert_eq!(all, [("a", 0), ("b", 0), ("c", 2)]);
    }

    #[test]
    fn the_organizations_of_a_network_are_a_text() {
        assert_eq!(orgs_text(&network("a", &[], 0)), "none");
        assert_eq!(orgs_text(&network("a", &["Lab", "Yard"], 2)), "Lab, Yard");
        assert_eq!(orgs_text(&network("a", &["Lab"], 4)), "Lab and 3 more");
    }

    #[test]
    fn ranges_are_split_at_lines_commas_and_spaces() {
        assert_eq!(ranges(" 10.8.0.0/16,\nfd00:8::/32\n"), ["10.8.0.0/16", "fd00:8::/32"]);
    }
}
