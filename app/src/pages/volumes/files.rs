//! What is in one directory of a volume: to go into, to fetch, to take out.
//!
//! Must not fetch a file by itself: the browser does that, to the disk.

use berth_types::Page;
use berth_types::volumes::{EntryKind, VolumeEntry};
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::parts::{Call, CallProblem};
use super::super::words::size_text;
use super::files_text;
use super::one::{Shelf, dir_href};
use crate::api;
use crate::ui::*;

/// The directory as a table.
#[component]
pub(super) fn FileTable(shelf: Shelf) -> impl IntoView {
    let none = Memo::new(move |_| shelf.entries.with(Vec::is_empty));
    view! {
        <section class="section">
            <div class="section__head"><h2>"Files"</h2></div>
            {move || {
                if none.get() {
                    empty("There is no file here yet.")
                } else {
                    shelf.entries.with(|entries| table(entries, shelf))
                }
            }}
            <More shelf=shelf/>
        </section>
    }
}

#[component]
fn More(shelf: Shelf) -> impl IntoView {
    let call = Call::idle();
    let more = move |_: leptos::ev::MouseEvent| {
        let Some(cursor) = shelf.next.get_untracked() else { return };
        let (name, dir) = (shelf.name.get_value(), shelf.dir.get_value());
        let page = api::volumes::files(shelf.org, &name, &dir, Some(&cursor));
        call.run(page, move |page: Page<VolumeEntry>| {
            shelf.entries.update(|entries| entries.extend(page.items));
            shelf.next.set(page.next_cursor);
        });
    };
    move || {
        shelf.next.get().map(|_| {
            view! {
                <CallProblem call=call beside_fields=&[]/>
                <p>
                    <button
                        class="btn"
                        type="button"
                        disabled=move || !shelf.ready.get() || call.pending.get()
                        on:click=more
                    >
                        "Show more"
                    </button>
                </p>
            }
        })
    }
}

fn table(entries: &[VolumeEntry], shelf: Shelf) -> AnyView {
    table_of(
        "Files in this directory",
        &[("Name", ""), ("Size", ""), ("Changed", ""), ACTIONS],
        entries.iter().map(|entry| row(entry, shelf)).collect(),
    )
}

fn row(entry: &VolumeEntry, shelf: Shelf) -> AnyView {
    let volume = shelf.name.get_value();
    let name = entry.name.clone();
    let (shown, actions) = match entry.kind {
        EntryKind::Dir => {
            let below = files_text(entry.files);
            let href = dir_href(&volume, &entry.path);
            let shown = view! {
                <a class="mono break" href=href>{format!("{name}/")}</a>
                <span class="table__sub">{below}</span>
            };
            (shown.into_any(), ().into_any())
        }
        EntryKind::File => {
            let href = api::volumes::file_href(shelf.org, &volume, &entry.path);
            let label = format!("Download {name}");
            let delete_label = format!("Delete {name}");
            let delete = shelf
                .writes
                .then(|| shelf.doomed.button(entry.path.clone(), "Delete", delete_label, shelf.ready));
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
            <th role="rowheader" scope="row">{shown}</th>
            <td role="cell" class="nowrap" data-label="Size">{size_text(entry.bytes)}</td>
            <td role="cell" class="nowrap" data-label="Changed"><When at=entry.changed_at/></td>
            <td role="cell" class="table__actions">{actions}</td>
        </tr>
    }
    .into_any()
}

/// Asks before a file is taken out.
#[component]
pub(super) fn RemoveDialog(shelf: Shelf) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(path) = shelf.doomed.one.get_untracked() else { return };
        let name = shelf.name.get_value();
        call.run(api::volumes::remove_file(shelf.org, &name, &path), move |()| {
            shelf.doomed.open.set(false);
            shelf.look();
        });
    };
    view! {
        <ConfirmDialog
            id="delete-file"
            title=shelf.doomed.title("Delete", "file", String::as_str)
            open=shelf.doomed.open
            call=call
            keep="Keep it"
            verb="Delete file"
            confirm=Callback::new(delete)
        >
            <p>"Jobs that read the volume now keep it until they end. It cannot be brought back."</p>
        </ConfirmDialog>
    }
}
