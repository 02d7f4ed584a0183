//! Terminal of a running job, opened by a click only, because each terminal is an audit event.
//!
//! The server renders the frame; `js/terminal.js` implements the terminal in the browser.

use berth_types::ids::{JobId, OrgId};
use leptos::html::Div;
use leptos::prelude::*;

/// The state of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TerminalState {
    /// Before the first opening.
    Closed,
    Connecting,
    Live,
    Lost(String),
    Ended(String),
}

impl TerminalState {
    /// Parses a state of `js/terminal.js`.
    fn parse(state: &str, detail: String) -> Self {
        match state {
            "live" => Self::Live,
            "lost" => Self::Lost(detail),
            "ended" => Self::Ended(detail),
            _ => Self::Connecting,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Closed => String::new(),
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
            Self::Closed | Self::Connecting => "live",
        }
    }

    /// Returns true if a new terminal can be opened.
    fn can_open(&self) -> bool {
        matches!(self, Self::Closed | Self::Ended(_))
    }
}

/// A terminal of one rank of a job.
#[component]
pub fn TerminalView(
    org: OrgId,
    job: JobId,
    /// The rank of the job.
    #[prop(into)]
    rank: Signal<u32>,
    /// True for a running job.
    #[prop(into)]
    running: Signal<bool>,
    /// True after hydration.
    #[prop(into)]
    ready: Signal<bool>,
) -> impl IntoView {
    let state = RwSignal::new(TerminalState::Closed);
    let host = NodeRef::<Div>::new();
    let opened = RwSignal::new(0u32);
    let ends = RwSignal::new(0u32);
    #[cfg(feature = "hydrate")]
    browser::attach(host, format!("/api/v1/orgs/{org}/jobs/{job}/terminals"), rank, (opened, ends), state);
    #[cfg(not(feature = "hydrate"))]
    let _ = (org, job, rank, ends, TerminalState::parse);
    let can_open = Memo::new(move |_| running.get() && state.with(TerminalState::can_open));
    let busy = move || state.with(|state| matches!(state, TerminalState::Live | TerminalState::Lost(_)));
    let label = move || if opened.get() == 0 { "Open terminal" } else { "Open new terminal" };
    let empty_text = move || {
        if running.get() {
            "A shell next to the job, with the same files, devices, limits and rights. The audit log records who opened it, not the input."
        } else {
            "Available while the job runs."
        }
    };
    // A terminal that cannot be opened needs one line only.
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
                    "End shell"
                </button>
                <span class="quiet small" hidden=move || !busy()>"Leave the terminal: Ctrl+Shift+Up"</span>
                <span class=move || state.with(TerminalState::class) role="status">{move || state.with(TerminalState::text)}</span>
            </div>
            <p class="term__empty quiet" hidden=move || { opened.get() > 0 }>{empty_text}</p>
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

    use super::TerminalState;

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

    /// A terminal of the page. The drop removes it.
    struct OpenTerminal {
        terminal: LiveTerminal,
        _notify: Notify,
    }

    impl Drop for OpenTerminal {
        fn drop(&mut self) {
            self.terminal.destroy();
        }
    }

    /// Opens a terminal in `host` at each increment of `opened`, until the end of the component.
    pub fn attach(
        host: NodeRef<Div>,
        path: String,
        rank: Signal<u32>,
        (opened, ends): (RwSignal<u32>, RwSignal<u32>),
        state: RwSignal<TerminalState>,
    ) {
        let current: StoredValue<Option<OpenTerminal>, LocalStorage> = StoredValue::new_local(None);
        Effect::new(move || {
            if opened.get() == 0 {
                return;
            }
            let Some(element) = host.get_untracked() else { return };
            // The drop of the previous terminal clears the element.
            let _ = current.try_update_value(|open| open.take());
            let notify: Notify = Closure::new(move |name: String, detail: String| {
                // The signals may have ended with the page.
                let _ = state.try_set(TerminalState::parse(&name, detail));
            });
            let element: Element = element.unchecked_into();
            let terminal = LiveTerminal::new(&element, &path, rank.get_untracked(), &notify);
            current.set_value(Some(OpenTerminal { terminal, _notify: notify }));
        });
        Effect::new(move || {
            if ends.get() > 0 {
                let _ = current.try_with_value(|open| {
                    if let Some(open) = open {
                        open.terminal.end();
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
    fn only_a_closed_or_ended_terminal_can_be_opened() {
        let parse = |state: &str| TerminalState::parse(state, "Exit code 7.".to_owned());
        assert!(TerminalState::Closed.can_open() && parse("ended").can_open());
        for busy in ["connecting", "live", "lost", "anything"] {
            assert!(!parse(busy).can_open(), "{busy}");
        }
        assert_eq!(parse("ended").text(), "Exit code 7.");
        assert_eq!(parse("live").class(), "live live--on");
    }
}
