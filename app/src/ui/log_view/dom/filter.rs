//! The filter of a log view by level, and the numbers of warnings and errors.

use leptos::prelude::*;

use super::super::Shown;
use super::super::levels::Level;
use super::Pane;

/// The attribute of the view with the levels that the style sheet shows. An effect on the class would come later than
/// the scrolling to a match.
const ATTRIBUTE: &str = "data-shown";

/// Shows the lines of some levels.
pub(super) fn filter(pane: &mut Pane, shown: Shown) {
    if pane.shown == shown {
        return;
    }
    pane.shown = shown;
    // Fails only for an invalid attribute name.
    let _ = match shown {
        Shown::All => pane.view.remove_attribute(ATTRIBUTE),
        Shown::Warnings => pane.view.set_attribute(ATTRIBUTE, "warnings"),
        Shown::Errors => pane.view.set_attribute(ATTRIBUTE, "errors"),
    };
    let query = std::mem::take(&mut pane.query);
    pane.search(query);
    pane.dirty = true;
}

/// Counts a new line, or no longer counts a removed one.
pub(super) const fn count(counts: &mut (u64, u64), level: Option<Level>, is_new: bool) {
    let number = match level {
        Some(Level::Warning) => &mut counts.0,
        Some(Level::Error) => &mut counts.1,
        Some(Level::Trace | Level::Debug | Level::Info) | None => return,
    };
    *number = if is_new { number.saturating_add(1) } else { number.saturating_sub(1) };
}

pub(super) fn publish_counts(pane: &Pane) {
    if pane.controls.counts.try_get_untracked() != Some(pane.counts) {
        let _ = pane.controls.counts.try_set(pane.counts);
    }
}
