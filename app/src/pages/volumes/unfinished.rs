//! The unfinished uploads of a volume, without those of this page.

use berth_types::volumes::UnfinishedUpload;
use leptos::prelude::*;

use super::super::confirm::ConfirmDialog;
use super::super::parts::Call;
use super::super::text::size_text;
use super::state::{FileUpload, VolumeState};
use crate::api;
use crate::ui::*;

/// The table of the unfinished uploads, if there are any, and the confirmation of a removal.
#[component]
pub(super) fn Unfinished(state: VolumeState) -> impl IntoView {
    let others = Memo::new(move |_| {
        let sent = |uploads: &Vec<FileUpload>, path: &str| {
            uploads.iter().any(|upload| upload.is_sent() && upload.path.get_value() == path)
        };
        let mut others = state.volume.with(|volume| volume.unfinished_uploads.clone());
        others.retain(|other| !state.uploads.with(|uploads| sent(uploads, &other.path)));
        others
    });
    let call = Call::idle();
    let remove = move |()| {
        let Some(path) = state.removed.one.get_untracked() else { return };
        let name = state.name.get_value();
        let removal = api::volumes::drop_upload(state.org, &name, &path);
        // An upload that is gone needs no removal.
        let removed = async move {
            match removal.await {
                Err(problem) if problem.status == 404 => Ok(()),
                answer => answer,
            }
        };
        call.run(removed, move |()| {
            state.removed.open.set(false);
            state.reload();
        });
    };
    view! {
        {move || others.with(|others| (!others.is_empty()).then(|| section(others, state)))}
        <ConfirmDialog
            id="remove-upload"
            title=state.removed.title("Remove", "unfinished upload", String::as_str)
            open=state.removed.open
            call=call
            keep="Keep upload"
            verb="Remove upload"
            confirm=Callback::new(remove)
        >
            <p>"The received part is lost. An upload of the file in another window or by another person fails."</p>
        </ConfirmDialog>
    }
}

fn section(uploads: &[UnfinishedUpload], state: VolumeState) -> AnyView {
    let rows = uploads.iter().map(|upload| row(upload, state)).collect();
    view! {
        <section class="section">
            <div class="section__head"><h2>"Unfinished uploads"</h2></div>
            <p class="prose">
                "Each takes the whole size of its file. To continue one, select the same file again. The portal removes it 7 days after its last part."
            </p>
            {table_of("Unfinished uploads", &[("Name", ""), ("Received", ""), ACTIONS], rows)}
        </section>
    }
    .into_any()
}

fn row(upload: &UnfinishedUpload, state: VolumeState) -> AnyView {
    let path = upload.path.clone();
    let label = format!("Remove {path}");
    let remove = state.removed.button(path.clone(), "Remove", label, state.ready);
    let received = format!("{} of {}", size_text(upload.received_bytes), size_text(upload.bytes));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="mono break">{path}</span></th>
            <td role="cell" class="nowrap" data-label="Received">{received}</td>
            <td role="cell" class="table__actions">{remove}</td>
        </tr>
    }
    .into_any()
}
