//! The logo and the name of the portal.

use leptos::prelude::*;

use super::Mark;
use crate::identity::use_identity;

/// The logo with the name of the portal, or the mark of Berth in place of a logo.
#[component]
pub fn PortalName(
    /// The class of the mark.
    mark: &'static str,
) -> impl IntoView {
    let identity = use_identity();
    let logo = match identity.logo {
        // The size reserves the place of the image.
        Some(logo) => view! {
            <img
                class="brand__logo"
                src=logo.path
                width=logo.width_px.to_string()
                height=logo.height_px.to_string()
                alt=""
            />
        }
        .into_any(),
        None => view! { <Mark class=mark/> }.into_any(),
    };
    view! {
        {logo}
        <span class="brand__name">{identity.name}</span>
    }
}
