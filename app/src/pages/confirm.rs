//! The question before something that cannot be taken back.
//!
//! Must not say what that is: its page gives the words and does it.

use leptos::prelude::*;

use super::parts::{Call, CallProblem, Modal};

/// A dialog with one way back and one dangerous button, and what went wrong between them.
#[component]
pub fn ConfirmDialog(
    /// Unique in the page.
    id: &'static str,
    /// The question.
    #[prop(into)]
    title: Signal<String>,
    /// Whether it is open.
    open: RwSignal<bool>,
    /// The request that it makes.
    call: Call,
    /// On the button that leaves everything as it is.
    #[prop(into)]
    keep: Signal<String>,
    /// On the button that does it.
    #[prop(into)]
    verb: Signal<String>,
    /// Does it.
    confirm: Callback<()>,
    /// What it means, in sentences.
    children: Children,
) -> impl IntoView {
    // What went wrong with one thing says nothing of the next.
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
        }
    });
    view! {
        <Modal id=id title=title open=open>
            <div class="dialog__body">
                {children()}
                <CallProblem call=call beside_fields=&[]/>
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>{move || keep.get()}</button>
                <button
                    class="btn btn--danger btn--primary"
                    type="button"
                    disabled=move || call.pending.get()
                    aria-busy=move || call.pending.get().then_some("true")
                    on:click=move |_| confirm.run(())
                >
                    {move || verb.get()}
                </button>
            </div>
        </Modal>
    }
}
