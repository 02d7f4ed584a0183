//! A dialog with a form: the buttons that close and submit it, and its fields at each opening.

use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::parts::{Call, Modal, Submit, focus_soon};

/// A dialog with the fields of one request. The body has the problem of the request where it belongs.
#[component]
pub fn DialogForm(
    /// Unique in the page.
    id: &'static str,
    /// The heading.
    #[prop(into)]
    title: Signal<String>,
    /// True with an open dialog.
    open: RwSignal<bool>,
    /// The request of the form.
    call: Call,
    /// The label of the button that closes the dialog.
    #[prop(into)]
    keep: Signal<String>,
    /// The label of the button that submits the form.
    #[prop(into)]
    verb: Signal<String>,
    /// True for a destructive action.
    #[prop(optional, into)]
    danger: Signal<bool>,
    /// True without an item for the action.
    #[prop(optional, into)]
    disabled: Signal<bool>,
    /// Sets the fields at each opening: the input for one item does not apply to the next.
    #[prop(optional)]
    reset: Option<Callback<()>>,
    /// A further button before the one that submits.
    #[prop(optional)]
    further: Option<AnyView>,
    /// Sends the request.
    submit: Callback<()>,
    /// The consequences in sentences, the problem of the request and the fields.
    children: Children,
) -> impl IntoView {
    // Rows that the reset makes stay after the closing, so they belong to the dialog and not to one run of the effect.
    // A strong owner in its own effect would never end.
    let owner = Owner::current().map(|owner| owner.downgrade());
    let is_sent = StoredValue::new(false);
    Effect::new(move || {
        if open.get() {
            call.problem.set(None);
            is_sent.set_value(false);
            let owner = owner.as_ref().and_then(WeakOwner::upgrade);
            if let (Some(reset), Some(owner)) = (reset, owner) {
                owner.with(|| untrack(|| reset.run(())));
            }
        }
    });
    // A long dialog is scrolled to its end at the submission, and the error is above it. Other problems take no focus.
    Effect::new(move || {
        if call.problem.with(Option::is_some) && open.get_untracked() && is_sent.get_value() {
            is_sent.set_value(false);
            focus_soon(format!("#{id} [aria-invalid=\"true\"], #{id} .field__error, #{id} .banner--error"));
        }
    });
    let send = move |event: SubmitEvent| {
        event.prevent_default();
        is_sent.set_value(true);
        submit.run(());
    };
    view! {
        <Modal id=id title=title open=open>
            <form method="post" novalidate=true on:submit=send>
                <div class="dialog__body">{children()}</div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>{move || keep.get()}</button>
                    {further}
                    <Submit call=call danger=danger disabled=disabled>{move || verb.get()}</Submit>
                </div>
            </form>
        </Modal>
    }
}
