//! A button that sends one request.

use leptos::prelude::*;

use super::parts::{Call, ready};

/// A button outside of a form, disabled before hydration. During a request it keeps the focus and has no effect.
#[component]
pub fn CallButton(
    /// The request.
    call: Call,
    /// The classes of the button.
    class: &'static str,
    /// Sends the request.
    send: Callback<()>,
    /// The label.
    children: Children,
) -> impl IntoView {
    let ready = ready();
    view! {
        <button
            class=class
            type="button"
            disabled=move || !ready.get()
            aria-disabled=move || call.pending.get().then_some("true")
            aria-busy=move || call.pending.get().then_some("true")
            on:click=move |_| {
                if !call.pending.get_untracked() {
                    send.run(());
                }
            }
        >
            {children()}
        </button>
    }
}
