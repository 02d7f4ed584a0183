//! Time zone of all pages: the zone of the browser, or UTC by the visitor's choice.
//!
//! The portal has no table of zones. A cookie has UTC offsets of the browser's zone, so the first HTML has local
//! times. The first client render uses the same offsets. After hydration the browser returns the exact offset of
//! each instant. Calculations are in `clock`.

use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::clock::{UtcOffset, Wall, WallError, window_text};
use super::ready;

/// The name of the cookie.
#[cfg(any(feature = "ssr", feature = "hydrate"))]
const COOKIE: &str = "berth_zone";
/// The attribute of the document with the text of the cookie. `js/chart.js` reads it.
#[cfg(feature = "hydrate")]
const ATTRIBUTE: &str = "data-zone";
/// The text of the choice of UTC.
const UTC_TEXT: &str = "utc";
/// The value of the other choice.
const LOCAL_TEXT: &str = "local";

/// The maximum number of changes of an offset.
const MAX_CHANGES: usize = 6;
/// The maximum length of offsets as text, in bytes.
const MAX_TEXT: usize = 160;
/// The maximum distance from UTC in seconds.
const MAX_OFFSET_S: i64 = 18 * 3_600;
/// The end of the year 9999 as a Unix time in seconds.
const LAST_S: i64 = 253_402_300_799;
const WEEK_S: i64 = 7 * 86_400;
/// The number of weeks before and after the present with known changes.
const WEEKS: i64 = 53;

/// The UTC offsets of a zone near the present. The default is UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Offsets {
    /// The offset in seconds before the first change.
    first_s: i64,
    /// The changes in order: the Unix time and the next offset, both in seconds.
    changes: [Option<(i64, i64)>; MAX_CHANGES],
}

impl Offsets {
    /// Returns the offsets of a zone from a year before a Unix time in seconds to a year after it.
    pub fn around(now_s: i64, offset: UtcOffset) -> Self {
        let begin = now_s.saturating_sub(WEEKS * WEEK_S);
        let first_s = offset(begin);
        let mut changes = [None; MAX_CHANGES];
        let mut places = changes.iter_mut();
        let mut before = first_s;
        for week in 0..2 * WEEKS {
            let from = begin.saturating_add(week * WEEK_S);
            let until = from.saturating_add(WEEK_S);
            let after = offset(until);
            if after != before {
                let Some(place) = places.next() else { break };
                *place = Some((first_with_other_offset(from, until, offset), after));
                before = after;
            }
        }
        Self { first_s, changes }
    }

    /// Parses the text of a cookie.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_TEXT {
            return None;
        }
        let in_range = |offset: &i64| (-MAX_OFFSET_S..=MAX_OFFSET_S).contains(offset);
        let mut numbers = text.split('.').map(|part| part.parse::<i64>().ok());
        let first_s = numbers.next()?.filter(in_range)?;
        let mut changes = [None; MAX_CHANGES];
        let mut last = 0;
        for place in &mut changes {
            let Some(at) = numbers.next() else { break };
            let at = at.filter(|at| *at > last && *at <= LAST_S)?;
            *place = Some((at, numbers.next()?.filter(in_range)?));
            last = at;
        }
        numbers.next().is_none().then_some(Self { first_s, changes })
    }

    /// Returns the text of a cookie: an offset, then the time and the next offset of each change, in seconds.
    pub fn text(self) -> String {
        let changes = self.changes.iter().flatten().map(|(at, offset)| format!(".{at}.{offset}"));
        std::iter::once(self.first_s.to_string()).chain(changes).collect()
    }

    /// Returns the offset in seconds at a Unix time in seconds.
    fn at(self, utc: i64) -> i64 {
        let past = self.changes.iter().flatten().take_while(|(at, _)| *at <= utc).last();
        past.map_or(self.first_s, |(_, offset)| *offset)
    }
}

/// Returns the first second with another offset than `from`, between `from` and `until`.
fn first_with_other_offset(mut from: i64, mut until: i64, offset: UtcOffset) -> i64 {
    let before = offset(from);
    while until.saturating_sub(from) > 1 {
        let middle = from + (until - from) / 2;
        if offset(middle) == before { from = middle } else { until = middle }
    }
    until
}

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// UTC.
    Utc,
    /// The zone of the browser before hydration, by its offsets.
    Known(Offsets),
    /// The zone of the browser.
    Local,
}

impl Zone {
    /// Parses the text of a cookie.
    pub fn parse(text: &str) -> Option<Self> {
        if text == UTC_TEXT { Some(Self::Utc) } else { Offsets::parse(text).map(Self::Known) }
    }

    /// Returns the text of the cookie.
    pub fn text(self) -> String {
        match self {
            Self::Utc => UTC_TEXT.to_owned(),
            Self::Known(offsets) => offsets.text(),
            Self::Local => Offsets::around(present_s(), &browser_offset).text(),
        }
    }

    /// Returns true if the visitor chose UTC.
    pub const fn is_utc(self) -> bool {
        matches!(self, Self::Utc)
    }

