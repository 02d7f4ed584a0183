//! Blocks of text with a copy button.

use std::time::Duration;

use leptos::prelude::*;

/// The state of a copy button. It returns to the start after two seconds.
#[derive(Clone, Copy)]
struct Copying {
    copied: RwSignal<bool>,
    failed: RwSignal<bool>,
}

impl Copying {
    fn idle() -> Self {
        Self { copied: RwSignal::new(false), failed: RwSignal::new(false) }
    }

    fn start(self, text: String) {
        copy_text(text, move |done| {
            let _ = self.copied.try_set(done);
            let _ = self.failed.try_set(!done);
            set_timeout(
                move || {
                    let _ = self.copied.try_set(false);
                    let _ = self.failed.try_set(false);
                },
                Duration::from_secs(2),
            );
        });
    }
}

/// A block of text with a copy button.
#[component]
pub fn CopyBlock(
    #[prop(into)] text: Signal<String>,
    /// The accessible name.
    label: String,
) -> impl IntoView {
    let copying = Copying::idle();
    let Copying { copied, failed } = copying;
    let copy = move |_| copying.start(text.get_untracked());
    let name = format!("Copy: {label}");
    view! {
        <div class="code" role="group" aria-label=label>
            // A long line scrolls, also by keyboard.
            <code tabindex="0">{move || text.get()}</code>
            <button class="copy" type="button" aria-label=name data-copied=move || copied.get().then_some("") on:click=copy>
                {move || match (copied.get(), failed.get()) {
                    (true, _) => "Copied",
                    (_, true) => "Select text to copy",
                    _ => "Copy",
                }}
            </button>
        </div>
    }
}

/// A button that copies a text which the page does not show.
#[component]
pub fn CopyButton(
    text: String,
    /// The text of the button: `Copy as CSV`.
    label: &'static str,
) -> impl IntoView {
    let ready = super::ready();
    let copying = Copying::idle();
    let Copying { copied, failed } = copying;
    let text = StoredValue::new(text);
    view! {
        <button
            class="btn btn--small"
            type="button"
            disabled=move || !ready.get()
            on:click=move |_| copying.start(text.get_value())
        >
            {label}
        </button>
        <span class="quiet small" role="status">
            {move || match (copied.get(), failed.get()) {
                (true, _) => "Copied.",
                (_, true) => "Not copied: copying needs HTTPS.",
                _ => "",
            }}
        </span>
    }
}

/// Copies in the background and reports the success. Browsers refuse it on pages over plain HTTP from another
/// host.
fn copy_text(text: String, on_result: impl Fn(bool) + 'static) {
    #[cfg(feature = "hydrate")]
    {
        let Some(window) = web_sys::window().filter(web_sys::Window::is_secure_context) else {
            on_result(false);
            return;
        };
        leptos::task::spawn_local(async move {
            let writing = window.navigator().clipboard().write_text(&text);
            on_result(wasm_bindgen_futures::JsFuture::from(writing).await.is_ok());
        });
    }
    #[cfg(not(feature = "hydrate"))]
    {
        let _ = text;
        on_result(false);
    }
}
