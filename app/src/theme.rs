//! The theme of the visitor: the one of the system, light or dark. A cookie keeps the choice, so that the first
//! HTML has it.

use leptos::prelude::*;

#[cfg(all(feature = "ssr", not(feature = "hydrate")))]
use crate::cookies::cookie;
#[cfg(feature = "ssr")]
use crate::cookies::cookie_in;
use crate::cookies::store_cookie;

/// The theme of the pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Theme {
    #[default]
    System,
    Light,
    Dark,
}

impl Theme {
    pub const ALL: [Self; 3] = [Self::System, Self::Light, Self::Dark];

    /// Returns the value of the cookie and of the attribute `data-theme`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Light => "light",
            Self::Dark => "dark",
        }
    }

    /// Returns the text of the choice.
    pub const fn label(self) -> &'static str {
        match self {
            Self::System => "System theme",
            Self::Light => "Light theme",
            Self::Dark => "Dark theme",
        }
    }

    /// Returns the value of the attribute `data-theme`; none for the theme of the system.
    pub const fn attribute(self) -> Option<&'static str> {
        match self {
            Self::System => None,
            Self::Light | Self::Dark => Some(self.name()),
        }
    }

    /// Returns the theme with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|theme| theme.name() == name)
    }

    /// Returns the next theme of a circle.
    pub const fn following(self) -> Self {
        match self {
            Self::System => Self::Light,
            Self::Light => Self::Dark,
            Self::Dark => Self::System,
        }
    }
}

/// The name of the cookie.
const COOKIE: &str = "berth_theme";

/// Returns the theme of the first HTML.
#[cfg(feature = "hydrate")]
pub(crate) fn page_theme() -> Theme {
    let named = document().document_element().and_then(|root| root.get_attribute("data-theme"));
    named.and_then(|name| Theme::parse(&name)).unwrap_or_default()
}

/// Returns the theme of the cookie.
#[cfg(all(feature = "ssr", not(feature = "hydrate")))]
pub(crate) fn page_theme() -> Theme {
    parse_cookie(cookie(COOKIE))
}

/// Returns the theme of the cookie in a request.
#[cfg(feature = "ssr")]
pub fn requested_theme(headers: &http::HeaderMap) -> Theme {
    parse_cookie(cookie_in(headers, COOKIE))
}

#[cfg(feature = "ssr")]
fn parse_cookie(value: Option<String>) -> Theme {
    value.and_then(|name| Theme::parse(&name)).unwrap_or_default()
}

/// Returns the theme of the system without a page.
#[cfg(not(any(feature = "ssr", feature = "hydrate")))]
pub(crate) fn page_theme() -> Theme {
    Theme::System
}

/// Returns the theme of the page inside the app.
pub fn use_theme() -> RwSignal<Theme> {
    expect_context::<RwSignal<Theme>>()
}

/// Sets the theme of the page and of later visits.
pub fn choose_theme(theme: RwSignal<Theme>, chosen: Theme) {
    theme.set(chosen);
    #[cfg(feature = "hydrate")]
    if let Some(root) = document().document_element() {
        // Both fail only for invalid names of attributes.
        let _ = match chosen.attribute() {
            Some(name) => root.set_attribute("data-theme", name),
            None => root.remove_attribute("data-theme"),
        };
    }
    store_cookie(COOKIE, chosen.name());
}

/// The choice of the theme.
#[component]
pub fn ThemeSwitch(
    /// Unique in the page.
    id: &'static str,
) -> impl IntoView {
    let theme = use_theme();
    // A choice before hydration would be lost.
    let (ready, set_ready) = signal(false);
    Effect::new(move || set_ready.set(true));
    let options = Theme::ALL
        .into_iter()
        .map(|one| {
            view! { <option value=one.name() selected=move || theme.get() == one>{one.label()}</option> }
        })
        .collect_view();
    let choose = move |ev| {
        if let Some(chosen) = Theme::parse(&event_target_value(&ev)) {
            choose_theme(theme, chosen);
        }
    };
    view! {
        <label class="visually-hidden" for=id>"Theme"</label>
        <select
            class="select select--bare"
            id=id
            disabled=move || !ready.get()
            prop:value=move || theme.get().name()
            on:change=choose
        >
            {options}
        </select>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_theme_survives_its_name() {
        for theme in Theme::ALL {
            assert_eq!(Theme::parse(theme.name()), Some(theme));
        }
        assert_eq!(Theme::parse("blue"), None);
        assert_eq!(Theme::System.attribute(), None);
        assert_eq!(Theme::Dark.attribute(), Some("dark"));
    }

    #[test]
    fn the_circle_has_each_theme_once() {
        let circle = [
            Theme::System.following(),
            Theme::System.following().following(),
            Theme::System.following().following().following(),
        ];
        assert_eq!(circle, [Theme::Light, Theme::Dark, Theme::System]);
    }
}
