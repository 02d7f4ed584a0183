//! Uploads of files and of folders into a volume, in parts. An upload continues at its last part after a lost
//! connection, and after another selection of the same file.
//!
//! The portal checks the files; its errors are shown at the file.

use leptos::attr::custom::custom_attribute;
use leptos::prelude::*;

use super::super::text::size_text;
use super::state::{FileUpload, UploadStatus, VolumeState};

/// Returns the received part in percent; an empty file is complete.
fn percent(received: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        100
    } else {
        u64::try_from(u128::from(received) * 100 / u128::from(bytes)).unwrap_or(100)
    }
}

/// The selections of files and of a folder, with the list of uploads.
#[component]
pub(super) fn Uploads(state: VolumeState) -> impl IntoView {
    let is_empty = RwSignal::new(false);
    let on_selection = move |event: leptos::ev::Event| {
        #[cfg(feature = "hydrate")]
        is_empty.set(!browser::start(&event, state));
        #[cfg(not(feature = "hydrate"))]
        let _ = (&event, is_empty, state);
    };
    let empty_text = "No file selected. A folder without files has nothing to upload.";
    view! {
        <section class="section">
            <div class="section__head"><h2>"Upload files"</h2></div>
            <div class="card">
                <div class="field field--wide">
                    <label class="field__label" for="volume-files">"Files"</label>
                    <input
                        id="volume-files"
                        type="file"
                        multiple=true
                        disabled=move || !state.ready.get()
                        aria-describedby="volume-files-hint"
                        on:change=on_selection
                    />
                    <p class="field__hint" id="volume-files-hint">
                        "Files go into the current directory and replace files of the same name. Keep this page open until the upload is complete. To continue an interrupted upload, select the same file again."
                    </p>
                </div>
                <div class="field field--wide">
                    <label class="field__label" for="volume-folder">"Upload folder"</label>
                    // Browsers report a folder without files like a closed dialog.
                    <input
                        {..custom_attribute("webkitdirectory", true)}
                        id="volume-folder"
                        type="file"
                        disabled=move || !state.ready.get()
                        aria-describedby="volume-folder-hint"
                        on:change=on_selection
                        on:cancel=on_selection
                    />
                    <p class="field__hint" id="volume-folder-hint">
                        "The folder goes into the current directory, with its name and the directories in it. A second selection of the folder sends all its files again."
                    </p>
                    <p class="field__hint" role="status">{move || is_empty.get().then_some(empty_text)}</p>
                </div>
                <ul class="uploads" aria-label="Uploads">
                    {move || state.uploads.get().into_iter().map(line).collect::<Vec<AnyView>>()}
                </ul>
            </div>
        </section>
    }
}

fn line(upload: FileUpload) -> AnyView {
    let name = upload.path.get_value();
    let label = format!("Upload of {name}");
    let value = move || percent(upload.received.get(), upload.bytes).to_string();
    let cancel_label = format!("Cancel the upload of {name}");
    let text = move || match upload.status.get() {
        UploadStatus::Sending | UploadStatus::Waiting(_) if upload.cancelled.get() => {
            "Cancelling.".to_owned()
        }
        UploadStatus::Sending => {
            format!("{} of {}", size_text(upload.received.get()), size_text(upload.bytes))
        }
        UploadStatus::Done => format!("{}, complete", size_text(upload.bytes)),
        UploadStatus::Cancelled => "Cancelled.".to_owned(),
        UploadStatus::Waiting(detail) | UploadStatus::Refused(detail) => detail,
    };
    view! {
        <li>
            <span class="mono break">{name}</span>
            <progress class="meter" max="100" value=value aria-label=label></progress>
            <span class="row">
                <span class="quiet" role="status">{text}</span>
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=cancel_label
                    hidden=move || !upload.runs()
                    disabled=move || upload.cancelled.get()
                    on:click=move |_| upload.cancelled.set(true)
                >
                    "Cancel"
                </button>
            </span>
        </li>
    }
    .into_any()
}

#[cfg(feature = "hydrate")]
mod browser {
    use std::time::Duration;

    use berth_types::volumes::{NewUpload, Upload};
    use leptos::prelude::*;
    use leptos::task::spawn_local;
    use wasm_bindgen::JsValue;
    use web_sys::{File, HtmlInputElement};

    use super::super::state::{FileUpload, UploadStatus, VolumeState};
    use crate::api::{self, Answer};

    /// The size of a part in bytes.
    const PART_BYTES: u64 = 4 << 20;
    /// The pause before the next attempt.
    const RETRY_PAUSE: Duration = Duration::from_secs(2);
    const CHANGED: &str = "The file was changed, moved or deleted during the upload. Select it again.";

    /// Returns the path of a file from the selected folder on, or the name of a file without a folder.
    fn relative_path(file: &File) -> String {
        let path = js_sys::Reflect::get(file, &JsValue::from_str("webkitRelativePath"));
        let path = path.ok().and_then(|path| path.as_string());
        path.filter(|path| !path.is_empty()).unwrap_or_else(|| file.name())
    }

