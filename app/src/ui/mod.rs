//! Components of the pages, independent of a page.

mod ansi;
mod berth_bar;
mod brand;
mod charts;
pub mod clock;
mod copy;
mod crumbs;
mod field;
mod log_view;
mod menu;
mod notice;
mod palette;
mod pointers;
mod retry;
mod size;
mod states;
mod suspended;
mod table;
mod terminal;
pub mod zone;

pub use berth_bar::{BarSize, BarTile, BerthBar, GpuBar, board_tiles, percent, runs};
pub use brand::PortalName;
pub use charts::{BoardCharts, ChartMarks, Charts, step_by_key};
pub use copy::{CopyBlock, CopyButton};
pub use crumbs::Crumbs;
pub use field::{
    EmailField, Field, FieldError, NumberField, PersonNameField, SelectField, TextArea, TextField,
};
pub use log_view::LogView;
pub use menu::Menu;
pub use notice::{NotFound, ProblemNotice};
pub use palette::{Palette, PaletteButton, PaletteData, PaletteSlot};
pub use pointers::{errors_into, is_into, labelled_error};
pub use retry::{Retry, RetryNotice};
pub use size::size_text;
pub use states::{
    BoardBadge, DeliveryBadge, InvoiceBadge, Mark, NodeBadge, PaymentBadge, PromiseBadge, ReplicaBadge,
    RequestBadge, ReservationBadge, RevisionBadge, ServiceBadge, StateBadge,
};
pub use suspended::suspended;
pub use table::{
    ACTIONS, SELECT, STATE, empty, empty_filtered, empty_linked, live_table, scroll_table, table_of,
};
pub use terminal::TerminalView;
pub use zone::{Zone, ZoneSelect, use_zone, zoned};

use berth_types::time::Timestamp;
use std::time::Duration;

use leptos::prelude::*;

/// A time in the zone of the page: shown in minutes, exact in UTC on hover and for machines.
#[component]
pub fn When(at: Timestamp) -> impl IntoView {
    let (exact, zone) = (at.to_string(), use_zone());
    view! { <time datetime=exact.clone() title=exact>{move || zone.get().minute(at)}</time> }
}

/// A time like [`When`], with its date and its time of day on a line each where one line has no room.
#[component]
pub fn WhenInLines(at: Timestamp) -> impl IntoView {
    let (exact, zone) = (at.to_string(), use_zone());
    let lines = move || {
        let text = zone.get().minute(at);
        let (date, time) = text.split_once(' ').unwrap_or((text.as_str(), ""));
        let (date, time) = (date.to_owned(), time.to_owned());
        view! { <span class="nowrap">{date}</span> " " <span class="nowrap">{time}</span> }
    };
    view! { <time datetime=exact.clone() title=exact>{lines}</time> }
}

/// Runs `work` once after `ms` milliseconds, unless the calling effect runs again first.
pub fn later(ms: u64, work: impl FnOnce() + 'static) {
    if let Ok(handle) = set_timeout_with_handle(work, Duration::from_millis(ms)) {
        on_cleanup(move || handle.clear());
    }
}

/// Returns a signal that is false before hydration. A form without hydration would post natively.
pub fn ready() -> ReadSignal<bool> {
    let (ready, set_ready) = signal(false);
    Effect::new(move || set_ready.set(true));
    ready
}

/// Navigates to a path of this app: by a redirect on the server, by the router in the browser.
pub fn go(path: &str) {
    #[cfg(feature = "ssr")]
    if let Some(options) = use_context::<leptos_axum::ResponseOptions>() {
        options.set_status(http::StatusCode::SEE_OTHER);
        if let Ok(value) = http::HeaderValue::from_str(path) {
            options.insert_header(http::header::LOCATION, value);
        }
    }
    #[cfg(not(feature = "ssr"))]
    leptos_router::hooks::use_navigate()(path, leptos_router::NavigateOptions::default());
}

/// Opens a URL outside of the app by a full load, such as a payment page.
pub fn open_url(url: &str) {
    #[cfg(feature = "hydrate")]
    if let Some(window) = web_sys::window() {
        // An invalid URL is ignored.
        let _ = window.location().assign(url);
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = url;
}

/// Redirects to a path of this app. In the browser the path takes the place of the present one in the history.
pub fn redirect_to(path: &str) {
    #[cfg(feature = "ssr")]
    go(path);
    #[cfg(not(feature = "ssr"))]
    {
        let navigate = leptos_router::hooks::use_navigate();
        let path = path.to_owned();
        // A navigation during the rendering of a page would be lost.
        Effect::new(move || {
            let options = leptos_router::NavigateOptions { replace: true, ..Default::default() };
            navigate(&path, options);
        });
    }
}

/// Sets the status of the response on the server; no effect in the browser.
pub(crate) fn set_status(code: u16) {
    #[cfg(feature = "ssr")]
    if let Some(options) = use_context::<leptos_axum::ResponseOptions>()
        && let Ok(status) = http::StatusCode::from_u16(code)
    {
        options.set_status(status);
    }
    #[cfg(not(feature = "ssr"))]
    let _ = code;
}
