//! Confirmation dialog of an irreversible action. The page supplies text and action.

use leptos::prelude::*;

use super::dialog_form::DialogForm;
use super::parts::{Call, CallProblem};

/// The list item of a confirmation.
pub struct ConfirmTarget<T> {
    /// The item of the present or last confirmation.
    pub one: RwSignal<Option<T>>,
    /// True with an open dialog.
    pub open: RwSignal<bool>,
}

// Signals are `Copy` for every `T`; a derived implementation would require `T: Copy`.
impl<T> Clone for ConfirmTarget<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ConfirmTarget<T> {}

impl<T: Clone + Send + Sync + 'static> ConfirmTarget<T> {
    /// Returns a target without an item.
    pub fn none() -> Self {
        Self { one: RwSignal::new(None), open: RwSignal::new(false) }
    }

    /// Returns the title: `Delete hf-token?`, or `Delete the secret?` without an item.
    pub fn title(self, verb: &'static str, kind: &'static str, name: fn(&T) -> &str) -> Signal<String> {
        Signal::derive(move || {
            self.one.with(|one| match one {
                Some(one) => format!("{verb} {}?", name(one)),
                None => format!("{verb} the {kind}?"),
            })
        })
    }

    /// Returns the button of a list item that opens the dialog.
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

/// A dialog with a cancel button, a button for the action, and its error.
#[component]
pub fn ConfirmDialog(
    /// Unique in the page.
    id: &'static str,
    /// The title as a question.
    #[prop(into)]
    title: Signal<String>,
    /// True with an open dialog.
    open: RwSignal<bool>,
    /// The request of the action.
    call: Call,
    /// The label of the cancel button.
    #[prop(into)]
    keep: Signal<String>,
    /// The label of the action button.
    #[prop(into)]
    verb: Signal<String>,
    /// True without an item for the action.
    #[prop(optional, into)]
    disabled: Signal<bool>,
    /// Starts the action.
    confirm: Callback<()>,
    /// The consequences in sentences.
    children: Children,
) -> impl IntoView {
    view! {
        <DialogForm
            id=id
            title=title
            open=open
            call=call
            keep=keep
            verb=verb
            danger=true
            disabled=disabled
            submit=confirm
        >
            {children()}
            <CallProblem call=call beside_fields=&[]/>
        </DialogForm>
    }
}
