//! The objects behind the blockers of a wait: own jobs and reservations as links, and the number of the others.
//!
//! The lines survive a refresh: only changed texts are drawn again.

use berth_types::jobs::{Blocker, BlockingKind, BlockingObject, SuggestedChange};
use berth_types::money::reserved_text;
use leptos::prelude::*;

use super::rows::device_text;
use super::text::{counted, price_text, state_text};
use crate::address::{OrgLinks, use_org_links};
use crate::ui::{Zone, use_zone};

/// Returns the key of an object's line: one for each object, whatever its blockers.
fn key(object: &BlockingObject) -> String {
    match (object.job, object.reservation) {
        (Some(job), _) => job.to_string(),
        (None, Some(reservation)) => reservation.to_string(),
        (None, None) => object.starts_at.map(|at| at.to_string()).unwrap_or_default(),
    }
}

/// Returns the objects of all blockers, each once.
fn objects(blockers: &[Blocker]) -> Vec<BlockingObject> {
    let mut out: Vec<BlockingObject> = Vec::new();
    for object in blockers.iter().flat_map(|blocker| &blocker.objects) {
        if !out.iter().any(|known| key(known) == key(object)) {
            out.push(object.clone());
        }
    }
    out
}

/// Returns the page of an object of the organization; `None` for maintenance.
fn page(object: &BlockingObject) -> Option<String> {
    let job = object.job.map(|job| format!("/jobs/{job}"));
    job.or_else(|| object.reservation.map(|reservation| format!("/reservations/{reservation}")))
}

/// Returns state, place and times of an object.
fn object_text(object: &BlockingObject, zone: Zone) -> String {
    let mut parts = Vec::new();
    parts.extend(object.state.map(state_text));
    parts.extend(object.devices.first().map(|first| match object.devices.len() {
        1 => device_text(first),
        2 => format!("{} and 1 more", device_text(first)),
        // The portal names only some of many devices.
        _ => format!("{} and others", device_text(first)),
    }));
    match (object.kind, object.starts_at, object.ends_by) {
        (BlockingKind::Job, _, Some(end)) => parts.push(format!("ends by {}", zone.minute(end))),
        (_, Some(start), Some(end)) => {
            parts.push(format!("{} to {}", zone.minute(start), zone.minute(end)));
        }
        _ => {}
    }
    if object.frees_place {
        parts.push("its end frees a place".to_owned());
    }
    parts.join(" · ")
}

/// Returns the sentence about objects without a line; empty without such objects.
fn rest_text(blockers: &[Blocker]) -> String {
    let most = |count: fn(&Blocker) -> u32| blockers.iter().map(count).max().unwrap_or(0) as usize;
    let (more, others) = (most(|blocker| blocker.more_objects), most(|blocker| blocker.others));
    let mut parts = Vec::new();
    if more > 0 {
        let what = counted(more, "more job or reservation", "more jobs or reservations");
        parts.push(format!("{what} of your organization"));
    }
    if others > 0 {
        let what = counted(others, "job or reservation", "jobs or reservations");
        parts.push(format!("{what} of other organizations"));
    }
    if parts.is_empty() { String::new() } else { format!("Also in the way: {}.", parts.join(", ")) }
}

/// Returns the price of a suggested change.
pub fn suggestion_price(change: &SuggestedChange) -> String {
    let price = price_text(change.per_hour_micros, &change.currency);
    format!("{price}/h, at most {}", reserved_text(change.worst_case_micros, &change.currency))
}

fn line(
    object: &BlockingObject,
    links: OrgLinks,
    zone: RwSignal<Zone>,
    all: Memo<Vec<BlockingObject>>,
) -> AnyView {
    let own = key(object);
    let text = move || {
        let zone = zone.get();
        let object = |all: &Vec<BlockingObject>| all.iter().find(|other| key(other) == own).cloned();
        all.with(object).map(|object| object_text(&object, zone)).unwrap_or_default()
    };
    let name =
        if object.kind == BlockingKind::Maintenance { "Maintenance".to_owned() } else { object.name.clone() };
    let name = match page(object) {
        Some(page) => view! { <a href=links.link(&page)>{name}</a> }.into_any(),
        None => view! { <span>{name}</span> }.into_any(),
    };
    view! { <li class="why__object">{name}" "<span class="why__basis">{text}</span></li> }.into_any()
}

