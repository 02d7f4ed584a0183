//! The times of a log view: beside the lines, and the jump to a time.
//!
//! A time is an attribute that the style sheet shows, so a line has no more elements. It is in the zone of the page,
//! and exact in UTC on hover. The label of the jump has the name of the zone.

use berth_types::time::Timestamp;
use leptos::prelude::*;
use web_sys::{Element, HtmlElement};

use super::super::grouped;
use super::super::times::{Nearest, log_time, nearest, typed_time};
use super::Pane;
use crate::ui::Zone;
use crate::ui::clock::WallError;

/// The attribute of a view with times.
const ATTRIBUTE: &str = "data-times";

/// Shows the times in a zone, or hides them.
pub(super) fn show_times(pane: &mut Pane, timestamps: bool, zone: Zone) {
    if (pane.timestamps, pane.zone) == (timestamps, zone) {
        return;
    }
    (pane.timestamps, pane.zone) = (timestamps, zone);
    // Fails only for an invalid attribute name.
    let _ = if timestamps {
        pane.view.set_attribute(ATTRIBUTE, "")
    } else {
        pane.view.remove_attribute(ATTRIBUTE)
    };
    for row in &pane.rows {
        write_time(pane, &row.element, &row.text, row.at);
    }
    // The times change the position of the end.
    pane.dirty = true;
}

/// Writes the time of a line while times are shown.
pub(super) fn write_time(pane: &Pane, line: &HtmlElement, text: &Element, at: Option<Timestamp>) {
    let Some(at) = at.filter(|_| pane.timestamps) else { return };
    // Fails only for an invalid attribute name.
    let _ = text.set_attribute("data-time", &log_time(at, pane.zone));
    if let Some(number) = line.first_element_child() {
        let _ = number.set_attribute("title", &at.rfc3339_millis());
    }
}

/// The notice for lines without times.
const UNTIMED: &str = "These lines have no recorded times.";

/// Selects the line nearest to a typed time, and says so.
pub(super) fn jump(pane: &mut Pane, text: &str) {
    let notice = match find(pane, text) {
        Err(notice) => notice,
        Ok((number, at)) => {
            pane.select_line(number);
            pane.scroll_to_line(number);
            format!("Line {}, {}", grouped(number), labelled(pane, at))
        }
    };
    let _ = pane.controls.notice.try_set(notice);
}

/// Finds the nearest of the lines that are shown.
///
/// # Errors
/// A sentence about a text that is no time, a skipped time, a log without times, or a time after its last line.
fn find(pane: &Pane, text: &str) -> Result<(u64, Timestamp), String> {
    let shown = pane.rows.iter().filter(|row| row.is_shown(pane.shown));
    let lines: Vec<(u64, Timestamp)> = shown.filter_map(|row| row.number().zip(row.at)).collect();
    let (Some((_, first)), Some((_, last))) = (lines.first(), lines.last()) else {
        return Err(UNTIMED.to_owned());
    };
    let wanted = typed_time(text, pane.zone, *first, *last).map_err(|error| match error {
        WallError::Unreadable => "Enter a time such as 14:20:05 or 2026-11-20 14:20.".to_owned(),
        WallError::Skipped => error.text().to_owned(),
    })?;
    match nearest(lines.iter().copied(), wanted) {
        Nearest::Line(number, at) => Ok((number, at)),
        Nearest::Untimed => Err(UNTIMED.to_owned()),
        Nearest::Earlier(at) => {
            Err(format!("No line is so late. The last line is from {}.", labelled(pane, at)))
        }
    }
}

/// Returns a time with its UTC offset: `14:20:05.1 UTC+1`.
fn labelled(pane: &Pane, at: Timestamp) -> String {
    format!("{} {}", log_time(at, pane.zone), pane.zone.label(at))
}
