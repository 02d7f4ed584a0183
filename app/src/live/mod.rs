//! Live feeds: streams of server-sent events with automatic reconnection.

mod backoff;
#[cfg(feature = "hydrate")]
mod places;

use berth_types::events::JobChange;
use berth_types::ids::OrgId;
use leptos::prelude::*;

pub use backoff::pause_ms;

/// The state of a feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedState {
    Connecting,
    Live,
    /// Without a connection, because other windows of the browser use them.
    Waiting,
    /// Silent for too long; the feed reconnects.
    Lost,
    /// After the last event.
    Ended,
}

/// A feed of a page.
#[derive(Clone, Copy)]
pub struct Feed {
    pub state: ReadSignal<FeedState>,
    /// Seconds since the last event.
    pub age_s: ReadSignal<u32>,
}

/// Opens a feed after hydration and closes it with the page. `resume` returns the address of each connection;
/// `on` gets each event of `names` with name, data and last id, and `resumed` when a hidden page is shown again.
pub fn open(
    resume: impl Fn() -> String + Clone + 'static,
    names: &'static [&'static str],
    on: impl Fn(&str, &str, &str) + Clone + 'static,
) -> Feed {
    let (state, set_state) = signal(FeedState::Connecting);
    let (age_s, set_age) = signal(0u32);
    #[cfg(feature = "hydrate")]
    browser::open(resume, names, on, set_state, set_age);
    #[cfg(not(feature = "hydrate"))]
    let _ = (resume, names, on, set_state, set_age);
    Feed { state, age_s }
}

/// Opens the feed of the changes of an organization's jobs. Each connection continues after the last known
/// change.
pub fn open_org(org: OrgId, on_change: impl Fn(JobChange) + Clone + 'static) -> Feed {
    let last = StoredValue::new(String::new());
    let resume = move || {
        let last = last.try_get_value().unwrap_or_default();
        let query = if last.is_empty() { String::new() } else { format!("?after={last}") };
        format!("/api/v1/orgs/{org}/events{query}")
    };
    open(resume, &["change", "beat"], move |name: &str, data: &str, id: &str| {
        if name != "change" {
            return;
        }
        if !id.is_empty() {
            let _ = last.try_update_value(|last| id.clone_into(last));
        }
        if let Ok(change) = serde_json::from_str::<JobChange>(data) {
            on_change(change);
        }
    })
}

/// The badge with the state of a feed.
#[component]
pub fn FeedBadge(feed: Feed) -> impl IntoView {
    let class = move || match feed.state.get() {
        FeedState::Lost => "live live--lost",
        FeedState::Ended => "live live--ended",
        FeedState::Connecting | FeedState::Waiting => "live",
        FeedState::Live => "live live--on",
    };
    let text = move || match feed.state.get() {
        FeedState::Connecting => "connecting",
        FeedState::Live => "live",
        FeedState::Waiting => "paused, other windows are live",
        FeedState::Lost => "live view interrupted, retrying",
        FeedState::Ended => "finished, log complete",
    };
    // Outside of the status role, because it changes every second.
    let age = move || {
        (feed.state.get() == FeedState::Lost)
            .then(|| view! { <span class="quiet small">"data is "{feed.age_s.get()}" s old"</span> })
    };
    view! { <span class=class role="status">{text}</span> {age} }
}

#[cfg(feature = "hydrate")]
mod browser {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use leptos::prelude::*;
    use send_wrapper::SendWrapper;
    use wasm_bindgen::JsCast;
    use wasm_bindgen::closure::Closure;
    use web_sys::{Event, EventSource, MessageEvent};

    use super::places::Place;
    use super::{FeedState, pause_ms};

    /// The length of silence of a lost feed; the portal sends a beat every second.
    const SILENCE_MS: f64 = 3_000.0;
    /// The length of silence after which a connection is replaced.
    const DEAD_MS: f64 = 10_000.0;
    const CHECK_MS: u32 = 500;
    /// The number of checks before a hidden page closes its connections. A browser has six per host for all
    /// tabs.
    const HIDDEN_CHECKS: u32 = 2;

