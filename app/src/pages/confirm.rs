//! The question before something that cannot be taken back.
//!
//! Must not say what that is: its page gives the words and does it.

use leptos::prelude::*;

use super::parts::{Call, CallProblem, Modal};

/// The one of a list that the question is about.
pub struct Doomed<T> {
    /// It; what was asked about last stays.
    pub one: RwSignal<Option<T>>,
    /// Whether the question is asked.
    pub open: RwSignal<bool>,
}

// Signals are copied whatever is in them; a derived one would ask that of `T`.
impl<T> Clone for Doomed<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Doomed<T> {}

impl<T: Clone + Send + Sync + 'static> Doomed<T> {
    /// Nothing was asked about yet.
    pub fn none() -> Self {
        Self { one: RwSignal::new(None), open: RwSignal::new(false) }
    }

    /// The question: `Delete hf-token?`; before there was one, of what kind it is.
    pub fn title(self, verb: &'static str, kind: &'static str, name: fn(&T) -> &str) -> Signal<String> {
        Signal::derive(move || {
            self.one.with(|one| match one {
                Some(one) => format!("{verb} {}?", name(one)),
                None => format!("{verb} the {kind}?"),
            })
        })
    }

    /// The button beside one of the list that asks about it.
    pub fn button(self, one: T, verb: &'static str, label: String, ready: ReadSignal<bool>) -> AnyView {
        view! {
            <button
                class="btn btn--danger btn--small"
                type="button"
                aria-label=label
                disabled=move || !ready.get()
                on:click=move |_| {
                    self.one.set(Some(one.clone()));
                    self.open.set(true);
                }
            >
                {verb}
            </button>
        }
        .into_any()
    }
}

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
