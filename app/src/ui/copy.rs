//! Blocks of text with a copy button.

use std::time::Duration;

use leptos::prelude::*;

/// A block of text with a copy button.
#[component]
pub fn CopyBlock(
    #[prop(into)] text: Signal<String>,
    /// The accessible name.
    label: String,
) -> impl IntoView {
    let copied = RwSignal::new(false);
    let failed = RwSignal::new(false);
    let on_result = move |done: bool| {
        let _ = copied.try_set(done);
        let _ = failed.try_set(!done);
        set_timeout(
            move || {
                let _ = copied.try_set(false);
                let _ = failed.try_set(false);
            },
            Duration::from_secs(2),
        );
    };
    let copy = move |_| copy_text(text.get_untracked(), on_result);
    let name = format!("Copy: {label}");
    view! {
        <div class="code" role="group" aria-label=label>
            <code>{move || text.get()}</code>
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