    fn hidden() -> bool {
        web_sys::window().and_then(|w| w.document()).is_some_and(|d| d.hidden())
    }

    type Handler = Closure<dyn FnMut(MessageEvent)>;
    type ErrorHandler = Closure<dyn FnMut(Event)>;

    struct Inner {
        source: RefCell<Option<EventSource>>,
        handlers: RefCell<Vec<Handler>>,
        error_handler: RefCell<Option<ErrorHandler>>,
        /// The place of the connection among those of the browser, or the question for one.
        place: RefCell<Option<Place>>,
        last_event_ms: Cell<f64>,
        /// The time of the present connection's start.
        opened_ms: Cell<f64>,
        /// The time of the next connection after a failure.
        retry_at_ms: Cell<Option<f64>>,
        /// Failures since the last event.
        failures: Cell<u32>,
        closed: Cell<bool>,
        state: WriteSignal<FeedState>,
        shown: Cell<FeedState>,
    }

    impl Inner {
        fn show(&self, state: FeedState) {
            if self.shown.replace(state) != state {
                // The signals may have ended with the page.
                let _ = self.state.try_set(state);
            }
        }

        fn close(&self) {
            if let Some(source) = self.source.borrow_mut().take() {
                source.close();
            }
            self.place.borrow_mut().take();
        }

        /// True if another window has the place of the connection, or never gave one.
        fn is_without_place(&self) -> bool {
            self.place.borrow().as_ref().is_some_and(|place| !place.is_granted())
        }

        /// Closes a failed connection and plans the next one.
        fn fail(&self) {
            self.close();
            let failures = self.failures.get();
            self.failures.set(failures.saturating_add(1));
            self.retry_at_ms.set(Some(js_sys::Date::now() + pause_ms(failures) as f64));
        }
    }

