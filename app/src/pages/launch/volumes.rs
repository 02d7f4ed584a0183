//! Volumes of a job: a row with the volume, its path and its access.

use leptos::prelude::*;

use super::super::parts::Call;
use super::lists::{Listing, Lists, entry_select, list_notice, load_for};
use super::rows::{Row, RowFrame, RowKind, Rows, VolumeSignals, item_pointer, row_input, row_list};
use crate::address::org_link;

static VOLUMES: RowKind = RowKind {
    label: "Volumes",
    one: "Volume",
    add: "Add volume",
    id: "volumes",
    pointer: "/volumes",
    hint: "The path is a directory directly below /, such as /data, or a path below the job directory, such as runs. The changes of a writable volume become its next version; with a storage class other jobs see them at once.",
    max: 16,
};

/// The rows of volumes.
#[component]
pub fn VolumeRows(
    /// The rows.
    rows: Rows<VolumeSignals>,
    /// The lists of the organization.
    lists: Lists,
    /// The submission.
    call: Call,
) -> impl IntoView {
    load_for(rows, move || lists.load_volumes());
    let none = move || rows.count() > 0 && lists.volumes.with(|list| *list == Listing::Ready(Vec::new()));
    let controls = move |row: Row<VolumeSignals>, frame: RowFrame| {
        let VolumeSignals { name, path, writable } = row.fields;
        view! {
            {entry_select("Volume", "No volumes", lists.volumes, name, frame)}
            {row_input("Path", "/data", path, frame, "/path")}
            <label class="check">
                <input
                    type="checkbox"
                    aria-describedby=frame.error_id()
                    prop:checked=move || writable.get()
                    on:change=move |ev| writable.set(event_target_checked(&ev))
                />
                "Writable"
            </label>
        }
        .into_any()
    };
    view! {
        {row_list(&VOLUMES, rows, call, item_pointer, controls)}
        {list_notice(lists.volumes, move || lists.load_volumes())}
        {move || {
            none().then(|| {
                view! { <p class="field__hint">"No volumes yet. " <a href=org_link("/volumes")>"Create volume"</a></p> }
            })
        }}
    }
}