    /// Returns the UTC offset in seconds at a Unix time in seconds.
    pub fn offset(self, utc: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Known(offsets) => offsets.at(utc),
            Self::Local => browser_offset(utc),
        }
    }

    /// Returns the wall time of an instant.
    pub fn wall(self, at: Timestamp) -> Wall {
        Wall::at(at, &|utc| self.offset(utc))
    }

    /// Parses the value of a date-and-time field. A repeated time has its first instant.
    ///
    /// # Errors
    /// A text without a date and a time, and a time that the zone skips.
    pub fn instant(self, field: &str) -> Result<Timestamp, WallError> {
        let wall = Wall::parse_field(field).ok_or(WallError::Unreadable)?;
        let all = wall.instants(&|utc| self.offset(utc));
        all.first().copied().ok_or(WallError::Skipped)
    }

    /// Returns the remark about the value of a field that the zone repeats.
    pub fn remark(self, field: &str) -> Option<String> {
        let all = Wall::parse_field(field)?.instants(&|utc| self.offset(utc));
        match all.as_slice() {
            [first, _] => Some(format!(
                "The clocks go back on this day and repeat this time. The first one counts ({}).",
                self.label(*first)
            )),
            _ => None,
        }
    }

    /// Returns the value of a date-and-time field.
    pub fn field(self, at: Timestamp) -> String {
        self.wall(at).field()
    }

    /// Returns a window as text: `Sun 22 Nov 09:00 to 11:00`.
    pub fn window(self, from: Timestamp, until: Timestamp) -> String {
        window_text(self.wall(from), self.wall(until))
    }

    /// Returns an instant to the minute: `2026-11-22 09:00 UTC+1`.
    pub fn minute(self, at: Timestamp) -> String {
        format!("{} {}", self.wall(at).stamp(), self.label(at))
    }

    /// Returns the time of day of an instant: `09:00:05 UTC+1`.
    pub fn clock_s(self, at: Timestamp) -> String {
        format!("{} {}", self.wall(at).clock_s(), self.label(at))
    }

    /// Returns the UTC offset at an instant: `UTC`, `UTC+1`, `UTC−3:30`.
    pub fn label(self, at: Timestamp) -> String {
        offset_text(self.offset(at.millis().div_euclid(1_000)))
    }

    /// Returns the name: `UTC`, `Europe/Berlin`.
    pub fn name(self) -> String {
        match self {
            Self::Utc => "UTC".to_owned(),
            Self::Known(_) => "local time".to_owned(),
            Self::Local => browser_zone(),
        }
    }

    /// Returns the name with the present offset: `UTC`, `Europe/Berlin, UTC+1 now`. Before hydration it has no
    /// offset, because the server has no clock.
    pub fn title(self, now_ms: i64) -> String {
        let name = self.name();
        match self {
            Self::Local => {
                let offset = offset_text(self.offset(now_ms.div_euclid(1_000)));
                if name == offset { name } else { format!("{name}, {offset} now") }
            }
            Self::Utc | Self::Known(_) => name,
        }
    }
}

/// The length of a time in a sentence without its zone, in bytes: `2026-11-22 09:00`.
const STAMP_BYTES: usize = 16;

/// Replaces the times in a sentence of the portal, such as `2026-11-22 09:00 UTC`, by times of a zone.
pub fn zoned(sentence: &str, zone: Zone) -> String {
    let mut parts = sentence.split(" UTC");
    let mut text = String::with_capacity(sentence.len());
    let mut before = parts.next().unwrap_or_default();
    for after in parts {
        let stamp = if after.starts_with(['+', '-', '−']) { None } else { split_stamp(before) };
        match stamp {
            Some((start, at)) => text.extend([start, &zone.minute(at)]),
            None => text.extend([before, " UTC"]),
        }
        before = after;
    }
    text.push_str(before);
    text
}

/// Splits a text that ends with a time in UTC into the part before it and the instant.
fn split_stamp(text: &str) -> Option<(&str, Timestamp)> {
    let (start, stamp) = text.split_at_checked(text.len().checked_sub(STAMP_BYTES)?)?;
    let (day, time) = stamp.split_once(' ')?;
    let at = format!("{day}T{time}:00Z").parse().ok()?;
    Some((start, at))
}

/// Returns an offset as text: `UTC`, `UTC+1`, `UTC−3:30`.
fn offset_text(offset_s: i64) -> String {
    let sign = if offset_s < 0 { '−' } else { '+' };
    let minutes = offset_s.abs() / 60;
    match (minutes / 60, minutes % 60) {
        (0, 0) => "UTC".to_owned(),
        (hours, 0) => format!("UTC{sign}{hours}"),
        (hours, rest) => format!("UTC{sign}{hours}:{rest:02}"),
    }
}

#[cfg(feature = "hydrate")]
fn browser_offset(utc: i64) -> i64 {
    let date = js_sys::Date::new(&wasm_bindgen::JsValue::from_f64(utc as f64 * 1_000.0));
    // JavaScript returns minutes from local time to UTC.
    -(date.get_timezone_offset() as i64).saturating_mul(60)
}

