//! The fleet: which hosts differ from the others of their kind, and what racks draw of what they can feed.
//!
//! Must not say what is right: it shows what most have.

use std::future::Future;

use berth_types::operations::{InventoryHost, PutRack, Rack};
use berth_types::problems::Problem;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::parts::{Call, CallProblem, FieldError, Loading, Submit, ready};
use super::super::words::counted;
use super::is_operator;
use crate::api;
use crate::api::Answer;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/budget_watts"];

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct First {
    hosts: Vec<InventoryHost>,
    racks: Vec<Rack>,
}

fn load() -> impl Future<Output = Answer<First>> + Send + 'static {
    let (hosts, racks) = (api::operations::inventory(), api::operations::racks());
    async move { Ok(First { hosts: hosts.await?.items, racks: racks.await?.items }) }
}

/// The page with hosts and racks.
#[component]
pub fn FleetPage() -> impl IntoView {
    if is_operator() { view! { <Fleet/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Fleet() -> impl IntoView {
    let data: Resource<Answer<First>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Fleet".to_owned()>
            <Suspense fallback=|| view! { <Loading/> }>
                {move || Suspend::new(async move {
                    match data.await {
                        Err(problem) => view! { <ProblemNotice problem=problem/> }.into_any(),
                        Ok(first) => {
                            view! {
                                {inventory(&first.hosts)}
                                <Racks racks=first.racks/>
                            }
                                .into_any()
                        }
                    }
                })}
            </Suspense>
        </Page>
    }
}

fn inventory(hosts: &[InventoryHost]) -> AnyView {
    let odd = hosts.iter().filter(|host| !host.odd.is_empty()).count();
    let summary = match odd {
        0 => format!("{}; none differs from most of its kind.", counted(hosts.len(), "host", "hosts")),
        1 => format!("{}; 1 differs from most of its kind.", counted(hosts.len(), "host", "hosts")),
        n => format!("{}; {n} differ from most of their kind.", counted(hosts.len(), "host", "hosts")),
    };
    let rows: Vec<AnyView> = hosts.iter().map(host_row).collect();
    view! {
        <section class="section">
            <div class="section__head">
                <h2>"Inventory"</h2>
                <div class="section__aside">
                    <span class="quiet">{summary}</span>
                    <a href="/api/v1/operator/inventory?format=csv" rel="external" download="inventory.csv">"Download CSV"</a>
                </div>
            </div>
            {table_of("Hosts", &[("Host", ""), ("Boards", ""), ("Versions", ""), ("Reported", "")], rows)}
        </section>
    }
    .into_any()
}

/// `driver 535; most with H100-80GB have 550`.
fn odd_text(host: &InventoryHost, fact: &str) -> Option<String> {
    let odd = host.odd.iter().find(|odd| odd.fact == fact)?;
    Some(format!("most with {} have {}", odd.model, odd.usual))
}

fn host_row(host: &InventoryHost) -> AnyView {
    let boards: Vec<String> = host.boards.iter().map(|(model, n)| format!("{n} × {model}")).collect();
    let boards = if boards.is_empty() { "none".to_owned() } else { boards.join(", ") };
    let fact = |(name, value): (&String, &String)| {
        let text = format!("{name} {value}");
        match odd_text(host, name) {
            Some(odd) => {
                view! { <span class="tag tag--warn">{text}</span> <span class="table__sub">{odd}</span> }
                    .into_any()
            }
            None => view! { <span class="tag">{text}</span> }.into_any(),
        }
    };
    let facts: Vec<AnyView> = host.facts.iter().map(fact).collect();
    let name = host.name.clone();
    let seen = match host.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}</th>
            <td role="cell" data-label="Boards">{boards}</td>
            <td role="cell" data-label="Versions"><span class="tags">{facts}</span></td>
            <td role="cell" class="nowrap" data-label="Reported">{seen}</td>
        </tr>
    }
    .into_any()
}

/// `1.2 kW`.
fn kilowatts(watts: f64) -> String {
    if watts < 1_000.0 { format!("{watts:.0} W") } else { format!("{:.1} kW", watts / 1_000.0) }
}

fn of_budget(rack: &Rack) -> String {
    let counted = kilowatts(rack.counted_watts as f64);
    match rack.budget_watts {
        Some(budget) => format!("{counted} of {}", kilowatts(budget as f64)),
        None => format!("{counted}, no budget"),
    }
}

