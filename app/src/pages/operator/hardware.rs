//! Page of the hardware: hosts with their versions and differences, racks with their power budgets.

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::ids::NodeId;
use berth_types::operations::{InventoryHost, PutRack, Rack};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use futures::try_join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::load_more::{LoadMore, append, joined, refresh_limit};
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, FieldError, Submit, every_visible, ready};
use super::super::text::counted;
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/budget_watts"];

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    hosts: Rows<InventoryHost>,
    racks: Vec<Rack>,
}

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (hosts, racks) = (api::operations::inventory(None, refresh_limit(0)), api::operations::racks());
    async move {
        let (hosts, racks) = try_join!(hosts, racks)?;
        Ok(Loaded { hosts, racks: racks.items })
    }
}

/// The page of hosts and racks.
#[component]
pub fn HardwarePage() -> impl IntoView {
    if is_operator() { view! { <Hardware/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Hardware() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Hardware".to_owned()>
            {answer_view(data, |loaded| {
                view! {
                    <Inventory first=loaded.hosts/>
                    <Racks racks=loaded.racks/>
                }
                .into_any()
            })}
        </Page>
    }
}

/// Returns the number of the listed hosts and of those with differences. `more` is true before the last page.
fn summary_text(hosts: &[InventoryHost], more: bool) -> String {
    let different = hosts.iter().filter(|host| !host.odd.is_empty()).count();
    let count = counted(hosts.len(), "host", "hosts");
    let count = if more { format!("First {count}") } else { count };
    match different {
        0 => format!("{count}, no differences"),
        1 => format!("{count}, 1 differs from most hosts with its board model"),
        n => format!("{count}, {n} differ from most hosts with their board model"),
    }
}

#[component]
fn Inventory(first: Rows<InventoryHost>) -> impl IntoView {
    let (hosts, cursor) = (RwSignal::new(first.items), RwSignal::new(first.next_cursor));
    let more = Call::idle();
    every_visible(10_000, move || {
        let fresh = api::operations::inventory(None, refresh_limit(hosts.with_untracked(Vec::len)));
        spawn_local(async move {
            // The next round repeats a failed request.
            let Ok(fresh) = fresh.await else { return };
            // The page may have been left during the request.
            let (Some(known), Some(from)) = (hosts.try_get_untracked(), cursor.try_get_untracked()) else {
                return;
            };
            let Rows { items, next_cursor } = joined(known, from, fresh, |host| host.node);
            replace(hosts, items);
            replace(cursor, next_cursor);
        });
    });
    let load_more = move |()| {
        let from = cursor.get_untracked();
        more.run(
            api::operations::inventory(from.clone(), refresh_limit(0)),
            move |page: Rows<InventoryHost>| {
                // The page does not follow on a list that was replaced meanwhile.
                if cursor.try_get_untracked() == Some(from) {
                    hosts.update(|hosts| append(hosts, page.items, |host| host.node));
                    cursor.set(page.next_cursor);
                }
            },
        );
    };
    let none = move || hosts.with(Vec::is_empty);
    let summary = move || hosts.with(|hosts| summary_text(hosts, cursor.with(Option::is_some)));
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Inventory"</h2>
                <div class="section__aside">
                    <span class="quiet">{summary}</span>
                    <a href="/api/v1/operator/inventory?format=csv" rel="external" download="inventory.csv">"Download CSV"</a>
                </div>
            </div>
            <div hidden=move || !none()>
                {empty("No hosts yet. A host appears here after its approval and its first report.")}
            </div>
            <div hidden=none>{table(hosts)}</div>
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
            <ListCurl path="/operator/inventory" label="Hosts with curl"/>
        </section>
    }
}

/// Returns the table. The row of a host stays the same after a refresh.
fn table(hosts: RwSignal<Vec<InventoryHost>>) -> AnyView {
    let nodes = move || hosts.with(|hosts| hosts.iter().map(|host| host.node).collect::<Vec<NodeId>>());
    let find = move |node: NodeId| hosts.with(|hosts| hosts.iter().find(|host| host.node == node).cloned());
    let one = move |node: NodeId| {
        // The time of the report alone changes often.
        let host = Memo::new(move |_| find(node).map(|host| InventoryHost { last_seen_at: None, ..host }));
        let seen = Memo::new(move |_| find(node).and_then(|host| host.last_seen_at));
        let cells = move || host.with(|host| host.as_ref().map(host_cells));
        let text =
            move || seen.get().map_or_else(|| "never".into_any(), |at| view! { <When at=at/> }.into_any());
        view! {
            <tr role="row">
                {cells}
                <td role="cell" class="nowrap" data-label="Last report">{text}</td>
            </tr>
        }
    };
    let rows = view! { <For each=nodes key=|node: &NodeId| *node children=one/> }.into_any();
    live_table("Hosts", &[("Host", ""), ("Boards", ""), ("Versions", ""), ("Last report", "")], rows)
}

