//! Hydration: the browser takes over the page that the portal rendered.
//!
//! The first view in the browser must equal the rendered page; another one would leave the page without
//! handlers. Hydration therefore waits for each part of the module and repeats failed loads without an end.

/// The id of the notice about a page before hydration.
pub(crate) const NOTICE_ID: &str = "waking";

#[cfg(feature = "hydrate")]
pub(crate) use inner::{hydrate_page, load_part};

#[cfg(feature = "hydrate")]
mod inner {
    use std::sync::atomic::{AtomicBool, Ordering};

    use gloo_timers::future::TimeoutFuture;
    use leptos::mount::hydrate_from_async;
    use leptos::prelude::document;

    use super::NOTICE_ID;
    use crate::App;
    use crate::ui::zone::use_browser_zone;

    const FIRST_PAUSE_MS: u32 = 500;
    const LONGEST_PAUSE_MS: u32 = 15_000;

    /// True after hydration.
    static HYDRATED: AtomicBool = AtomicBool::new(false);

    /// Hydrates the rendered page.
    pub fn hydrate_page() {
        wasm_bindgen_futures::spawn_local(async {
            let Some(body) = document().body() else { return };
            hydrate_from_async(body, App).await.forget();
            HYDRATED.store(true, Ordering::Relaxed);
            use_browser_zone();
        });
    }

    /// Loads a part of the module before its page. Before hydration a failed load is repeated until it succeeds.
    /// After hydration the view shows the failure.
    pub async fn load_part<E>(load: impl AsyncFn() -> Result<(), E>) {
        let mut pause_ms = FIRST_PAUSE_MS;
        while load().await.is_err() && !HYDRATED.load(Ordering::Relaxed) {
            show_notice(
                "A part of this page did not load; its buttons do not work yet. Retrying. If this continues, reload the page.",
            );
            TimeoutFuture::new(pause_ms).await;
            pause_ms = (pause_ms * 2).min(LONGEST_PAUSE_MS);
        }
        show_notice("");
    }

    fn show_notice(text: &str) {
        if let Some(notice) = document().get_element_by_id(NOTICE_ID)
            && notice.text_content().as_deref() != Some(text)
        {
            notice.set_text_content(Some(text));
        }
    }
}
