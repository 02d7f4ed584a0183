//! The name of the time zone on the pages of reservations.

use leptos::prelude::*;

use crate::pages::parts::now_ms;
use crate::ui::use_zone;

/// The zone of the times with the place of its choice.
#[component]
pub fn ZoneNote() -> impl IntoView {
    let zone = use_zone();
    view! {
        <p class="quiet small">
            "Times in " {move || zone.get().title(now_ms())}
            ". The choice is at the foot of the side bar, and in More on a phone."
        </p>
    }
}