/// Returns the value of most hosts for a different fact: `most hosts with H100-80GB: 550`.
fn difference_text(host: &InventoryHost, fact: &str) -> Option<String> {
    let different = host.odd.iter().find(|different| different.fact == fact)?;
    Some(format!("most hosts with {}: {}", different.model, different.usual))
}

/// Returns the cells of a host before the time of its report.
fn host_cells(host: &InventoryHost) -> AnyView {
    let boards: Vec<String> = host.boards.iter().map(|(model, n)| format!("{n} × {model}")).collect();
    let boards = if boards.is_empty() { "none".to_owned() } else { boards.join(", ") };
    let fact = |(name, value): (&String, &String)| {
        let text = format!("{name} {value}");
        match difference_text(host, name) {
            Some(usual) => {
                view! { <span class="tag tag--warn">{text}</span> <span class="table__sub">{usual}</span> }
                    .into_any()
            }
            None => view! { <span class="tag">{text}</span> }.into_any(),
        }
    };
    let facts: Vec<AnyView> = host.facts.iter().map(fact).collect();
    let name = host.name.clone();
    view! {
        <th role="rowheader" scope="row">{name}</th>
        <td role="cell" data-label="Boards">{boards}</td>
        <td role="cell" data-label="Versions"><span class="tags">{facts}</span></td>
    }
    .into_any()
}

/// Returns `612 W` or `1.2 kW`.
pub(super) fn kilowatts(watts: f64) -> String {
    if watts < 1_000.0 { format!("{watts:.0} W") } else { format!("{:.1} kW", watts / 1_000.0) }
}

/// Returns the allocated power with the budget.
pub(super) fn allocated_text(rack: &Rack) -> String {
    let allocated = kilowatts(rack.counted_watts as f64);
    match rack.budget_watts {
        Some(budget) => format!("{allocated} of {}", kilowatts(budget as f64)),
        None => format!("{allocated}, no budget"),
    }
}

