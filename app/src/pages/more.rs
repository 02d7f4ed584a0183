//! The way to the next page of a list.
//!
//! Must not fetch it: the page of the list knows from where, and what is there already.

use leptos::prelude::*;

use super::parts::{Call, CallProblem, ready};

/// A button while there is more, and what went wrong with asking for it.
#[component]
pub fn More(
    /// Where the next page begins; nothing after the last one.
    cursor: RwSignal<Option<String>>,
    /// The request for it.
    call: Call,
    /// Makes that request.
    load: Callback<()>,
) -> impl IntoView {
    let ready = ready();
    let any = Memo::new(move |_| cursor.with(Option::is_some));
    let button = move || {
        any.get().then(|| {
            view! {
                <p>
                    <button
                        class="btn"
                        type="button"
                        disabled=move || !ready.get() || call.pending.get()
                        aria-busy=move || call.pending.get().then_some("true")
                        on:click=move |_| load.run(())
                    >
                        "Load more"
                    </button>
                </p>
            }
        })
    };
    view! {
        <CallProblem call=call beside_fields=&[]/>
        {button}
    }
}
