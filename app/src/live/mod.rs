//! Live feeds: server-sent events that come back by themselves.
//!
//! Knows nothing of what the events mean.

use leptos::prelude::*;

/// How a feed stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedState {
    Connecting,
    Live,
    /// Nothing came for a while; it is being opened again.
    Lost,
    /// There is no more to come.
    Ended,
}

/// A feed as a page watches it.
#[derive(Clone, Copy)]
pub struct Feed {
    pub state: ReadSignal<FeedState>,
    /// Seconds since the last word.
    pub age_s: ReadSignal<u32>,
}

/// Opens a feed when the page is alive, and closes it with the page. `resume` gives the address to
/// open, also when the browser gave up on it; `on` gets each event of `names`: name, data, last id.
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

/// Says when a live view is not: nothing while it is, with its place kept.
#[component]
pub fn FeedBadge(feed: Feed) -> impl IntoView {
    let class = move || match feed.state.get() {
        FeedState::Lost => "live live--lost",
        FeedState::Ended => "live live--ended",
        FeedState::Connecting => "live",
        FeedState::Live => "live live--on",
    };
    let text = move || match feed.state.get() {
        FeedState::Connecting => "connecting",
        FeedState::Live => "live",
        FeedState::Lost => "live view interrupted, retrying",
        FeedState::Ended => "ended, all of it is here",
    };
    // Outside of what is announced: it changes every second.
    let age = move || {
        (feed.state.get() == FeedState::Lost)
            .then(|| view! { <span class="quiet small">{feed.age_s.get()}" s old"</span> })
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
    use web_sys::{EventSource, MessageEvent};

    use super::FeedState;

    /// Silence after which a feed counts as lost; the portal beats once a second.
    const SILENCE_MS: f64 = 3_000.0;
    const LOOK_MS: u32 = 500;
    /// A page that nobody sees gives its connections back after so many looks: a browser has six for
    /// one host, and every open tab would hold some.
    const HIDDEN_LOOKS: u32 = 10;

    fn hidden() -> bool {
        web_sys::window().and_then(|w| w.document()).is_some_and(|d| d.hidden())
    }

    type Handler = Closure<dyn FnMut(MessageEvent)>;

    struct Inner {
        source: RefCell<Option<EventSource>>,
        handlers: RefCell<Vec<Handler>>,
        heard_ms: Cell<f64>,
        over: Cell<bool>,
        state: WriteSignal<FeedState>,
        shown: Cell<FeedState>,
    }

    impl Inner {
        fn show(&self, state: FeedState) {
            if self.shown.replace(state) != state {
                // The page may be gone already, and its signals with it.
                let _ = self.state.try_set(state);
            }
        }

        fn close(&self) {
            if let Some(source) = self.source.borrow_mut().take() {
                source.close();
            }
        }
    }

    fn connect(
        inner: &Rc<Inner>,
        url: &str,
        names: &'static [&'static str],
        on: &(impl Fn(&str, &str, &str) + Clone + 'static),
    ) {
        inner.close();
        let Ok(source) = EventSource::new(url) else { return };
        let mut handlers = Vec::new();
        for name in names.iter().copied().chain(["beat", "end"]) {
            if handlers.len() >= names.len() && names.contains(&name) {
                continue;
            }
            let (inner, on) = (Rc::downgrade(inner), on.clone());
            let handler: Handler = Closure::new(move |event: MessageEvent| {
                let Some(inner) = inner.upgrade() else { return };
                inner.heard_ms.set(js_sys::Date::now());
                inner.show(FeedState::Live);
                let data = event.data().as_string().unwrap_or_default();
                on(name, &data, &event.last_event_id());
                if name == "end" {
                    inner.over.set(true);
                    inner.close();
                    inner.show(FeedState::Ended);
                }
            });
            // Fails only for arguments of the wrong kind.
            let _ = source.add_event_listener_with_callback(name, handler.as_ref().unchecked_ref());
            handlers.push(handler);
        }
        // The handlers of the closed source are never called again.
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
                heard_ms: Cell::new(js_sys::Date::now()),
                over: Cell::new(false),
                state,
                shown: Cell::new(FeedState::Connecting),
            });
            connect(&inner, &resume(), names, &on);
            let (watched, resume, on) = (inner.clone(), resume.clone(), on.clone());
            let unseen = Cell::new(0u32);
            let timer = gloo_timers::callback::Interval::new(LOOK_MS, move || {
                if watched.over.get() {
                    return;
                }
                if hidden() {
                    unseen.set(unseen.get().saturating_add(1));
                    if unseen.get() == HIDDEN_LOOKS {
                        watched.close();
                    }
                    return;
                }
                if unseen.replace(0) >= HIDDEN_LOOKS {
                    watched.heard_ms.set(js_sys::Date::now());
                    watched.show(FeedState::Connecting);
                    connect(&watched, &resume(), names, &on);
                    return;
                }
                let silent_ms = js_sys::Date::now() - watched.heard_ms.get();
                if silent_ms <= SILENCE_MS {
                    return;
                }
                watched.show(FeedState::Lost);
                let _ = age_s.try_set((silent_ms / 1_000.0) as u32);
                let closed =
                    watched.source.borrow().as_ref().is_none_or(|s| s.ready_state() == EventSource::CLOSED);
                if closed {
                    connect(&watched, &resume(), names, &on);
                }
            });
            let kept = SendWrapper::new((inner, timer));
            on_cleanup(move || {
                let (inner, timer) = kept.take();
                inner.over.set(true);
                inner.close();
                timer.cancel();
            });
        });
    }
}
