//! Live view of a job's log with search, times, a filter by level, and links to the raw log.
//!
//! The server renders the frame; `dom` inserts the lines in the browser. The log enters the page as text,
//! never as markup.

use berth_types::ids::{JobId, OrgId};
use leptos::html::Div;
use leptos::prelude::*;

use super::{Zone, size_text, use_zone};
use crate::live::FeedBadge;

#[cfg(feature = "hydrate")]
mod dom;
#[cfg(any(feature = "hydrate", test))]
mod find;
#[cfg(any(feature = "hydrate", test))]
mod levels;
mod stored;
#[cfg(any(feature = "hydrate", test))]
mod times;

use stored::{store_timestamps, wants_timestamps};

/// The levels of the lines that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
enum Shown {
    #[default]
    All,
    Warnings,
    Errors,
}

/// The shared state of toolbar and lines.
#[derive(Clone, Copy)]
struct Controls {
    query: RwSignal<String>,
    /// Steps through the matches: plus one to the next, minus one to the previous match.
    steps: RwSignal<i64>,
    wrap: RwSignal<bool>,
    /// The number of clicks on the button to the end.
    jumps: RwSignal<u32>,
    /// The current match, counted from 1, and the number of matches.
    found: RwSignal<(usize, usize)>,
    /// New lines below the visible part.
    unseen: RwSignal<u64>,
    /// True for a log that is known to be without output.
    empty: RwSignal<bool>,
    /// True with the times of the lines.
    timestamps: RwSignal<bool>,
    /// The zone of shown and of typed times.
    zone: RwSignal<Zone>,
    /// The typed time of the last jump.
    jump: RwSignal<Option<String>>,
    /// The result of the last jump as a sentence.
    notice: RwSignal<String>,
    shown: RwSignal<Shown>,
    /// The numbers of lines with warnings and with errors.
    counts: RwSignal<(u64, u64)>,
    /// The received bytes of the log.
    bytes: RwSignal<u64>,
}

impl Controls {
    fn new(silent: bool) -> Self {
        Self {
            query: RwSignal::new(String::new()),
            steps: RwSignal::new(0),
            wrap: RwSignal::new(true),
            jumps: RwSignal::new(0),
            found: RwSignal::new((0, 0)),
            unseen: RwSignal::new(0),
            empty: RwSignal::new(silent),
            timestamps: RwSignal::new(false),
            zone: use_zone(),
            jump: RwSignal::new(None),
            notice: RwSignal::new(String::new()),
            shown: RwSignal::new(Shown::All),
            counts: RwSignal::new((0, 0)),
            bytes: RwSignal::new(0),
        }
    }
}

