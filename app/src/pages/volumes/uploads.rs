//! Uploads of files into a volume, in parts. An upload continues at its last part after a lost connection, and
//! after another selection of the same file.
//!
//! The portal checks the files; its errors are shown at the file.

use leptos::prelude::*;

use super::super::text::size_text;
use super::state::VolumeState;

/// The state of an upload.
#[cfg_attr(not(feature = "hydrate"), expect(dead_code, reason = "only a browser sends files"))]
#[derive(Debug, Clone, PartialEq, Eq)]
enum UploadStatus {
    Sending,
    /// After a lost connection, until the next attempt.
    Waiting,
    Done,
    /// With the error of the portal.
    Refused(String),
}

/// The upload of one file.
#[derive(Debug, Clone, Copy)]
struct FileUpload {
    path: StoredValue<String>,
    bytes: u64,
    received: RwSignal<u64>,
    status: RwSignal<UploadStatus>,
}

/// Returns the received part in percent; an empty file is complete.
fn percent(received: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        100
    } else {
        u64::try_from(u128::from(received) * 100 / u128::from(bytes)).unwrap_or(100)
    }
}

/// The file selection with the list of uploads.
#[component]
pub(super) fn Uploads(state: VolumeState) -> impl IntoView {
    let all = RwSignal::new(Vec::<FileUpload>::new());
    let on_change = move |event: leptos::ev::Event| {
        #[cfg(feature = "hydrate")]
        browser::start(&event, state, all);
        #[cfg(not(feature = "hydrate"))]
        let _ = (&event, state, all);
    };
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
                        on:change=on_change
                    />
                    <p class="field__hint" id="volume-files-hint">
                        "Files go into the current directory and replace files of the same name. Keep this page open until the upload is complete. To continue an interrupted upload, select the same file again."
                    </p>
                </div>
                <ul class="uploads" aria-label="Uploads">
                    {move || all.get().into_iter().map(line).collect::<Vec<AnyView>>()}
                </ul>
            </div>
        </section>
    }
}

fn line(upload: FileUpload) -> AnyView {
    let name = upload.path.get_value();
    let label = format!("Upload of {name}");
    let value = move || percent(upload.received.get(), upload.bytes).to_string();
    let text = move || match upload.status.get() {
        UploadStatus::Sending => {
            format!("{} of {}", size_text(upload.received.get()), size_text(upload.bytes))
        }
        UploadStatus::Waiting => "Connection lost, retrying.".to_owned(),
        UploadStatus::Done => format!("{}, complete", size_text(upload.bytes)),
        UploadStatus::Refused(detail) => detail,
    };
    view! {
        <li>
            <span class="mono break">{name}</span>
            <progress class="meter" max="100" value=value aria-label=label></progress>
            <span class="quiet" role="status">{text}</span>
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
    use web_sys::{File, HtmlInputElement};

    use super::super::state::VolumeState;
    use super::{FileUpload, UploadStatus};
    use crate::api::{self, Answer};

    /// The size of a part in bytes.
    const PART_BYTES: u64 = 4 << 20;
    /// The pause before the next attempt.
    const RETRY_PAUSE: Duration = Duration::from_secs(2);

    /// Uploads the selected files one after the other.
    pub fn start(event: &leptos::ev::Event, state: VolumeState, all: RwSignal<Vec<FileUpload>>) {
        let input: HtmlInputElement = event_target(event);
        let Some(list) = input.files() else { return };
        let mut queue: Vec<(File, FileUpload)> = Vec::new();
        for file in (0..list.length()).filter_map(|index| list.get(index)) {
            let dir = state.dir.get_value();
            let path = if dir.is_empty() { file.name() } else { format!("{dir}/{}", file.name()) };
            let upload = FileUpload {
                path: StoredValue::new(path),
                // A length in a browser is a whole number below 2^53.
                bytes: file.size() as u64,
                received: RwSignal::new(0),
                status: RwSignal::new(UploadStatus::Sending),
            };
            queue.push((file, upload));
        }
        all.update(|all| all.extend(queue.iter().map(|(_, upload)| *upload)));
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
    }

    /// Uploads one file and repeats after a lost connection. `None` after the end of the page.
    async fn upload_file(file: &File, upload: FileUpload, state: VolumeState) -> Option<()> {
        let (path, volume) = (upload.path.try_get_value()?, state.name.try_get_value()?);
        let request =
            NewUpload { bytes: upload.bytes, sha256: None, tag: Some(format!("{}", file.last_modified())) };
        loop {
            let result = try_upload(file, (&volume, &path), &request, upload, state).await?;
            let status = match result {
                Ok(()) => UploadStatus::Done,
                // No answer, or a busy portal.
                Err(problem) if problem.status == 0 || problem.status == 503 => {
                    set(upload, UploadStatus::Waiting)?;
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

    /// Uploads the rest of a file, until the first error. `None` after the end of the page.
    async fn try_upload(
        file: &File,
        (volume, path): (&str, &str),
        request: &NewUpload,
        upload: FileUpload,
        state: VolumeState,
    ) -> Option<Answer<()>> {
        let mut progress: Upload = match api::volumes::start_upload(state.org, volume, path, request).await {
            Ok(upload) => upload,
            Err(problem) => return Some(Err(problem)),
        };
        loop {
            if upload.received.try_set(progress.received).is_some() {
                return None;
            }
            set(upload, UploadStatus::Sending)?;
            if progress.done {
                return Some(Ok(()));
            }
            let end = progress.received.saturating_add(PART_BYTES).min(request.bytes);
            let Ok(part) = file.slice_with_f64_and_f64(progress.received as f64, end as f64) else {
                let detail = "The browser can no longer read the file. Select it again.";
                return Some(Err(berth_types::problems::Problem::malformed(detail)));
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
