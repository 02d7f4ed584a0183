//! Time zone of the page: UTC or the browser's zone, stored in the browser. The server and the first client
//! render use UTC. Calculations are in `clock`.

use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::super::parts::now_ms;
use super::clock::{Frame, View, Wall, window_text};

const STORAGE_KEY: &str = "berth.zone";

/// A time zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// UTC.
    Utc,
    /// The zone of the browser.
    Local,
}

impl Zone {
    const fn name(self) -> &'static str {
        match self {
            Self::Utc => "utc",
            Self::Local => "local",
        }
    }

    /// Returns the UTC offset in seconds at a Unix time in seconds.
    fn offset(self, utc: i64) -> i64 {
        match self {
            Self::Utc => 0,
            Self::Local => browser_offset(utc),
        }
    }

    /// Returns the wall time of an instant.
    pub fn wall(self, at: Timestamp) -> Wall {
        Wall::at(at, &|utc| self.offset(utc))
    }

    /// Parses the value of a date-and-time field.
    pub fn instant(self, field: &str) -> Option<Timestamp> {
        Wall::parse_field(field).map(|wall| wall.instant(&|utc| self.offset(utc)))
    }

    /// Returns the value of a date-and-time field.
    pub fn field(self, at: Timestamp) -> String {
        self.wall(at).field()
    }

    /// Returns a window as text: `Sun 22 Nov 09:00 to 11:00`.
    pub fn window(self, from: Timestamp, until: Timestamp) -> String {
        window_text(self.wall(from), self.wall(until))
    }

    /// Returns the frame with `day` in it.
    pub fn frame(self, view: View, day: i64) -> Frame {
        Frame::new(view, day, &|utc| self.offset(utc))
    }

    /// Returns the name: `UTC`, `Europe/Berlin, UTC+01:00 now`.
    pub fn title(self) -> String {
        match self {
            Self::Utc => "UTC".to_owned(),
            Self::Local => {
                let offset = offset_text(self.offset(now_ms().div_euclid(1_000)));
                format!("{}, {offset} now", browser_zone())
            }
        }
    }
}

/// Returns an offset as text: `UTC+01:00`, `UTC−03:30`.
fn offset_text(offset_s: i64) -> String {
    let sign = if offset_s < 0 { '−' } else { '+' };
    let minutes = offset_s.abs() / 60;
    format!("UTC{sign}{:02}:{:02}", minutes / 60, minutes % 60)
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

/// Returns the name of the browser's zone, such as `Europe/Berlin`.
#[cfg(feature = "hydrate")]
fn browser_zone() -> String {
    let format = js_sys::Intl::DateTimeFormat::new(&js_sys::Array::new(), &js_sys::Object::new());
    let options = format.resolved_options();
    js_sys::Reflect::get(&options, &wasm_bindgen::JsValue::from_str("timeZone"))
        .ok()
        .and_then(|name| name.as_string())
        .unwrap_or_else(|| "local time".to_owned())
}

#[cfg(not(feature = "hydrate"))]
fn browser_zone() -> String {
    "local time".to_owned()
}

/// Returns the stored zone; by default the browser's zone.
#[cfg(feature = "hydrate")]
pub fn stored() -> Zone {
    let name = || web_sys::window()?.local_storage().ok()??.get_item(STORAGE_KEY).ok()?;
    if name().is_some_and(|name| name == Zone::Utc.name()) { Zone::Utc } else { Zone::Local }
}

#[cfg(not(feature = "hydrate"))]
pub fn stored() -> Zone {
    let _ = STORAGE_KEY;
    Zone::Utc
}

fn store(zone: Zone) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|window| window.local_storage()) {
        // Without storage the choice is lost.
        let _ = storage.set_item(STORAGE_KEY, zone.name());
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = zone.name();
}

/// Returns UTC before hydration, then the stored zone.
pub fn use_zone() -> RwSignal<Zone> {
    let zone = RwSignal::new(Zone::Utc);
    Effect::new(move || zone.set(stored()));
    zone
}

/// The switch of the zone with its name.
#[component]
pub fn ZoneSwitch(
    /// The zone.
    zone: RwSignal<Zone>,
    /// Sets the zone. Fields with times must keep their instants.
    choose: Callback<Zone>,
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let choice = move |value: Zone, text: &'static str| {
        let initial = zone.get_untracked() == value;
        view! {
            <label>
                <input
                    type="radio"
                    name="zone"
                    checked=initial
                    disabled=move || !ready.get()
                    prop:checked=move || { zone.get() == value }
                    on:change=move |_| {
                        store(value);
                        choose.run(value);
                    }
                />
                {text}
            </label>
        }
    };
    view! {
        <div class="row">
            <div class="segmented" role="radiogroup" aria-label="Time zone of this page">
                {choice(Zone::Utc, "UTC")} {choice(Zone::Local, "Local")}
            </div>
            <span class="quiet small">{move || zone.get().title()}</span>
        </div>
    }
}

/// A time to the minute in the chosen zone, with the exact time on hover.
#[component]
pub fn Moment(at: Timestamp, zone: RwSignal<Zone>) -> impl IntoView {
    let exact = at.to_string();
    view! { <time datetime=exact.clone() title=exact>{move || zone.get().wall(at).stamp()}</time> }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_texts() {
        assert_eq!(offset_text(0), "UTC+00:00");
        assert_eq!(offset_text(3_600), "UTC+01:00");
        assert_eq!(offset_text(-12_600), "UTC−03:30");
    }

    #[test]
    fn utc_fields_survive_parsing() {
        let at = Zone::Utc.instant("2026-11-22T09:00").unwrap();
        assert_eq!(at.to_string(), "2026-11-22T09:00:00Z");
        assert_eq!(Zone::Utc.field(at), "2026-11-22T09:00");
        assert_eq!(Zone::Utc.instant("soon"), None);
        assert_eq!(Zone::Utc.window(at, at.plus_seconds(3_600)), "Sun 22 Nov 09:00 to 10:00");
        assert_eq!(Zone::Utc.title(), "UTC");
    }
}