/// The log of a rank in an attempt, live until its end.
#[component]
pub fn LogView(
    org: OrgId,
    job: JobId,
    /// The rank of the job.
    rank: u32,
    /// The number of the attempt.
    attempt: u32,
    /// True for a job with several attempts.
    several: bool,
    /// True for an attempt that finished before the load of the page.
    finished: bool,
    /// True for an attempt that has not started yet.
    silent: bool,
) -> impl IntoView {
    let raw = format!("/api/v1/orgs/{org}/jobs/{job}/logs?rank={rank}&attempt={attempt}");
    let part = if several { format!("-attempt-{attempt}") } else { String::new() };
    let name = format!("{job}{part}-rank-{rank}");
    let (download, file) = (raw.clone(), format!("{name}.log"));
    let (timed, timed_file) = (format!("{raw}&timestamps=true"), format!("{name}-times.log"));
    let controls = Controls::new(silent);
    Effect::new(move || {
        if wants_timestamps() {
            controls.timestamps.set(true);
        }
    });
    let lines = NodeRef::<Div>::new();
    #[cfg(feature = "hydrate")]
    let feed = dom::attach(lines, raw.clone(), several, controls);
    #[cfg(not(feature = "hydrate"))]
    let feed = crate::live::open(String::new, &[], |_: &str, _: &str, _: &str| {});

    let count = move || {
        let (current, all) = controls.found.get();
        match (controls.query.with(String::is_empty), all) {
            (true, _) => String::new(),
            (false, 0) => "no matches".to_owned(),
            (false, _) => format!("{} of {}", grouped(current as u64), grouped(all as u64)),
        }
    };
    let no_query = move || controls.query.with(String::is_empty);
    let no_match = move || controls.found.get().1 == 0;
    let view_class = move || if controls.wrap.get() { "log__view" } else { "log__view log__view--nowrap" };
    let class = move || match (finished, controls.empty.get()) {
        (false, false) => "log",
        (true, false) => "log log--ended",
        (_, true) => "log log--empty",
    };
    let size = move || match (controls.bytes.get(), controls.empty.get()) {
        (0, false) => String::new(),
        (bytes, _) => size_text(bytes),
    };
    let unseen_text = move || match controls.unseen.get() {
        1 => "1 new line".to_owned(),
        unseen => format!("{} new lines", grouped(unseen)),
    };
    let search_keys = move |event: leptos::ev::KeyboardEvent| {
        if event.key() == "Enter" {
            event.prevent_default();
            let step = if event.shift_key() { -1 } else { 1 };
            controls.steps.update(|steps| *steps += step);
        }
    };
    view! {
        <section class=class aria-label="Log">
            <div class="log__bar">
                <div class="log__search">
                    <label class="visually-hidden" for="log-find">"Search log"</label>
                    <input
                        class="input"
                        id="log-find"
                        type="search"
                        placeholder="Search"
                        autocomplete="off"
                        spellcheck="false"
                        on:input=move |event| controls.query.set(event_target_value(&event))
                        on:keydown=search_keys
                    />
                    <span class="log__count" role="status">{count}</span>
                </div>
                <div class="log__tools">
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label="Previous match"
                        disabled=no_match
                        hidden=no_query
                        on:click=move |_| controls.steps.update(|steps| *steps -= 1)
                    >
                        "Previous"
                    </button>
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label="Next match"
                        disabled=no_match
                        hidden=no_query
                        on:click=move |_| controls.steps.update(|steps| *steps += 1)
                    >
                        "Next"
                    </button>
                    <label class="check">
                        <input
                            type="checkbox"
                            checked=true
                            prop:checked=move || controls.wrap.get()
                            on:change=move |event| controls.wrap.set(event_target_checked(&event))
                        />
                        "Wrap lines"
                    </label>
                    <label class="check">
                        <input
                            type="checkbox"
                            prop:checked=move || controls.timestamps.get()
                            on:change=move |event| {
                                let timestamps = event_target_checked(&event);
                                controls.timestamps.set(timestamps);
                                store_timestamps(timestamps);
                            }
                        />
                        "Timestamps"
                    </label>
                    <a class="btn btn--small" href=raw rel="external">"Raw log"</a>
                    <a class="btn btn--small" href=download rel="external" download=file>
                        "Download log "<span class="log__size">{size}</span>
                    </a>
                    <a
                        class="btn btn--small"
                        href=timed
                        rel="external"
                        download=timed_file
                        hidden=move || !controls.timestamps.get()
                    >
                        "Download with timestamps in UTC"
                    </a>
                    {if finished {
                        view! { <span class="live live--ended">"finished"</span> }.into_any()
                    } else {
                        view! { <FeedBadge feed=feed/> }.into_any()
                    }}
                </div>
                <div class="log__filters">
                    <LevelFilter controls=controls/>
                    <TimeJump controls=controls/>
                </div>
            </div>
            <div class=view_class role="log" tabindex="0" aria-label="Log lines" node_ref=lines></div>
            <button
                class="log__more"
                type="button"
                hidden=move || controls.unseen.get() == 0
                on:click=move |_| controls.jumps.update(|jumps| *jumps += 1)
            >
                {unseen_text}
            </button>
        </section>
    }
}

/// The filter by level, with the numbers of lines.
#[component]
fn LevelFilter(controls: Controls) -> impl IntoView {
    let warnings = move || controls.counts.with(|(warnings, errors)| grouped(warnings + errors));
    let errors = move || controls.counts.with(|(_, errors)| grouped(*errors));
    let option = move |shown: Shown, label: &'static str| {
        view! {
            <input
                type="radio"
                name="log-level"
                checked={shown == Shown::All}
                prop:checked=move || controls.shown.get() == shown
                on:change=move |_| controls.shown.set(shown)
            />
            {label}
        }
    };
    view! {
        <div class="segmented" role="radiogroup" aria-label="Levels">
            <label>{option(Shown::All, "All")}</label>
            <label>
                {option(Shown::Warnings, "Warnings and errors")}" "<span class="log__level">{warnings}</span>
            </label>
            <label>{option(Shown::Errors, "Errors")}" "<span class="log__level">{errors}</span></label>
        </div>
    }
}

/// The jump to a time, with its result.
#[component]
fn TimeJump(controls: Controls) -> impl IntoView {
    let text = RwSignal::new(String::new());
    let jump = move || controls.jump.set(Some(text.get_untracked()));
    let keys = move |event: leptos::ev::KeyboardEvent| {
        if event.key() == "Enter" {
            event.prevent_default();
            jump();
        }
    };
    // A filter without lines leaves the view empty.
    let notice = move || {
        let (warnings, errors) = controls.counts.get();
        match controls.shown.get() {
            Shown::Warnings if warnings + errors == 0 => "No warnings or errors so far.".to_owned(),
            Shown::Errors if errors == 0 => "No errors so far.".to_owned(),
            Shown::All | Shown::Warnings | Shown::Errors => controls.notice.get(),
        }
    };
    view! {
        <div class="log__jump">
            <label class="log__label" for="log-time">"Time, " {move || controls.zone.get().name()}</label>
            <input
                class="input"
                id="log-time"
                type="text"
                placeholder="14:20:05"
                autocomplete="off"
                spellcheck="false"
                maxlength="40"
                on:input=move |event| text.set(event_target_value(&event))
                on:keydown=keys
            />
            <button class="btn btn--small" type="button" on:click=move |_| jump()>"Jump to time"</button>
        </div>
        <span class="log__notice" role="status">{notice}</span>
    }
}

/// Returns a number with thousands separators: `3,214`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn thousands_are_separated() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (3_214, "3,214"), (12_345_678, "12,345,678")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
