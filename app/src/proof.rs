//! The question for a fresh proof of identity, between the client of the API and the dialog of the page.
//!
//! A request that the portal refuses without a fresh proof waits here for the dialog, and is then sent again.

pub use inner::{answer, ask, show_in};

#[cfg(feature = "hydrate")]
mod inner {
    use std::cell::RefCell;

    use futures::channel::oneshot;
    use leptos::prelude::*;

    #[derive(Default)]
    struct Question {
        /// True with an open dialog; absent before hydration.
        dialog: Option<RwSignal<bool>>,
        /// The waiting requests.
        waiting: Vec<oneshot::Sender<bool>>,
    }

    thread_local! {
        static QUESTION: RefCell<Question> = RefCell::default();
    }

    /// Sets the state of the dialog for later questions.
    pub fn show_in(dialog: RwSignal<bool>) {
        QUESTION.with_borrow_mut(|question| question.dialog = Some(dialog));
    }

    /// Opens the dialog and waits for its answer. Returns true after a proof.
    pub async fn ask() -> bool {
        let asked = QUESTION.with_borrow_mut(|question| {
            let dialog = question.dialog?;
            let (sender, receiver) = oneshot::channel();
            question.waiting.push(sender);
            Some((dialog, receiver))
        });
        let Some((dialog, receiver)) = asked else { return false };
        let _ = dialog.try_set(true);
        receiver.await.unwrap_or(false)
    }

    /// Answers all waiting requests.
    pub fn answer(proved: bool) {
        let waiting = QUESTION.with_borrow_mut(|question| std::mem::take(&mut question.waiting));
        for request in waiting {
            // A request of a left page does not wait any more.
            let _ = request.send(proved);
        }
    }
}

#[cfg(not(feature = "hydrate"))]
mod inner {
    use leptos::prelude::RwSignal;

    /// No effect outside of a browser.
    pub fn show_in(_dialog: RwSignal<bool>) {}

    /// Returns false: outside of a browser nobody answers.
    pub async fn ask() -> bool {
        false
    }

    /// No effect outside of a browser.
    pub fn answer(_proved: bool) {}
}
