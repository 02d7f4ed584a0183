//! Files on their way from this browser into a volume, in parts. A lost connection is waited for; after
//! that, and after the page was left, an upload goes on where it was.
//!
//! Must not judge a file: what the portal refuses stands beside it.

use leptos::prelude::*;

use super::super::words::size_text;
use super::one::Shelf;

/// How one file stands.
#[cfg_attr(not(feature = "hydrate"), expect(dead_code, reason = "only a browser sends files"))]
#[derive(Debug, Clone, PartialEq, Eq)]
enum Standing {
    Sent,
    /// The connection is lost; it is tried again by itself.
    Waits,
    Done,
    /// With the portal's words.
    Refused(String),
}

/// One file on its way.
#[derive(Debug, Clone, Copy)]
struct Sending {
    path: StoredValue<String>,
    bytes: u64,
    received: RwSignal<u64>,
    standing: RwSignal<Standing>,
}

/// A part of a hundred that has arrived; all of nothing has.
fn percent(received: u64, bytes: u64) -> u64 {
    if bytes == 0 {
        100
    } else {
        u64::try_from(u128::from(received) * 100 / u128::from(bytes)).unwrap_or(100)
    }
}

/// Choosing files, and how far each has come.
#[component]
pub(super) fn Uploads(shelf: Shelf) -> impl IntoView {
    let all = RwSignal::new(Vec::<Sending>::new());
    let chosen = move |event: leptos::ev::Event| {
        #[cfg(feature = "hydrate")]
        browser::begin(&event, shelf, all);
        #[cfg(not(feature = "hydrate"))]
        let _ = (&event, shelf, all);
    };
    view! {
        <section class="section">
            <div class="section__head"><h2>"Put files in"</h2></div>
            <div class="card">
                <div class="field field--wide">
                    <label class="field__label" for="volume-files">"Files"</label>
                    <input
                        id="volume-files"
                        type="file"
                        multiple=true
                        disabled=move || !shelf.ready.get()
                        aria-describedby="volume-files-hint"
                        on:change=chosen
                    />
                    <p class="field__hint" id="volume-files-hint">
                        "They go into the directory that is shown and replace what has the same name. Stay on this page until they are there; if it breaks off, choose the same file again and it goes on where it was."
                    </p>
                </div>
                <ul class="uploads" aria-label="Uploads">
                    {move || all.get().into_iter().map(line).collect::<Vec<AnyView>>()}
                </ul>
            </div>
        </section>
    }
}

fn line(sending: Sending) -> AnyView {
    let name = sending.path.get_value();
    let label = format!("Upload of {name}");
    let far = move || percent(sending.received.get(), sending.bytes).to_string();
    let words = move || match sending.standing.get() {
        Standing::Sent => {
            format!("{} of {}", size_text(sending.received.get()), size_text(sending.bytes))
        }
        Standing::Waits => "The connection is lost; it goes on when that is back.".to_owned(),
        Standing::Done => format!("{}, in the volume", size_text(sending.bytes)),
        Standing::Refused(why) => why,
    };
    view! {
        <li>
            <span class="mono break">{name}</span>
            <progress class="meter" max="100" value=far aria-label=label></progress>
            <span class="quiet" role="status">{words}</span>
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

    use super::super::one::Shelf;
    use super::{Sending, Standing};
    use crate::api::{self, Answer};

    /// Bytes of one part.
    const PART: u64 = 4 << 20;
    const AGAIN: Duration = Duration::from_secs(2);

    /// Sends what was chosen, one file after the other.
    pub fn begin(event: &leptos::ev::Event, shelf: Shelf, all: RwSignal<Vec<Sending>>) {
        let input: HtmlInputElement = event_target(event);
        let Some(list) = input.files() else { return };
        let mut queue: Vec<(File, Sending)> = Vec::new();
        for file in (0..list.length()).filter_map(|index| list.get(index)) {
            let dir = shelf.dir.get_value();
            let path = if dir.is_empty() { file.name() } else { format!("{dir}/{}", file.name()) };
            let sending = Sending {
                path: StoredValue::new(path),
                // A length in a browser is a whole number below 2^53.
                bytes: file.size() as u64,
                received: RwSignal::new(0),
                standing: RwSignal::new(Standing::Sent),
            };
            queue.push((file, sending));
        }
        all.update(|all| all.extend(queue.iter().map(|(_, sending)| *sending)));
        // So that the same file can be chosen again.
        input.set_value("");
        spawn_local(async move {
            for (file, sending) in queue {
                if send(&file, sending, shelf).await.is_none() {
                    return;
                }
                shelf.look();
            }
        });
    }

    /// `None`: the page was left.
    async fn send(file: &File, sending: Sending, shelf: Shelf) -> Option<()> {
        let (path, volume) = (sending.path.try_get_value()?, shelf.name.try_get_value()?);
        let order =
            NewUpload { bytes: sending.bytes, sha256: None, tag: Some(format!("{}", file.last_modified())) };
        loop {
            let came = once(file, (&volume, &path), &order, sending, shelf).await?;
            let standing = match came {
                Ok(()) => Standing::Done,
                // Nobody answered, or the portal is busy for a moment.
                Err(problem) if problem.status == 0 || problem.status == 503 => {
                    set(sending, Standing::Waits)?;
                    gloo_timers::future::sleep(AGAIN).await;
                    continue;
                }
                Err(problem) => {
                    let first = problem.errors.into_iter().next();
                    Standing::Refused(first.map_or(problem.detail, |error| error.detail))
                }
            };
            return set(sending, standing);
        }
    }

    fn set(sending: Sending, standing: Standing) -> Option<()> {
        sending.standing.try_set(standing).is_none().then_some(())
    }

    /// From where the portal is to the end, or to the first thing that goes wrong.
    async fn once(
        file: &File,
        (volume, path): (&str, &str),
        order: &NewUpload,
        sending: Sending,
        shelf: Shelf,
    ) -> Option<Answer<()>> {
        let mut far: Upload = match api::volumes::begin(shelf.org, volume, path, order).await {
            Ok(upload) => upload,
            Err(problem) => return Some(Err(problem)),
        };
        loop {
            if sending.received.try_set(far.received).is_some() {
                return None;
            }
            set(sending, Standing::Sent)?;
            if far.done {
                return Some(Ok(()));
            }
            let end = far.received.saturating_add(PART).min(order.bytes);
            let Ok(piece) = file.slice_with_f64_and_f64(far.received as f64, end as f64) else {
                let detail = "The browser cannot read the file any more; choose it again.";
                return Some(Err(berth_types::problems::Problem::malformed(detail)));
            };
            far = match api::volumes::add(shelf.org, volume, path, far.received, piece).await {
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
    fn a_part_of_nothing_is_all_of_it() {
        assert_eq!((percent(0, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (100, 33, 100));
    }
}
