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
    let copy = move |_| {
        #[cfg(feature = "hydrate")]
        if let Some(window) = web_sys::window() {
            // Where the browser refuses, the text is there to be selected.
            let _ = window.navigator().clipboard().write_text(&text.get_untracked());
        }
        copied.set(true);
        set_timeout(
            move || {
                let _ = copied.try_set(false);
            },
            Duration::from_secs(2),
        );
    };
    let name = format!("Copy: {label}");
    view! {
        <div class="code" role="group" aria-label=label>
            <code>{move || text.get()}</code>
            <button class="copy" type="button" aria-label=name data-copied=move || copied.get().then_some("") on:click=copy>
                {move || if copied.get() { "Copied" } else { "Copy" }}
            </button>
        </div>
    }
}