    /// Uploads the selected files one after the other. Returns false without a file.
    pub fn start(event: &leptos::ev::Event, state: VolumeState) -> bool {
        let input: HtmlInputElement = event_target(event);
        let Some(list) = input.files() else { return false };
        let mut queue: Vec<(File, FileUpload)> = Vec::new();
        for file in (0..list.length()).filter_map(|index| list.get(index)) {
            let (dir, path) = (state.dir.get_value(), relative_path(&file));
            let path = if dir.is_empty() { path } else { format!("{dir}/{path}") };
            let upload = FileUpload {
                path: StoredValue::new(path),
                // A length in a browser is a whole number below 2^53.
                bytes: file.size() as u64,
                received: RwSignal::new(0),
                status: RwSignal::new(UploadStatus::Sending),
                cancelled: RwSignal::new(false),
            };
            queue.push((file, upload));
        }
        if queue.is_empty() {
            return false;
        }
        state.uploads.update(|all| all.extend(queue.iter().map(|(_, upload)| *upload)));
        // An empty input lets the user select the same file again.
        input.set_value("");
        spawn_local(async move {
            for (file, upload) in queue {
                if upload_file(&file, upload, state).await.is_none() {
                    return;
                }
                state.reload();
            }
        });
        true
    }

    /// Uploads one file and repeats after a lost connection. `None` after the end of the page.
    async fn upload_file(file: &File, upload: FileUpload, state: VolumeState) -> Option<()> {
        let (path, volume) = (upload.path.try_get_value()?, state.name.try_get_value()?);
        let request =
            NewUpload { bytes: upload.bytes, sha256: None, tag: Some(format!("{}", file.last_modified())) };
        if upload.cancelled.try_get_untracked()? {
            return set(upload, UploadStatus::Cancelled);
        }
        loop {
            let result = try_upload(file, (&volume, &path), &request, upload, state).await?;
            // A request whose bytes the browser refuses has no answer, like one over a lost connection.
            let has_changed =
                matches!(&result, Err(problem) if problem.status == 0) && !is_readable(file).await;
            let is_cancelled = upload.cancelled.try_get_untracked()?;
            let status = match result {
                Ok(true) => UploadStatus::Done,
                Ok(false) => cancel(state, (&volume, &path)).await,
                Err(_) if is_cancelled => cancel(state, (&volume, &path)).await,
                Err(_) if has_changed => UploadStatus::Refused(CHANGED.to_owned()),
                // No answer, or a busy portal.
                Err(problem) if problem.status == 0 || problem.status == 503 => {
                    let lost = problem.status == 0;
                    let reason = match lost {
                        true => "Connection lost, retrying.".to_owned(),
                        false => format!("{} The page tries again.", problem.detail),
                    };
                    set(upload, UploadStatus::Waiting(reason))?;
                    gloo_timers::future::sleep(RETRY_PAUSE).await;
                    continue;
                }
                Err(problem) => {
                    let first = problem.errors.into_iter().next();
                    UploadStatus::Refused(first.map_or(problem.detail, |error| error.detail))
                }
            };
            return set(upload, status);
        }
    }

    fn set(upload: FileUpload, status: UploadStatus) -> Option<()> {
        upload.status.try_set(status).is_none().then_some(())
    }

    /// The browser refuses the bytes of a file that has changed since its selection.
    async fn is_readable(file: &File) -> bool {
        let Ok(first) = file.slice_with_f64_and_f64(0.0, 1.0) else { return false };
        wasm_bindgen_futures::JsFuture::from(first.array_buffer()).await.is_ok()
    }

    /// Abandons a cancelled upload, so that it takes no more room.
    async fn cancel(state: VolumeState, (volume, path): (&str, &str)) -> UploadStatus {
        match api::volumes::drop_upload(state.org, volume, path).await {
            Err(problem) if problem.status != 404 => UploadStatus::Refused(format!(
                "The portal still has the received part: {} Remove it from the unfinished uploads.",
                problem.detail
            )),
            Ok(()) | Err(_) => UploadStatus::Cancelled,
        }
    }

    /// Uploads the rest of a file, until the first error. False after *Cancel*, `None` after the end of the page.
    async fn try_upload(
        file: &File,
        (volume, path): (&str, &str),
        request: &NewUpload,
        upload: FileUpload,
        state: VolumeState,
    ) -> Option<Answer<bool>> {
        let mut progress: Upload = match api::volumes::start_upload(state.org, volume, path, request).await {
            Ok(upload) => upload,
            Err(problem) => return Some(Err(problem)),
        };
        loop {
            if upload.received.try_set(progress.received).is_some() {
                return None;
            }
            set(upload, UploadStatus::Sending)?;
            let is_cancelled = upload.cancelled.try_get_untracked()?;
            if progress.done || is_cancelled {
                return Some(Ok(progress.done));
            }
            let end = progress.received.saturating_add(PART_BYTES).min(request.bytes);
            let Ok(part) = file.slice_with_f64_and_f64(progress.received as f64, end as f64) else {
                return Some(Err(berth_types::problems::Problem::malformed(CHANGED)));
            };
            progress = match api::volumes::send_part(state.org, volume, path, progress.received, part).await {
                Ok(upload) => upload,
                Err(problem) => return Some(Err(problem)),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_is_complete() {
        assert_eq!((percent(0, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (100, 33, 100));
    }
}
