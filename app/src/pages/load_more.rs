//! Button for the next page of a list. The page with the list sends the request.

use leptos::prelude::*;

use super::parts::{Call, CallProblem, ready};

/// The button and the error of its request. Hidden after the last page.
#[component]
pub fn LoadMore(
    /// The cursor of the next page; absent after the last page.
    cursor: RwSignal<Option<String>>,
    /// The request.
    call: Call,
    /// Sends the request.
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
