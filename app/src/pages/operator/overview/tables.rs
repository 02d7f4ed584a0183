//! Tables of the overview: free capacity, power and the latest changes.

use berth_types::operations::Rack;
use berth_types::overview::ModelCapacity;
use berth_types::quotas::AuditEvent;
use leptos::prelude::*;

use super::super::super::text::number;
use super::super::audit::{action_text, detail_text, subject};
use super::super::hardware::{allocated_text, kilowatts};
use crate::ui::*;

/// Returns the table of the free capacity by board model.
pub fn capacity(models: &[ModelCapacity]) -> AnyView {
    if models.is_empty() {
        return empty("No boards yet. Add a node with one command on a GPU host.");
    }
    let row = |one: &ModelCapacity| {
        let model = one.model.clone();
        let slice = one.largest_free_slice.clone().unwrap_or_else(|| "–".to_owned());
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{model}</th>
                <td role="cell" class="num" data-label="Boards">{number(one.boards)}</td>
                <td role="cell" class="num" data-label="In service">{number(one.usable)}</td>
                <td role="cell" class="num" data-label="Free">{number(one.free)}</td>
                <td role="cell" data-label="Largest free slice">{slice}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = models.iter().map(row).collect();
    table_of(
        "Free capacity by board model",
        &[
            ("Model", ""),
            ("Boards", "num"),
            ("In service", "num"),
            ("Free", "num"),
            ("Largest free slice", ""),
        ],
        rows,
    )
}

/// Returns the label of the link to all racks.
pub fn all_racks(count: u64) -> String {
    match count {
        0 => "Hardware".to_owned(),
        1 => "1 rack".to_owned(),
        count => format!("All {} racks", number(count)),
    }
}

/// Returns the table of the power of racks.
pub fn power(racks: &[Rack]) -> AnyView {
    if racks.is_empty() {
        return view! { <p class="quiet">"No racks: no node has the label rack."</p> }.into_any();
    }
    let row = |rack: &Rack| {
        let name = rack.name.clone();
        let over = rack.budget_watts.is_some_and(|budget| rack.counted_watts > budget);
        let over = over.then(|| view! { " " <span class="tag tag--warn">"over budget"</span> });
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{name}</th>
                <td role="cell" class="num" data-label="Measured power">{kilowatts(rack.drawn_watts)}</td>
                <td role="cell" class="num" data-label="Allocated power">{allocated_text(rack)}{over}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = racks.iter().map(row).collect();
    table_of("Power by rack", &[("Rack", ""), ("Measured power", "num"), ("Allocated power", "num")], rows)
}

/// Returns the table of the latest audit events.
pub fn changes(events: &[AuditEvent], currency: &str) -> AnyView {
    if events.is_empty() {
        return view! { <p class="quiet">"No changes yet."</p> }.into_any();
    }
    let row = |event: &AuditEvent| {
        let actor = event.actor.clone();
        let action = action_text(&event.action).to_owned();
        let detail = detail_text(event, currency);
        // The details of changes of the hardware do not name it.
        let is_hardware = ["node.", "gpu.", "rack."].iter().any(|part| event.action.starts_with(part));
        let hardware = is_hardware.then(|| view! { <span class="table__sub">{subject(event)}</span> });
        view! {
            <tr role="row">
                <th role="rowheader" scope="row">{action} <span class="table__sub">{actor}</span></th>
                <td role="cell" class="nowrap" data-label="Time"><When at=event.at/></td>
                <td role="cell" class="table__lead" data-label="Details">{detail}{hardware}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = events.iter().map(row).collect();
    table_of("Latest changes", &[("Change", ""), ("Time", "nowrap"), ("Details", "")], rows)
}
