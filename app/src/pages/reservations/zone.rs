//! The switch of the time zone on the pages of reservations.

use leptos::prelude::*;

use crate::pages::parts::now_ms;
use crate::ui::zone::{Zone, choose_zone, use_zone};

/// The switch of the zone with its name. It changes all pages.
#[component]
pub fn ZoneSwitch(
    /// False before hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let zone = use_zone();
    let choice = move |value: Zone, text: &'static str| {
        let initial = zone.get_untracked().is_utc() == value.is_utc();
        view! {
            <label>
                <input
                    type="radio"
                    name="zone"
                    checked=initial
                    disabled=move || !ready.get()
                    prop:checked=move || { zone.get().is_utc() == value.is_utc() }
                    on:change=move |_| choose_zone(zone, value)
                />
                {text}
            </label>
        }
    };
    view! {
        <div class="row">
            <div class="segmented" role="radiogroup" aria-label="Time zone of all pages">
                {choice(Zone::Utc, "UTC")} {choice(Zone::Local, "Local")}
            </div>
            <span class="quiet small">{move || zone.get().title(now_ms())}</span>
        </div>
    }
}