    /// Connects as soon as the browser has a place for the connection.
    fn connect(
        inner: &Rc<Inner>,
        resume: &(impl Fn() -> String + Clone + 'static),
        names: &'static [&'static str],
        on: &(impl Fn(&str, &str, &str) + Clone + 'static),
    ) {
        inner.close();
        inner.retry_at_ms.set(None);
        if !Place::is_needed() {
            open_source(inner, &resume(), names, on);
            return;
        }
        let (weak, lost) = (Rc::downgrade(inner), Rc::downgrade(inner));
        let (resume, on) = (resume.clone(), on.clone());
        let granted = move || {
            if let Some(inner) = weak.upgrade().filter(|inner| !inner.closed.get()) {
                if inner.shown.get() == FeedState::Waiting {
                    on("resumed", "", "");
                }
                open_source(&inner, &resume(), names, &on);
            }
        };
        let lost = move || {
            if let Some(source) = lost.upgrade().and_then(|inner| inner.source.borrow_mut().take()) {
                source.close();
            }
        };
        *inner.place.borrow_mut() = Some(Place::ask(granted, lost));
    }

    fn open_source(
        inner: &Rc<Inner>,
        url: &str,
        names: &'static [&'static str],
        on: &(impl Fn(&str, &str, &str) + Clone + 'static),
    ) {
        inner.opened_ms.set(js_sys::Date::now());
        let Ok(source) = EventSource::new(url) else {
            inner.fail();
            return;
        };
        let mut handlers = Vec::new();
        for name in names.iter().copied().chain(["beat", "end"]) {
            if handlers.len() >= names.len() && names.contains(&name) {
                continue;
            }
            let (inner, on) = (Rc::downgrade(inner), on.clone());
            let handler: Handler = Closure::new(move |event: MessageEvent| {
                let Some(inner) = inner.upgrade() else { return };
                inner.last_event_ms.set(js_sys::Date::now());
                inner.failures.set(0);
                inner.show(FeedState::Live);
                let data = event.data().as_string().unwrap_or_default();
                on(name, &data, &event.last_event_id());
                if name == "end" {
                    inner.closed.set(true);
                    inner.close();
                    inner.show(FeedState::Ended);
                }
            });
            // Fails only for arguments of another type.
            let _ = source.add_event_listener_with_callback(name, handler.as_ref().unchecked_ref());
            handlers.push(handler);
        }
        // The browser's own reconnection has a constant pause.
        let failed = Rc::downgrade(inner);
        let error_handler: ErrorHandler = Closure::new(move |_: Event| {
            if let Some(inner) = failed.upgrade().filter(|inner| !inner.closed.get()) {
                inner.fail();
            }
        });
        source.set_onerror(Some(error_handler.as_ref().unchecked_ref()));
        // The closed source never calls its handlers again.
        *inner.error_handler.borrow_mut() = Some(error_handler);
        *inner.handlers.borrow_mut() = handlers;
        *inner.source.borrow_mut() = Some(source);
    }

    pub fn open(
        resume: impl Fn() -> String + Clone + 'static,
        names: &'static [&'static str],
        on: impl Fn(&str, &str, &str) + Clone + 'static,
        state: WriteSignal<FeedState>,
        age_s: WriteSignal<u32>,
    ) {
        Effect::new(move || {
            let inner = Rc::new(Inner {
                source: RefCell::new(None),
                handlers: RefCell::new(Vec::new()),
                error_handler: RefCell::new(None),
                place: RefCell::new(None),
                last_event_ms: Cell::new(js_sys::Date::now()),
                opened_ms: Cell::new(js_sys::Date::now()),
                retry_at_ms: Cell::new(None),
                failures: Cell::new(0),
                closed: Cell::new(false),
                state,
                shown: Cell::new(FeedState::Connecting),
            });
            // A page that is hidden from its load connects when it is shown.
            let hidden_checks = Cell::new(if hidden() { HIDDEN_CHECKS } else { 0 });
            if hidden_checks.get() == 0 {
                connect(&inner, &resume, names, &on);
            }
            let (checked, resume, on) = (inner.clone(), resume.clone(), on.clone());
            let timer = gloo_timers::callback::Interval::new(CHECK_MS, move || {
                if checked.closed.get() {
                    return;
                }
                if hidden() {
                    hidden_checks.set(hidden_checks.get().saturating_add(1));
                    if hidden_checks.get() == HIDDEN_CHECKS {
                        checked.close();
                    }
                    return;
                }
                if hidden_checks.replace(0) >= HIDDEN_CHECKS {
                    checked.last_event_ms.set(js_sys::Date::now());
                    checked.show(FeedState::Connecting);
                    on("resumed", "", "");
                    checked.failures.set(0);
                    connect(&checked, &resume, names, &on);
                    return;
                }
                if checked.is_without_place() {
                    checked.last_event_ms.set(js_sys::Date::now());
                    checked.show(FeedState::Waiting);
                    connect(&checked, &resume, names, &on);
                    return;
                }
                let now_ms = js_sys::Date::now();
                let silent_ms = now_ms - checked.last_event_ms.get();
                if silent_ms > SILENCE_MS {
                    checked.show(FeedState::Lost);
                    let _ = age_s.try_set((silent_ms / 1_000.0) as u32);
                }
                match checked.retry_at_ms.get() {
                    Some(at_ms) if now_ms >= at_ms => connect(&checked, &resume, names, &on),
                    None if silent_ms.min(now_ms - checked.opened_ms.get()) > DEAD_MS => checked.fail(),
                    _ => {}
                }
            });
            let kept = SendWrapper::new((inner, timer));
            on_cleanup(move || {
                let (inner, timer) = kept.take();
                inner.closed.set(true);
                inner.close();
                timer.cancel();
            });
        });
    }
}