/// The list of the objects behind the blockers. Without objects it takes no space.
#[component]
pub fn BlockingObjects(
    /// The blockers of a wait.
    blockers: Memo<Vec<Blocker>>,
) -> impl IntoView {
    let (links, zone) = (use_org_links(), use_zone());
    let all = Memo::new(move |_| blockers.with(|blockers| objects(blockers)));
    let rest = Memo::new(move |_| blockers.with(|blockers| rest_text(blockers)));
    let none = move || all.with(Vec::is_empty);
    view! {
        <div class="why__objects" hidden=move || none() && rest.with(String::is_empty)>
            <p class="why__kind" hidden=none>"In the way"</p>
            <ul class="why__list" aria-label="In the way" hidden=none>
                <For
                    each=move || all.get()
                    key=|object: &BlockingObject| (key(object), object.name.clone())
                    children=move |object: BlockingObject| line(&object, links, zone, all)
                />
            </ul>
            <p class="why__basis" hidden=move || rest.with(String::is_empty)>{move || rest.get()}</p>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn blocker(objects: serde_json::Value, more: u32, others: u32) -> Blocker {
        let blocker = json!({
            "code": "capacity.busy", "detail": "Busy.", "change": "Wait.", "objects": objects,
            "more_objects": more, "others": others,
        });
        serde_json::from_value(blocker).unwrap()
    }

    #[test]
    fn each_object_has_one_line_with_its_page() {
        let job = json!({
            "kind": "job", "job": "job_00000000000000000000000001", "name": "train", "state": "running",
            "ends_by": "2026-11-22T09:00:00Z", "frees_place": true,
        });
        let window = json!({
            "kind": "maintenance", "name": "", "starts_at": "2026-11-22T09:00:00Z",
            "ends_by": "2026-11-22T10:00:00Z",
        });
        let blockers = [blocker(json!([job]), 0, 0), blocker(json!([job, window]), 0, 0)];
        let found = objects(&blockers);
        assert_eq!(found.len(), 2);
        assert_eq!(page(&found[0]).as_deref(), Some("/jobs/job_00000000000000000000000001"));
        assert_eq!(
            object_text(&found[0], Zone::Utc),
            "running · ends by 2026-11-22 09:00 UTC · its end frees a place"
        );
        let device = |gpu: u32| {
            serde_json::from_value::<berth_types::jobs::Device>(json!({
                "node": "node_00000000000000000000000001", "node_name": "quay-2", "gpu_uuid": "GPU",
                "gpu_index": gpu, "cells": 8,
            }))
            .unwrap()
        };
        for (gpus, place) in
            [(1, "quay-2, GPU 0"), (2, "quay-2, GPU 0 and 1 more"), (4, "quay-2, GPU 0 and others")]
        {
            let gang = BlockingObject { devices: (0..gpus).map(device).collect(), ..found[0].clone() };
            let text = object_text(&gang, Zone::Utc);
            assert!(text.starts_with(&format!("running · {place} · ends by")), "{text}");
        }
        assert_eq!((page(&found[1]), found[1].name.as_str()), (None, ""));
        assert_eq!(object_text(&found[1], Zone::Utc), "2026-11-22 09:00 UTC to 2026-11-22 10:00 UTC");
    }

    #[test]
    fn others_are_counted_only() {
        assert_eq!(rest_text(&[blocker(json!([]), 0, 0)]), "");
        assert_eq!(
            rest_text(&[blocker(json!([]), 2, 1), blocker(json!([]), 0, 3)]),
            "Also in the way: 2 more jobs or reservations of your organization, 3 jobs or reservations of other organizations."
        );
    }
}
