//! Text to take along.

use std::time::Duration;

use leptos::prelude::*;

/// A block of text with a button that copies it.
#[component]
pub fn CopyBlock(
    #[prop(into)] text: Signal<String>,
    /// What it is, for those who do not see it.
    label: String,
) -> impl IntoView {
    let copied = RwSignal::new(false);
    let refused = RwSignal::new(false);
    let told = move |done: bool| {
        let _ = copied.try_set(done);
        let _ = refused.try_set(!done);
        set_timeout(
            move || {
                let _ = copied.try_set(false);
                let _ = refused.try_set(false);
            },
            Duration::from_secs(2),
        );
    };
    let copy = move |_| copy_text(text.get_untracked(), told);
    let name = format!("Copy: {label}");
    view! {
        <div class="code" role="group" aria-label=label>
            <code>{move || text.get()}</code>
            <button class="copy" type="button" aria-label=name data-copied=move || copied.get().then_some("") on:click=copy>
                {move || match (copied.get(), refused.get()) {
                    (true, _) => "Copied",
                    (_, true) => "Select it to copy",
                    _ => "Copy",
                }}
            </button>
        </div>
    }
}

/// Copies in the background, and says whether it worked. Browsers refuse it on pages that came over
/// plain http from another host.
fn copy_text(text: String, told: impl Fn(bool) + 'static) {
    #[cfg(feature = "hydrate")]
    {
        let Some(window) = web_sys::window().filter(web_sys::Window::is_secure_context) else {
            told(false);
            return;
        };
        leptos::task::spawn_local(async move {
            let writing = window.navigator().clipboard().write_text(&text);
            told(wasm_bindgen_futures::JsFuture::from(writing).await.is_ok());
        });
    }
    #[cfg(not(feature = "hydrate"))]
    {
        let _ = text;
        told(false);
    }
}