#[cfg(not(feature = "hydrate"))]
fn browser_offset(_utc: i64) -> i64 {
    0
}

/// Returns the name of the browser's zone, such as `Europe/Berlin`; without a name another text, which has no slash.
#[cfg(feature = "hydrate")]
pub fn browser_zone() -> String {
    let format = js_sys::Intl::DateTimeFormat::new(&js_sys::Array::new(), &js_sys::Object::new());
    let options = format.resolved_options();
    js_sys::Reflect::get(&options, &wasm_bindgen::JsValue::from_str("timeZone"))
        .ok()
        .and_then(|name| name.as_string())
        .map_or_else(|| "local time".to_owned(), |name| name.trim_start_matches("Etc/").to_owned())
}

/// Returns a text without a browser.
#[cfg(not(feature = "hydrate"))]
pub fn browser_zone() -> String {
    "local time".to_owned()
}

/// Returns the browser's Unix time in seconds.
#[cfg(feature = "hydrate")]
fn present_s() -> i64 {
    (js_sys::Date::now() / 1_000.0) as i64
}

#[cfg(not(feature = "hydrate"))]
fn present_s() -> i64 {
    0
}

/// Returns the zone of the first HTML.
#[cfg(feature = "hydrate")]
pub(crate) fn rendered_zone() -> Zone {
    let text = document().document_element().and_then(|root| root.get_attribute(ATTRIBUTE));
    text.and_then(|text| Zone::parse(&text)).unwrap_or(Zone::Known(Offsets::default()))
}

/// Returns the zone of the cookie.
#[cfg(all(feature = "ssr", not(feature = "hydrate")))]
pub(crate) fn rendered_zone() -> Zone {
    let text = crate::cookies::cookie(COOKIE);
    text.and_then(|text| Zone::parse(&text)).unwrap_or(Zone::Known(Offsets::default()))
}

/// Returns UTC without a page.
#[cfg(not(any(feature = "ssr", feature = "hydrate")))]
pub(crate) fn rendered_zone() -> Zone {
    Zone::Known(Offsets::default())
}

#[cfg(feature = "hydrate")]
thread_local! {
    /// The zone of the page, which has one thread.
    static PAGE_ZONE: ArcRwSignal<Zone> = ArcRwSignal::new(rendered_zone());
}

/// Returns the signal of the zone for the context of the pages.
#[cfg(feature = "hydrate")]
pub(crate) fn page_zone() -> RwSignal<Zone> {
    RwSignal::from(PAGE_ZONE.with(ArcRwSignal::clone))
}

/// Returns the signal of the zone for the context of the pages.
#[cfg(not(feature = "hydrate"))]
pub(crate) fn page_zone() -> RwSignal<Zone> {
    RwSignal::new(rendered_zone())
}

/// Takes over the exact zone of the browser. It follows hydration: a hydrated text without a change of its value
/// keeps the rendered one.
#[cfg(feature = "hydrate")]
pub(crate) fn use_browser_zone() {
    let zone = if rendered_zone().is_utc() { Zone::Utc } else { Zone::Local };
    store(zone);
    PAGE_ZONE.with(|page| page.set(zone));
}

/// Stores the zone for later visits and for the charts.
#[cfg(feature = "hydrate")]
fn store(zone: Zone) {
    let text = zone.text();
    if let Some(root) = document().document_element() {
        // It fails only for an invalid name of an attribute.
        let _ = root.set_attribute(ATTRIBUTE, &text);
    }
    crate::cookies::store_cookie(COOKIE, &text);
}

/// Returns the zone of the page inside the app; UTC outside of it.
pub fn use_zone() -> RwSignal<Zone> {
    use_context::<RwSignal<Zone>>().unwrap_or_else(|| RwSignal::new(Zone::Utc))
}

/// Sets the zone of the page and of later visits.
pub fn choose_zone(page: RwSignal<Zone>, chosen: Zone) {
    page.set(chosen);
    #[cfg(feature = "hydrate")]
    store(chosen);
}

/// The choice of the zone for all pages.
#[component]
pub fn ZoneSelect(
    /// Unique in the page.
    id: &'static str,
) -> impl IntoView {
    // A choice before hydration would be lost.
    let (zone, ready) = (use_zone(), ready());
    let value = move || if zone.get().is_utc() { UTC_TEXT } else { LOCAL_TEXT };
    let choose = move |ev| {
        let utc = event_target_value(&ev) == UTC_TEXT;
        choose_zone(zone, if utc { Zone::Utc } else { Zone::Local });
    };
    view! {
        <label class="visually-hidden" for=id>"Time zone"</label>
        <select
            class="select select--bare"
            id=id
            disabled=move || !ready.get()
            prop:value=value
            on:change=choose
        >
            <option value=LOCAL_TEXT selected=move || !zone.get().is_utc()>"Local times"</option>
            <option value=UTC_TEXT selected=move || zone.get().is_utc()>"UTC times"</option>
        </select>
    }
}

#[cfg(test)]
mod tests;
