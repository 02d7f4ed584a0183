//! The input of the form over reloads of the page: restored after hydration, stored after each change, and
//! removed after the launch. The last change is stored when the page is left.

use berth_types::ids::OrgId;
use leptos::prelude::*;

use super::super::parts::{focus_soon, later};
use super::draft::Draft;
use super::form::Form;
use super::stored_draft::{self, StoredDraft};
use crate::session::use_session;

/// Milliseconds without a change before the input is stored.
const STORE_MS: u64 = 300;

/// The unchanging facts of a form.
struct Basis {
    key: String,
    origin: String,
    /// The first input.
    first: Draft,
    /// The form without input.
    blank: Draft,
}

impl Basis {
    /// Finds the stored draft of this address.
    fn find(&self) -> Option<StoredDraft> {
        stored_draft::find(&self.key).filter(|stored| stored.origin == self.origin)
    }
}

/// The input of the form over reloads.
#[derive(Clone, Copy)]
pub struct KeptDraft {
    /// The input of a newly drawn form.
    pub start: RwSignal<Draft>,
    /// The number of the start.
    pub number: RwSignal<u32>,
    notice: RwSignal<String>,
    /// The input before its replacement by a button, and the name in it from a template.
    cleared: RwSignal<Option<(Draft, String)>>,
    /// The name from the last template; empty without one.
    template_name: StoredValue<String>,
    is_blank: RwSignal<bool>,
    basis: StoredValue<Basis>,
    latest: StoredValue<Draft>,
    /// True after the read of the storage.
    restored: StoredValue<bool>,
    launched: StoredValue<bool>,
}

impl KeptDraft {
    /// Returns the input of a form. `origin` is the part of the address that determines `first`; a stored
    /// draft of another address stays unused. A form without input begins with the offering that `last`
    /// returns in the browser.
    pub fn new(
        (org, origin): (OrgId, String),
        (first, blank): (Draft, Draft),
        notice: String,
        last: impl Fn() -> Option<String> + 'static,
    ) -> Self {
        let is_blank = first == blank;
        let key = stored_draft::key(use_session().me.user.id, org);
        let basis = Basis { key, origin, first: first.clone(), blank };
        let kept = Self {
            start: RwSignal::new(first.clone()),
            number: RwSignal::new(0),
            notice: RwSignal::new(notice),
            cleared: RwSignal::new(None),
            template_name: StoredValue::new(String::new()),
            is_blank: RwSignal::new(is_blank),
            basis: StoredValue::new(basis),
            latest: StoredValue::new(first),
            restored: StoredValue::new(false),
            launched: StoredValue::new(false),
        };
        Effect::new(move || kept.restore(last()));
        Effect::new(move || {
            let listener = window_event_listener_untyped("pagehide", move |_| kept.store_latest());
            on_cleanup(move || {
                listener.remove();
                kept.store_latest();
            });
        });
        kept
    }

    /// Draws the form again with another input.
    fn begin(self, draft: Draft) {
        self.start.set(draft);
        self.number.update(|number| *number = number.wrapping_add(1));
    }

    fn restore(self, last: Option<String>) {
        self.restored.set_value(true);
        if let Some(stored) = self.basis.with_value(Basis::find) {
            self.notice.set(stored.notice());
            self.template_name.set_value(stored.template_name);
            self.begin(stored.draft);
            return;
        }
        let plain = self.basis.with_value(|basis| basis.first == basis.blank);
        let Some(offering) = last.filter(|_| plain) else { return };
        self.basis.update_value(|basis| {
            basis.first.offering.clone_from(&offering);
            basis.blank.offering.clone_from(&offering);
        });
        let start = self.start.get_untracked();
        if start.offering != offering {
            self.begin(Draft { offering, ..start });
        }
    }

    /// Stores the input of a form after each change.
    pub fn follow(self, form: Form) {
        Effect::new(move || {
            let draft = form.draft();
            let is_blank = self.basis.with_value(|basis| basis.blank == draft);
            if self.is_blank.get_untracked() != is_blank {
                self.is_blank.set(is_blank);
            }
            // New input has no way back.
            let is_new = self.start.with_untracked(|start| *start != draft);
            if is_new && self.cleared.with_untracked(Option::is_some) {
                self.cleared.set(None);
            }
            self.latest.set_value(draft.clone());
            later(STORE_MS, move || self.store(draft));
        });
    }

    fn store(self, draft: Draft) {
        let waits =
            self.launched.try_get_value() != Some(false) || self.restored.try_get_value() != Some(true);
        if waits {
            return;
        }
        self.basis.with_value(|basis| {
            if draft != basis.first {
                let stored = StoredDraft::new(basis.origin.clone(), draft, self.template_name.get_value());
                stored_draft::put(&basis.key, Some(&stored));
            } else if basis.find().is_some() {
                stored_draft::put(&basis.key, None);
            }
        });
    }

    /// Stores the present input at once: the page is left.
    fn store_latest(self) {
        if let Some(draft) = self.latest.try_get_value() {
            self.store(draft);
        }
    }

    /// Returns the key of the stored draft, for [`Self::forget`].
    pub fn key(self) -> String {
        self.basis.with_value(|basis| basis.key.clone())
    }

    /// Removes the stored draft after the launch. The page may have been left meanwhile.
    pub fn forget(self, key: &str) {
        let _left = self.launched.try_set_value(true);
        stored_draft::put(key, None);
    }

    /// Returns true if the form has no input, with a subscription.
    pub fn is_blank(self) -> bool {
        self.is_blank.get()
    }

    /// Returns the present input, and the name from the last template; empty without one.
    pub fn present_and_template_name(self) -> (Draft, String) {
        (self.latest.get_value(), self.template_name.get_value())
    }

    /// Shows a sentence about the input.
    pub fn show_notice(self, notice: &str) {
        self.notice.set(notice.to_owned());
    }

    /// Replaces the input. `template_name` is the name in it from a template. The button to undo brings back the
    /// latest input of the user.
    pub fn replace(self, draft: Draft, template_name: String, notice: String) {
        if self.cleared.with_untracked(Option::is_none) {
            self.cleared.set(Some(self.present_and_template_name()));
        }
        self.template_name.set_value(template_name);
        self.notice.set(notice);
        self.begin(draft);
    }

    /// Removes the input.
    pub fn clear(self) {
        let blank = self.basis.with_value(|basis| basis.blank.clone());
        self.replace(blank, String::new(), "Form cleared.".to_owned());
    }

    fn undo(self) {
        if let Some((draft, template_name)) = self.cleared.get_untracked() {
            self.cleared.set(None);
            self.template_name.set_value(template_name);
            self.notice.set(String::new());
            self.begin(draft);
            // The button is gone now.
            focus_soon(".launch-templates button:enabled".to_owned());
        }
    }
}

/// The origin of the input, and the button to undo its replacement.
#[component]
pub fn DraftBar(
    /// The input of the form.
    kept: KeptDraft,
) -> impl IntoView {
    let notice = move || {
        let text = kept.notice.get();
        if text.is_empty() { "This browser tab keeps the input until the launch.".to_owned() } else { text }
    };
    let undoable = Memo::new(move |_| kept.cleared.with(Option::is_some));
    view! {
        <div class="row launch-draft">
            <p class="quiet" role="status">{notice}</p>
            {move || {
                undoable
                    .get()
                    .then(|| {
                        view! {
                            <button class="btn btn--small" type="button" on:click=move |_| kept.undo()>
                                "Undo"
                            </button>
                        }
                    })
            }}
        </div>
    }
}