fn rack_row(rack: &Rack, remove: impl Fn(String) + 'static, ready: ReadSignal<bool>, call: Call) -> AnyView {
    let name = rack.name.clone();
    let boards = format!(
        "{} in {}",
        counted(usize::try_from(rack.boards).unwrap_or(0), "board", "boards"),
        counted(usize::try_from(rack.nodes).unwrap_or(0), "node", "nodes")
    );
    let drawn = kilowatts(rack.drawn_watts);
    let unread = (rack.unread > 0).then(|| {
        let text = format!("{} without a reading", rack.unread);
        view! { <span class="table__sub">{text}</span> }
    });
    let over = rack.budget_watts.is_some_and(|budget| rack.counted_watts > budget);
    let over = over.then(|| view! { " " <span class="tag tag--warn">"over its budget"</span> });
    let unknown = (rack.unknown > 0).then(|| {
        let text = format!("{} of unknown models count 500 W each", rack.unknown);
        view! { <span class="table__sub">{text}</span> }
    });
    let button = rack.budget_watts.is_some().then(|| {
        let (label, this) = (format!("Remove the budget of {name}"), name.clone());
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
            <td role="cell" data-label="Boards">{boards}</td>
            <td role="cell" class="num" data-label="Drawn">{drawn}{unread}</td>
            <td role="cell" class="num" data-label="Counted">{of_budget(rack)}{over}{unknown}</td>
            <td role="cell" class="num" data-label="All boards">{kilowatts(rack.most_watts as f64)}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn Racks(racks: Vec<Rack>) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let again = Call::idle();
    let racks = RwSignal::new(racks);
    let (name, watts) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let reload = move || {
        again.run(api::operations::racks(), move |fresh: berth_types::Page<Rack>| racks.set(fresh.items))
    };
    let remove = move |rack: String| {
        call.run(api::operations::unset_rack(&rack), move |()| reload());
    };
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let rack = name.get_untracked().trim().to_owned();
        if rack.is_empty() {
            let detail = "Give the value of the nodes' label rack.";
            call.problem.set(Some(Problem::invalid_field("/name", detail)));
            return;
        }
        let Ok(budget_watts) = watts.get_untracked().trim().parse::<i64>() else {
            call.problem
                .set(Some(Problem::invalid_field("/budget_watts", "Give whole watts, such as 20000.")));
            return;
        };
        call.run(api::operations::set_rack(&rack, &PutRack { budget_watts }), move |()| {
            watts.set(String::new());
            reload();
        });
    };
    let rows = move || {
        racks.with(|racks| {
            racks.iter().map(|rack| rack_row(rack, remove, ready, call)).collect::<Vec<AnyView>>()
        })
    };
    let none = move || racks.with(Vec::is_empty);
    view! {
        <section class="section">
            <div class="section__head"><h2>"Racks"</h2></div>
            <p class="prose">
                "A node is in the rack that its label rack names. Boards count with what they may draw while anything holds them, and jobs wait where that would go beyond the budget."
            </p>
            <CallProblem call=again beside_fields=&[]/>
            <div class="empty" hidden=move || !none()>
                <p class="empty__text">"No node has the label rack. Start workers with --label rack=NAME."</p>
            </div>
            <div class="table-wrap" hidden=none>
                <table class="table" role="table">
                    <caption class="visually-hidden">"Racks"</caption>
                    <thead role="rowgroup">
                        <tr role="row">
                            <th role="columnheader" scope="col">"Rack"</th>
                            <th role="columnheader" scope="col">"Boards"</th>
                            <th role="columnheader" scope="col" class="num">"Drawn"</th>
                            <th role="columnheader" scope="col" class="num">"Counted"</th>
                            <th role="columnheader" scope="col" class="num">"All boards"</th>
                            <th role="columnheader" scope="col" class="table__actions">
                                <span class="visually-hidden">"Actions"</span>
                            </th>
                        </tr>
                    </thead>
                    <tbody role="rowgroup">{rows}</tbody>
                </table>
            </div>
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
                        <label class="field__label" for="rack-watts">"Watts"</label>
                        <input
                            id="rack-watts"
                            inputmode="numeric"
                            autocomplete="off"
                            aria-describedby="rack-watts-hint rack-watts-error"
                            prop:value=move || watts.get()
                            on:input=move |ev| watts.set(event_target_value(&ev))
                        />
                        <p class="field__hint" id="rack-watts-hint">"For boards alone: leave out what hosts and idle boards draw."</p>
                        <FieldError id="rack-watts-error" error=call.field("/budget_watts")/>
                    </div>
                </div>
                <div class="form__actions">
                    <Submit call=call>"Set budget"</Submit>
                </div>
            </form>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_reads_well() {
        assert_eq!(
            (kilowatts(0.0), kilowatts(612.4), kilowatts(20_000.0)),
            ("0 W".into(), "612 W".into(), "20.0 kW".into())
        );
    }
}
