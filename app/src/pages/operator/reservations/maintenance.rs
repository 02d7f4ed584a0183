//! Form for maintenance of boards. The portal refuses a plan with a reservation or a running job in its
//! window.

use berth_types::ids::NodeId;
use berth_types::nodes::{Gpu, Node};
use berth_types::problems::{FieldError as Wrong, Problem};
use berth_types::reservations::{NewMaintenance, Reservation};
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::parts::{Call, FieldError, now_ms};
use super::super::super::time_field::TimeField;
use super::merge;
use crate::api;
use crate::ui::{SelectField, TextField, Zone, use_zone};

const FIELDS: &[&str] = &["/node", "/gpus", "/starts_at", "/ends_at", "/reason"];

/// Returns the initial window: two hours from the next full hour.
fn first_window(now_ms: i64) -> (Timestamp, Timestamp) {
    let hour = now_ms.div_euclid(3_600_000).saturating_add(1);
    let begin = Timestamp::from_micros(hour.saturating_mul(3_600_000_000));
    (begin, begin.plus_seconds(7_200))
}

/// The input, with times in the zone of the pages.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Draft {
    node: Option<NodeId>,
    gpus: Vec<String>,
    begin: String,
    end: String,
    reason: String,
}

impl Draft {
    /// Parses the input.
    ///
    /// # Errors
    /// One error for each invalid field.
    fn request(self, zone: Zone) -> Result<NewMaintenance, Vec<Wrong>> {
        let mut errors = Vec::new();
        let mut parse = |pointer: &str, field: &str| {
            let at = zone.instant(field);
            if let Err(error) = at {
                errors.push(Wrong::new(pointer, error.text()));
            }
            at.ok()
        };
        let (begin, end) = (parse("/starts_at", &self.begin), parse("/ends_at", &self.end));
        let reason = self.reason.trim().to_owned();
        if reason.is_empty() {
            errors.push(Wrong::new("/reason", "Enter a reason. Everyone sees it in the calendar."));
        }
        if self.node.is_none() {
            errors.push(Wrong::new("/node", "Choose a node."));
        }
        match (self.node, begin, end) {
            (Some(node), Some(starts_at), Some(ends_at)) if errors.is_empty() => {
                Ok(NewMaintenance { node, gpus: self.gpus, starts_at, ends_at, reason })
            }
            _ => Err(errors),
        }
    }
}

/// The form with node, boards, start, end and reason.
#[component]
pub fn MaintenanceForm(
    /// All nodes with their boards.
    nodes: Vec<Node>,
    /// All reservations, including the new maintenance.
    all: RwSignal<Vec<Reservation>>,
) -> impl IntoView {
    let call = Call::idle();
    let status = RwSignal::new("");
    let node = RwSignal::new(nodes.first().map(|node| node.id));
    let gpus = RwSignal::new(Vec::<String>::new());
    let begin = RwSignal::new(String::new());
    let end = RwSignal::new(String::new());
    let reason = RwSignal::new(String::new());
    let zone = use_zone();
    // The server has no clock, so the times start empty.
    Effect::new(move || {
        if begin.with_untracked(String::is_empty) && end.with_untracked(String::is_empty) {
            let (from, until) = first_window(now_ms());
            begin.set(zone.get_untracked().field(from));
            end.set(zone.get_untracked().field(until));
        }
    });
    let submit = move |()| {
        status.set("");
        let draft = Draft {
            node: node.get_untracked(),
            gpus: gpus.get_untracked(),
            begin: begin.get_untracked(),
            end: end.get_untracked(),
            reason: reason.get_untracked(),
        };
        match draft.request(zone.get_untracked()) {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(body) => {
                call.run(api::operator_reservations::maintain(&body), move |planned: Reservation| {
                    all.update(|all| merge(all, planned));
                    gpus.set(Vec::new());
                    reason.set(String::new());
                    status.set("Maintenance planned. It appears in the list above.");
                });
            }
        }
    };
    if nodes.is_empty() {
        return view! {
            <section class="card">
                <h2 class="card__title">"Plan maintenance"</h2>
                <p class="quiet">"No nodes yet."</p>
                <p><a class="btn" href="/operator/nodes">"Add node"</a></p>
            </section>
        }
        .into_any();
    }
    let options: Vec<AnyView> = nodes
        .iter()
        .map(|known| {
            let selected = node.get_untracked() == Some(known.id);
            let (value, name) = (known.id.to_string(), known.name.clone());
            view! { <option value=value selected=selected>{name}</option> }.into_any()
        })
        .collect();
    let nodes = StoredValue::new(nodes);
    let boards = move || {
        let chosen = node.get();
        nodes.with_value(|nodes| {
            let chosen_nodes = nodes.iter().filter(|known| Some(known.id) == chosen);
            chosen_nodes.flat_map(|known| &known.gpus).map(|gpu| board(gpu, gpus)).collect::<Vec<AnyView>>()
        })
    };
    let choose = move |id: String| {
        gpus.set(Vec::new());
        node.set(id.parse().ok());
    };
    view! {
        <CardForm
            title="Plan maintenance"
            lead="During maintenance, the boards take no jobs and no reservations. Jobs that could run into the window are no longer placed there. A reservation or a running job in the window refuses the plan."
            call=call
            beside_fields=FIELDS
            verb="Plan maintenance"
            status=status
            submit=Callback::new(submit)
        >
            <div class="field-row field-row--times">
                <SelectField label="Node" id="maintain-node" error=call.field("/node") choose=Callback::new(choose)>
                    {options}
                </SelectField>
                <TimeField label="Start" id="maintain-begin" value=begin error=call.field("/starts_at")/>
                <TimeField label="End" id="maintain-end" value=end error=call.field("/ends_at")/>
            </div>
            <fieldset class="field field--wide" aria-describedby="maintain-gpus-hint maintain-gpus-error">
                <legend class="field__label">"Boards"</legend>
                <div class="row">{boards}</div>
                <p class="field__hint" id="maintain-gpus-hint">"None selected: all boards of the node."</p>
                <FieldError id="maintain-gpus-error" error=call.field("/gpus")/>
            </fieldset>
            <TextField
                label="Reason"
                id="maintain-reason"
                max_length=100
                value=reason
                hint="Shown to everyone in the calendar, such as: driver update."
                error=call.field("/reason")
            />
        </CardForm>
    }
    .into_any()
}