/// Returns the row of a rack. It stays the same after a refresh, so its button keeps the focus.
fn rack_row(
    (name, has_budget): (String, bool),
    racks: RwSignal<Vec<Rack>>,
    remove: impl Fn(String) + 'static,
    ready: ReadSignal<bool>,
    call: Call,
) -> AnyView {
    let this = name.clone();
    let rack = Memo::new(move |_| racks.with(|racks| racks.iter().find(|rack| rack.name == this).cloned()));
    let cells = move || rack.with(|rack| rack.as_ref().map(rack_cells));
    let button = (has_budget && may(OperatorRight::ManageFleet)).then(|| {
        let (label, this) = (format!("Remove budget of {name}"), name.clone());
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !ready.get() || call.pending.get()
                on:click=move |_| remove(this.clone())
            >
                "Remove budget"
            </button>
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            {cells}
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

/// Returns the cells of a rack between its name and its button.
fn rack_cells(rack: &Rack) -> AnyView {
    let boards = format!(
        "{} in {}",
        counted(usize::try_from(rack.boards).unwrap_or(0), "board", "boards"),
        counted(usize::try_from(rack.nodes).unwrap_or(0), "node", "nodes")
    );
    let unused = (rack.nodes == 0).then(|| {
        view! {
            " " <span class="tag tag--warn">"no node"</span>
            <span class="table__sub">"No node in use has this label, so the budget limits nothing now."</span>
        }
    });
    let measured = kilowatts(rack.drawn_watts);
    let unread = (rack.unread > 0).then(|| {
        let unread = usize::try_from(rack.unread).unwrap_or(0);
        let text = counted(unread, "board reports no power", "boards report no power");
        view! { <span class="table__sub">{text}</span> }
    });
    let over = rack.budget_watts.is_some_and(|budget| rack.counted_watts > budget);
    let over = over.then(|| view! { " " <span class="tag tag--warn">"over budget"</span> });
    let unknown = (rack.unknown > 0).then(|| {
        let unknown = usize::try_from(rack.unknown).unwrap_or(0);
        let boards = counted(unknown, "board with an unknown limit", "boards with an unknown limit");
        let text = format!("counts 500 W for each of {boards}");
        view! { <span class="table__sub">{text}</span> }
    });
    view! {
        <td role="cell" data-label="Boards">{boards}{unused}</td>
        <td role="cell" class="num" data-label="Measured power">{measured}{unread}</td>
        <td role="cell" class="num" data-label="Allocated power">{allocated_text(rack)}{over}{unknown}</td>
        <td role="cell" class="num" data-label="Maximum power">{kilowatts(rack.most_watts as f64)}</td>
    }
    .into_any()
}

#[component]
fn Racks(racks: Vec<Rack>) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let refresh = Call::idle();
    let racks = RwSignal::new(racks);
    let (name, watts) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let reload = move || {
        refresh.run(api::operations::racks(), move |fresh: berth_types::Page<Rack>| racks.set(fresh.items))
    };
    every_visible(10_000, move || {
        let (before, fresh) = (racks.get_untracked(), api::operations::racks());
        spawn_local(async move {
            // The next round repeats a failed request. A list that was read meanwhile is newer.
            if let Ok(fresh) = fresh.await
                && racks.try_get_untracked() == Some(before)
            {
                replace(racks, fresh.items);
            }
        });
    });
    let remove = move |rack: String| {
        call.run(api::operations::unset_rack(&rack), move |()| reload());
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let rack = name.get_untracked().trim().to_owned();
        if rack.is_empty() {
            let detail = "Enter a rack: the value of the node label rack.";
            call.problem.set(Some(Problem::invalid_field("/name", detail)));
            return;
        }
        let Ok(budget_watts) = watts.get_untracked().trim().parse::<i64>() else {
            call.problem
                .set(Some(Problem::invalid_field("/budget_watts", "Enter whole watts, such as 20000.")));
            return;
        };
        call.run(api::operations::set_rack(&rack, &PutRack { budget_watts }), move |()| {
            watts.set(String::new());
            reload();
        });
    };
    let key = |rack: &Rack| (rack.name.clone(), rack.budget_watts.is_some());
    let keys = move || racks.with(|racks| racks.iter().map(key).collect::<Vec<(String, bool)>>());
    let row = move |key: (String, bool)| rack_row(key, racks, remove, ready, call);
    let rows = view! { <For each=keys key=|key: &(String, bool)| key.clone() children=row/> };
    let none = move || racks.with(Vec::is_empty);
    let blocked = !may(OperatorRight::ManageFleet);
    view! {
        <section class="section">
            <div class="section__head"><h2>"Racks"</h2></div>
            <p class="prose">
                "The node label rack assigns a node to a rack. Allocated power is the sum of the power limits of all boards in use; a job waits if it would exceed the budget of its rack. A budget is kept under the name of its rack. Before you rename a rack, set a budget for the new name."
            </p>
            <CallProblem call=refresh beside_fields=&[]/>
            <div class="empty" hidden=move || !none()>
                <p class="empty__text">"No racks yet: no node has the label rack. Start workers with --label rack=NAME."</p>
            </div>
            <div hidden=none>
                {live_table(
                    "Racks",
                    &[
                        ("Rack", ""),
                        ("Boards", ""),
                        ("Measured power", "num"),
                        ("Allocated power", "num"),
                        ("Maximum power", "num"),
                        ACTIONS,
                    ],
                    rows.into_any(),
                )}
            </div>
            {read_only(OperatorRight::ManageFleet)}
            <fieldset class="guard" disabled=blocked>
                <form class="form card" method="post" on:submit=submit>
                    <h3 class="card__title">"Power budget"</h3>
                    <CallProblem call=call beside_fields=FIELDS/>
                    <div class="field-row">
                        <div class="field">
                            <label class="field__label" for="rack-name">"Rack"</label>
                            <input
                                id="rack-name"
                                autocomplete="off"
                                maxlength="63"
                                aria-describedby="rack-name-error"
                                prop:value=move || name.get()
                                on:input=move |ev| name.set(event_target_value(&ev))
                            />
                            <FieldError id="rack-name-error" error=call.field("/name")/>
                        </div>
                        <div class="field">
                            <label class="field__label" for="rack-watts">"Budget in watts"</label>
                            <input
                                id="rack-watts"
                                inputmode="numeric"
                                autocomplete="off"
                                aria-describedby="rack-watts-hint rack-watts-error"
                                prop:value=move || watts.get()
                                on:input=move |ev| watts.set(event_target_value(&ev))
                            />
                            <p class="field__hint" id="rack-watts-hint">"Power for boards in use, without hosts and idle boards."</p>
                            <FieldError id="rack-watts-error" error=call.field("/budget_watts")/>
                        </div>
                    </div>
                    <div class="form__actions">
                        <Submit call=call>"Set budget"</Submit>
                    </div>
                </form>
            </fieldset>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::operations::OddFact;

    #[test]
    fn a_part_of_the_hosts_is_called_a_part() {
        let host = |odd: &[&str]| InventoryHost {
            node: "node_00000000000000000000000001".parse().unwrap(),
            name: "pier-9".to_owned(),
            boards: std::collections::BTreeMap::new(),
            facts: std::collections::BTreeMap::new(),
            odd: odd
                .iter()
                .map(|fact| OddFact {
                    fact: (*fact).to_owned(),
                    model: "H100-80GB".to_owned(),
                    usual: "550".to_owned(),
                })
                .collect(),
            last_seen_at: None,
        };
        assert_eq!(summary_text(&[host(&[])], false), "1 host, no differences");
        let two = [host(&[]), host(&["driver"])];
        assert_eq!(summary_text(&two, true), "First 2 hosts, 1 differs from most hosts with its board model");
    }

    #[test]
    fn power_is_in_watts_or_kilowatts() {
        assert_eq!(
            (kilowatts(0.0), kilowatts(612.4), kilowatts(20_000.0)),
            ("0 W".into(), "612 W".into(), "20.0 kW".into())
        );
    }
}
