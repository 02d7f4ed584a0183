//! Brings the page that the portal rendered to life in the browser.
//!
//! Until then nothing may be drawn that the portal did not render: it would not match, and the page would
//! stay dead. So it must not give up on a part of the module, only say that it is still missing.

/// The line of the document that says why a page does not answer yet.
pub(crate) const WAITING_ID: &str = "waking";

#[cfg(feature = "hydrate")]
pub(crate) use inner::{preloaded, wake};

/// Loads a part of the module ahead of its page.
#[cfg(not(feature = "hydrate"))]
pub(crate) async fn preloaded<E>(load: impl AsyncFn() -> Result<(), E>) {
    // The view meets the same failure, and says so.
    let _ = load().await;
}

#[cfg(feature = "hydrate")]
mod inner {
    use std::sync::atomic::{AtomicBool, Ordering};

    use gloo_timers::future::TimeoutFuture;
    use leptos::mount::hydrate_from_async;
    use leptos::prelude::document;

    use super::WAITING_ID;
    use crate::App;

    const FIRST_PAUSE_MS: u32 = 500;
    const LONGEST_PAUSE_MS: u32 = 15_000;

    /// Whether the page is drawn by this module now.
    static ALIVE: AtomicBool = AtomicBool::new(false);

    /// Takes over the page as it was rendered.
    pub fn wake() {
        wasm_bindgen_futures::spawn_local(async {
            let Some(body) = document().body() else { return };
            hydrate_from_async(body, App).await.forget();
            ALIVE.store(true, Ordering::Relaxed);
        });
    }

    /// Loads a part of the module ahead of its page. An alive page is told of a failure by its view; one
    /// that is not waits for the part however long it takes, since its view would not match what the portal
    /// rendered.
    pub async fn preloaded<E>(load: impl AsyncFn() -> Result<(), E>) {
        let mut pause_ms = FIRST_PAUSE_MS;
        while load().await.is_err() && !ALIVE.load(Ordering::Relaxed) {
            say(
                "A part of this page did not load, so its buttons do not work yet. Trying again; if that takes long, load the page anew.",
            );
            TimeoutFuture::new(pause_ms).await;
            pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
        say("");
    }

    fn say(words: &str) {
        if let Some(line) = document().get_element_by_id(WAITING_ID)
            && line.text_content().as_deref() != Some(words)
        {
            line.set_text_content(Some(words));
        }
    }
}
