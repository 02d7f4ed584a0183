//! Table of the files in a directory of a volume, with download and deletion.
//!
//! Downloads are links, so that the browser writes a file directly to the disk.

use berth_types::Page;
use berth_types::volumes::{EntryKind, VolumeEntry};
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem};
use super::super::text::size_text;
use super::files_text;
use super::state::{VolumeState, dir_path};
use crate::address::org_link;
use crate::api;
use crate::ui::*;

/// The table of a directory.
#[component]
pub(super) fn FileTable(state: VolumeState) -> impl IntoView {
    let none = Memo::new(move |_| state.entries.with(Vec::is_empty));
    view! {
        <section class="section">
            <div class="section__head"><h2>"Files"</h2></div>
            {move || {
                if none.get() {
                    empty("No files in this directory.")
                } else {
                    state.entries.with(|entries| table(entries, state))
                }
            }}
            <More state=state/>
        </section>
    }
}

#[component]
fn More(state: VolumeState) -> impl IntoView {
    let call = Call::idle();
    let more = move |_: leptos::ev::MouseEvent| {
        let Some(cursor) = state.next.get_untracked() else { return };
        let (name, dir) = (state.name.get_value(), state.dir.get_value());
        let page = api::volumes::files(state.org, &name, &dir, Some(&cursor));
        call.run(page, move |page: Page<VolumeEntry>| {
            state.entries.update(|entries| entries.extend(page.items));
            state.next.set(page.next_cursor);
        });
    };
    move || {
        state.next.get().map(|_| {
            view! {
                <CallProblem call=call beside_fields=&[]/>
                <p>
                    <button
                        class="btn"
                        type="button"
                        disabled=move || !state.ready.get() || call.pending.get()
                        on:click=more
                    >
                        "Load more"
                    </button>
                </p>
            }
        })
    }
}

fn table(entries: &[VolumeEntry], state: VolumeState) -> AnyView {
    table_of(
        "Files in this directory",
        &[("Name", ""), ("Size", ""), ("Changed", ""), ACTIONS],
        entries.iter().map(|entry| row(entry, state)).collect(),
    )
}

fn row(entry: &VolumeEntry, state: VolumeState) -> AnyView {
    let volume = state.name.get_value();
    let name = entry.name.clone();
    let (label_cell, actions) = match entry.kind {
        EntryKind::Dir => {
            let count = files_text(entry.files);
            let href = org_link(&dir_path(&volume, &entry.path));
            let link = view! {
                <a class="mono break" href=href>{format!("{name}/")}</a>
                <span class="table__sub">{count}</span>
            };
            (link.into_any(), ().into_any())
        }
        EntryKind::File => {
            let href = api::volumes::file_href(state.org, &volume, &entry.path);
            let label = format!("Download {name}");
            let delete_label = format!("Delete {name}");
            let delete = state
                .writes
                .then(|| state.target.button(entry.path.clone(), "Delete", delete_label, state.ready));
            let actions = view! {
                <span class="btn-grid">
                    <a class="btn btn--small" href=href rel="external" download="" aria-label=label>"Download"</a>
                    {delete}
                </span>
            };
            (view! { <span class="mono break">{name}</span> }.into_any(), actions.into_any())
        }
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{label_cell}</th>
            <td role="cell" class="nowrap" data-label="Size">{size_text(entry.bytes)}</td>
            <td role="cell" class="nowrap" data-label="Changed"><When at=entry.changed_at/></td>
            <td role="cell" class="table__actions">{actions}</td>
        </tr>
    }
    .into_any()
}

/// The confirmation of a deletion.
#[component]
pub(super) fn RemoveDialog(state: VolumeState) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(path) = state.target.one.get_untracked() else { return };
        let name = state.name.get_value();
        call.run(api::volumes::remove_file(state.org, &name, &path), move |()| {
            state.target.open.set(false);
            state.reload();
        });
    };
    view! {
        <ConfirmDialog
            id="delete-file"
            title=state.target.title("Delete", "file", String::as_str)
            open=state.target.open
            call=call
            keep="Keep file"
            verb="Delete file"
            confirm=Callback::new(delete)
        >
            <p>"Jobs that read the volume now keep the file until they end. The file cannot be restored."</p>
        </ConfirmDialog>
    }
}
