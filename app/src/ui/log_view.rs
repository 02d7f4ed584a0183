//! The log of a job as it is written: search, follow, and a link to the whole of it.
//!
//! The frame is drawn by the server; the lines exist only in the browser, where `dom` puts them in.
//! Text of a job goes into the page as text, never as markup.

use berth_types::ids::{JobId, OrgId};
use leptos::html::Div;
use leptos::prelude::*;

use crate::live::FeedBadge;

#[cfg(feature = "hydrate")]
mod dom;
#[cfg(any(feature = "hydrate", test))]
mod find;

/// What the toolbar and the lines say to each other.
#[derive(Clone, Copy)]
struct Controls {
    query: RwSignal<String>,
    /// Steps taken through the matches: up for the next one, down for the one before.
    steps: RwSignal<i64>,
    wrap: RwSignal<bool>,
    /// Times the button to the end was pressed.
    jumps: RwSignal<u32>,
    /// Which match is marked, counted from 1, and how many there are.
    found: RwSignal<(usize, usize)>,
    /// Lines below what is shown, while the view does not follow.
    unseen: RwSignal<u64>,
}

impl Controls {
    fn new() -> Self {
        Self {
            query: RwSignal::new(String::new()),
            steps: RwSignal::new(0),
            wrap: RwSignal::new(true),
            jumps: RwSignal::new(0),
            found: RwSignal::new((0, 0)),
            unseen: RwSignal::new(0),
        }
    }
}

/// The log of a job, live while it is written.
#[component]
pub fn LogView(
    org: OrgId,
    job: JobId,
    /// Which of its ranks.
    rank: u32,
    /// The job ended before the page was made: all of its log is here.
    over: bool,
) -> impl IntoView {
    let raw = format!("/api/v1/orgs/{org}/jobs/{job}/logs?rank={rank}");
    let controls = Controls::new();
    let lines = NodeRef::<Div>::new();
    #[cfg(feature = "hydrate")]
    let feed = dom::attach(lines, raw.clone(), controls);
    #[cfg(not(feature = "hydrate"))]
    let feed = crate::live::open(String::new, &[], |_: &str, _: &str, _: &str| {});

    let count = move || {
        let (current, all) = controls.found.get();
        match (controls.query.with(String::is_empty), all) {
            (true, _) => String::new(),
            (false, 0) => "no match".to_owned(),
            (false, _) => format!("{} of {}", grouped(current as u64), grouped(all as u64)),
        }
    };
    let unasked = move || controls.query.with(String::is_empty);
    let idle = move || controls.found.get().1 == 0;
    let view_class = move || if controls.wrap.get() { "log__view" } else { "log__view log__view--nowrap" };
    let more = move || match controls.unseen.get() {
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
        <section class=if over { "log log--ended" } else { "log" } aria-label="Log">
            <div class="log__bar">
                <div class="log__search">
                    <label class="visually-hidden" for="log-find">"Search the log"</label>
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
                        disabled=idle
                        hidden=unasked
                        on:click=move |_| controls.steps.update(|steps| *steps -= 1)
                    >
                        "Previous"
                    </button>
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label="Next match"
                        disabled=idle
                        hidden=unasked
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
                        "Wrap"
                    </label>
                    <a class="btn btn--small" href=raw rel="external">"Raw log"</a>
                    {if over {
                        view! { <span class="live live--ended">"ended"</span> }.into_any()
                    } else {
                        view! { <FeedBadge feed=feed/> }.into_any()
                    }}
                </div>
            </div>
            <div class=view_class role="log" tabindex="0" aria-label="Lines" node_ref=lines></div>
            <button
                class="log__more"
                type="button"
                hidden=move || controls.unseen.get() == 0
                on:click=move |_| controls.jumps.update(|jumps| *jumps += 1)
            >
                {more}
            </button>
        </section>
    }
}

/// `3,214`.
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
    fn thousands_are_set_apart() {
        let cases = [(0, "0"), (999, "999"), (1_000, "1,000"), (3_214, "3,214"), (12_345_678, "12,345,678")];
        for (number, text) in cases {
            assert_eq!(grouped(number), text);
        }
    }
}
