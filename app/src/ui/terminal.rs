//! A terminal in a running job, opened when somebody asks for it.
//!
//! The frame is drawn here; what is inside exists only in the browser, in `js/terminal.js`. Must not open a
//! shell that nobody asked for: each is recorded.

use berth_types::ids::{JobId, OrgId};
use leptos::html::Div;
use leptos::prelude::*;

/// How a terminal stands.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Shown {
    /// Nobody has opened it.
    Shut,
    Connecting,
    Live,
    Lost(String),
    Ended(String),
}

impl Shown {
    /// As the browser's side says it.
    fn of(state: &str, detail: String) -> Self {
        match state {
            "live" => Self::Live,
            "lost" => Self::Lost(detail),
            "ended" => Self::Ended(detail),
            _ => Self::Connecting,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Shut => String::new(),
            Self::Connecting => "connecting".to_owned(),
            Self::Live => "live".to_owned(),
            Self::Lost(detail) | Self::Ended(detail) => detail.clone(),
        }
    }

    fn class(&self) -> &'static str {
        match self {
            Self::Live => "live live--on",
            Self::Lost(_) => "live live--lost",
            Self::Ended(_) => "live live--ended",
            Self::Shut | Self::Connecting => "live",
        }
    }

    /// Whether a new one can be opened.
    fn can_open(&self) -> bool {
        matches!(self, Self::Shut | Self::Ended(_))
    }
}

/// A terminal of one rank of a job.
#[component]
pub fn TerminalView(
    org: OrgId,
    job: JobId,
    /// Which of its ranks.
    #[prop(into)]
    rank: Signal<u32>,
    /// Whether the job runs now.
    #[prop(into)]
    running: Signal<bool>,
    /// Whether the page is alive.
    #[prop(into)]
    ready: Signal<bool>,
) -> impl IntoView {
    let shown = RwSignal::new(Shown::Shut);
    let host = NodeRef::<Div>::new();
    let opened = RwSignal::new(0u32);
    let ends = RwSignal::new(0u32);
    #[cfg(feature = "hydrate")]
    browser::attach(host, format!("/api/v1/orgs/{org}/jobs/{job}/terminals"), rank, (opened, ends), shown);
    #[cfg(not(feature = "hydrate"))]
    let _ = (org, job, rank, ends, Shown::of);
    let can_open = Memo::new(move |_| running.get() && shown.with(Shown::can_open));
    let busy = move || shown.with(|shown| matches!(shown, Shown::Live | Shown::Lost(_)));
    let label = move || if opened.get() == 0 { "Open a terminal" } else { "Open a new terminal" };
    let empty = move || {
        if running.get() {
            "A shell beside the job, with its files, devices and limits and no more rights. Who opens one is recorded, not what is typed."
        } else {
            "A terminal can be opened while the job runs."
        }
    };
    // With nothing to open and nothing opened, one quiet line is enough.
    let class = move || if running.get() || opened.get() > 0 { "term" } else { "term term--quiet" };
    view! {
        <section class=class aria-label="Terminal">
            <div class="term__bar">
                <button
                    class="btn btn--small"
                    type="button"
                    hidden=move || !can_open.get()
                    disabled=move || !ready.get()
                    on:click=move |_| opened.update(|n| *n += 1)
                >
                    {label}
                </button>
                <button
                    class="btn btn--small"
                    type="button"
                    hidden=move || !busy()
                    on:click=move |_| ends.update(|n| *n += 1)
                >
                    "End the shell"
                </button>
                <span class="quiet small" hidden=move || !busy()>"Ctrl+Shift+Up leaves the terminal"</span>
                <span class=move || shown.with(Shown::class) role="status">{move || shown.with(Shown::text)}</span>
            </div>
            <p class="term__empty quiet" hidden=move || { opened.get() > 0 }>{empty}</p>
            <div class="term__screen" node_ref=host hidden=move || opened.get() == 0></div>
        </section>
    }
}

#[cfg(feature = "hydrate")]
mod browser {
    use leptos::html::Div;
    use leptos::prelude::*;
    use wasm_bindgen::JsCast;
    use wasm_bindgen::closure::Closure;
    use wasm_bindgen::prelude::wasm_bindgen;
    use web_sys::Element;

    use super::Shown;

    type Notify = Closure<dyn FnMut(String, String)>;

    #[wasm_bindgen(module = "/js/terminal.js")]
    extern "C" {
        type LiveTerminal;

        #[wasm_bindgen(constructor)]
        fn new(host: &Element, path: &str, rank: u32, notify: &Notify) -> LiveTerminal;

        #[wasm_bindgen(method)]
        fn end(this: &LiveTerminal);

        #[wasm_bindgen(method)]
        fn destroy(this: &LiveTerminal);
    }

    /// A terminal in the page, until it is dropped.
    struct Held {
        terminal: LiveTerminal,
        _notify: Notify,
    }

    impl Drop for Held {
        fn drop(&mut self) {
            self.terminal.destroy();
        }
    }

    /// Opens a terminal in `host` each time that one is asked for, and lives as long as the component.
    pub fn attach(
        host: NodeRef<Div>,
        path: String,
        rank: Signal<u32>,
        (opened, ends): (RwSignal<u32>, RwSignal<u32>),
        shown: RwSignal<Shown>,
    ) {
        let held: StoredValue<Option<Held>, LocalStorage> = StoredValue::new_local(None);
        Effect::new(move || {
            if opened.get() == 0 {
                return;
            }
            let Some(element) = host.get_untracked() else { return };
            // The one before goes first: it clears the element.
            let _ = held.try_update_value(|held| held.take());
            let notify: Notify = Closure::new(move |state: String, detail: String| {
                // The page may be gone already, and its signals with it.
                let _ = shown.try_set(Shown::of(&state, detail));
            });
            let element: Element = element.unchecked_into();
            let terminal = LiveTerminal::new(&element, &path, rank.get_untracked(), &notify);
            held.set_value(Some(Held { terminal, _notify: notify }));
        });
        Effect::new(move || {
            if ends.get() > 0 {
                let _ = held.try_with_value(|held| {
                    if let Some(held) = held {
                        held.terminal.end();
                    }
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_is_opened_when_none_is_there() {
        let of = |state: &str| Shown::of(state, "why".to_owned());
        assert!(Shown::Shut.can_open() && of("ended").can_open());
        for busy in ["connecting", "live", "lost", "anything"] {
            assert!(!of(busy).can_open(), "{busy}");
        }
        assert_eq!(of("ended").text(), "why");
        assert_eq!(of("live").class(), "live live--on");
    }
}