/// Returns the checkbox of a board.
fn board(gpu: &Gpu, gpus: RwSignal<Vec<String>>) -> AnyView {
    let text = format!("GPU {}: {}", gpu.index, gpu.model);
    let (uuid, shown) = (gpu.uuid.clone(), gpu.uuid.clone());
    let toggle = move |ev: leptos::ev::Event| {
        let checked = event_target_checked(&ev);
        gpus.update(|gpus| {
            gpus.retain(|known| *known != uuid);
            if checked {
                gpus.push(uuid.clone());
            }
        });
    };
    view! {
        <label class="check">
            <input type="checkbox" prop:checked=move || gpus.with(|gpus| gpus.contains(&shown)) on:change=toggle/>
            {text}
        </label>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        Draft {
            node: "node_00000000000000000000000001".parse().ok(),
            gpus: Vec::new(),
            begin: "2026-03-01T09:00".to_owned(),
            end: "2026-03-01T11:00".to_owned(),
            reason: " driver update ".to_owned(),
        }
    }

    #[test]
    fn a_form_becomes_maintenance() {
        let plan = draft().request(Zone::Utc).unwrap();
        assert_eq!(
            (plan.starts_at.to_string().as_str(), plan.reason.as_str()),
            ("2026-03-01T09:00:00Z", "driver update")
        );
        assert_eq!(plan.ends_at.millis_since(plan.starts_at), 7_200_000);
        let empty = Draft {
            node: None,
            gpus: Vec::new(),
            begin: String::new(),
            end: "soon".to_owned(),
            reason: String::new(),
        };
        let at: Vec<String> =
            empty.request(Zone::Utc).unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(at, ["/starts_at", "/ends_at", "/reason", "/node"]);
    }

    #[test]
    fn a_skipped_time_is_refused() {
        let berlin = Zone::parse("3600.1774746000.7200.1792890000.3600").unwrap();
        let local = draft().request(berlin).unwrap();
        assert_eq!(local.starts_at.to_string(), "2026-03-01T08:00:00Z");
        let skipped = Draft { end: "2026-03-29T02:30".to_owned(), ..draft() };
        let errors = skipped.request(berlin).unwrap_err();
        assert_eq!(errors.first().map(|error| error.pointer.as_str()), Some("/ends_at"));
    }

    #[test]
    fn the_initial_window_starts_at_the_next_full_hour() {
        let (begin, end) = first_window(1_795_214_589_123);
        assert_eq!(begin.millis() % 3_600_000, 0);
        assert!((0..=3_600_000).contains(&(begin.millis() - 1_795_214_589_123)));
        assert_eq!(end.millis_since(begin), 7_200_000);
    }
}
