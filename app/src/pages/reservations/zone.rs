//! The zone in which times are read and typed: UTC, or the browser's own, as was chosen last.
//!
//! Must not calculate with times itself: that is `clock`'s. The server draws in UTC, and so does the
//! first client render; what was chosen comes after it.

use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::super::parts::now_ms;
use super::clock::{Frame, View, Wall, window_text};

const CHOSEN: &str = "berth.zone";

/// Whose clocks are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// Nobody's, and everybody's.
    Utc,
    /// Those of whoever looks.
    Local,
}

impl Zone {
    const fn name(self) -> &'static str {
        match self {
            Self::Utc => "utc",
            Self::Local => "local",
        }
    }

    /// Seconds by which its clocks are ahead of UTC at an instant, in seconds since 1970.
    fn ahead(self, utc: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Local => browser_ahead(utc),
        }
    }

    /// What its clocks show at an instant.
    pub fn wall(self, at: Timestamp) -> Wall {
        Wall::at(at, &|utc| self.ahead(utc))
    }

    /// When its clocks show what a date-and-time field has.
    pub fn instant(self, field: &str) -> Option<Timestamp> {
        Wall::parse_field(field).map(|wall| wall.instant(&|utc| self.ahead(utc)))
    }

    /// The text of a date-and-time field for an instant.
    pub fn field(self, at: Timestamp) -> String {
        self.wall(at).field()
    }

    /// `Sun 22 Nov 09:00 to 11:00`.
    pub fn window(self, from: Timestamp, until: Timestamp) -> String {
        window_text(self.wall(from), self.wall(until))
    }

    /// The day or week that has `day` in it, in columns.
    pub fn frame(self, view: View, day: i64) -> Frame {
        Frame::new(view, day, &|utc| self.ahead(utc))
    }

    /// What the zone is called: `UTC`, `Europe/Berlin, UTC+01:00 now`.
    pub fn title(self) -> String {
        match self {
            Self::Utc => "UTC".to_owned(),
            Self::Local => {
                let ahead = offset_text(self.ahead(now_ms().div_euclid(1_000)));
                format!("{}, {ahead} now", browser_zone())
            }
        }
    }
}

/// `UTC+01:00`, `UTC−03:30`.
fn offset_text(ahead_s: i64) -> String {
    let sign = if ahead_s < 0 { '−' } else { '+' };
    let minutes = ahead_s.abs() / 60;
    format!("UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(feature = "hydrate")]
fn browser_ahead(utc: i64) -> i64 {
    let date = js_sys::Date::new(&wasm_bindgen::JsValue::from_f64(utc as f64 * 1_000.0));
    // Minutes from the wall to UTC, so behind is above zero.
    -(date.get_timezone_offset() as i64).saturating_mul(60)
}

#[cfg(not(feature = "hydrate"))]
fn browser_ahead(_utc: i64) -> i64 {
    0
}

/// The browser's zone by its name, such as `Europe/Berlin`.
#[cfg(feature = "hydrate")]
fn browser_zone() -> String {
    let format = js_sys::Intl::DateTimeFormat::new(&js_sys::Array::new(), &js_sys::Object::new());
    let options = format.resolved_options();
    js_sys::Reflect::get(&options, &wasm_bindgen::JsValue::from_str("timeZone"))
        .ok()
        .and_then(|name| name.as_string())
        .unwrap_or_else(|| "your zone".to_owned())
}

#[cfg(not(feature = "hydrate"))]
fn browser_zone() -> String {
    "your zone".to_owned()
}

/// What was chosen last; the browser's own zone when nothing was.
#[cfg(feature = "hydrate")]
pub fn chosen() -> Zone {
    let kept = || web_sys::window()?.local_storage().ok()??.get_item(CHOSEN).ok()?;
    if kept().is_some_and(|name| name == Zone::Utc.name()) { Zone::Utc } else { Zone::Local }
}

#[cfg(not(feature = "hydrate"))]
pub fn chosen() -> Zone {
    let _ = CHOSEN;
    Zone::Utc
}

fn remember(zone: Zone) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|window| window.local_storage()) {
        // A browser that keeps nothing only forgets the choice.
        let _ = storage.set_item(CHOSEN, zone.name());
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = zone.name();
}

/// UTC until the page is alive, then what was chosen last.
pub fn use_zone() -> RwSignal<Zone> {
    let zone = RwSignal::new(Zone::Utc);
    Effect::new(move || zone.set(chosen()));
    zone
}

/// Chooses the zone, and says its name.
#[component]
pub fn ZoneSwitch(
    /// The zone now.
    zone: RwSignal<Zone>,
    /// Sets it; where fields have times in them, what they mean must stay.
    choose: Callback<Zone>,
    /// Hydrated.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let choice = move |value: Zone, text: &'static str| {
        let at_first = zone.get_untracked() == value;
        view! {
            <label>
                <input
                    type="radio"
                    name="zone"
                    checked=at_first
                    disabled=move || !ready.get()
                    prop:checked=move || { zone.get() == value }
                    on:change=move |_| {
                        remember(value);
                        choose.run(value);
                    }
                />
                {text}
            </label>
        }
    };
    view! {
        <div class="row">
            <div class="segmented" role="radiogroup" aria-label="Zone of all times on this page">
                {choice(Zone::Utc, "UTC")} {choice(Zone::Local, "Local")}
            </div>
            <span class="quiet small">{move || zone.get().title()}</span>
        </div>
    }
}

/// A time to the minute in the chosen zone; exact for machines and on hover.
#[component]
pub fn Moment(at: Timestamp, zone: RwSignal<Zone>) -> impl IntoView {
    let exact = at.to_string();
    view! { <time datetime=exact.clone() title=exact>{move || zone.get().wall(at).stamp()}</time> }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_read_well() {
        assert_eq!(offset_text(0), "UTC+00:00");
        assert_eq!(offset_text(3_600), "UTC+01:00");
        assert_eq!(offset_text(-12_600), "UTC−03:30");
    }

    #[test]
    fn utc_is_typed_as_it_is_meant() {
        let at = Zone::Utc.instant("2026-11-22T09:00").unwrap();
        assert_eq!(at.to_string(), "2026-11-22T09:00:00Z");
        assert_eq!(Zone::Utc.field(at), "2026-11-22T09:00");
        assert_eq!(Zone::Utc.instant("soon"), None);
        assert_eq!(Zone::Utc.window(at, at.plus_seconds(3_600)), "Sun 22 Nov 09:00 to 10:00");
        assert_eq!(Zone::Utc.title(), "UTC");
    }
}
