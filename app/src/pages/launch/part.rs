//! Parts of the form that are closed until somebody needs them, and numbers that may be left out.
//!
//! Must not close what somebody is at work in.

use std::str::FromStr;

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::parts::Call;

/// A part of the form under its title. It opens for an error in it, but never closes by itself.
#[component]
pub fn Part(
    /// What is pressed to open it.
    title: &'static str,
    /// The submission.
    call: Call,
    /// Where the portal says what is wrong in this part.
    pointers: &'static [&'static str],
    children: Children,
) -> impl IntoView {
    let part = NodeRef::<leptos::html::Details>::new();
    Effect::new(move || {
        let wrong = call.is_wrong_in(pointers);
        if wrong && let Some(part) = part.get() {
            part.set_open(true);
        }
    });
    view! {
        <details class="more" node_ref=part>
            <summary>{title}</summary>
            <div class="stack">{children()}</div>
        </details>
    }
}

/// A whole number that may be left out.
pub fn optional<T: FromStr>(
    text: &str,
    pointer: &str,
    detail: &str,
    errors: &mut Vec<FieldError>,
) -> Option<T> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let number = text.parse::<T>().ok();
    if number.is_none() {
        errors.push(FieldError::new(pointer, detail));
    }
    number
}

/// Brings whoever launched to the first field that is wrong: it may be far from the button.
pub fn go_to_first_wrong() {
    #[cfg(feature = "hydrate")]
    {
        use wasm_bindgen::JsCast;

        // Only then is the error drawn, and the part that it is in open.
        request_animation_frame(|| {
            let found = document().query_selector("#launch [aria-invalid=\"true\"]").ok().flatten();
            if let Some(field) = found.and_then(|field| field.dyn_into::<web_sys::HtmlElement>().ok()) {
                // A field that cannot be focused still says what is wrong.
                let _ = field.focus();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_may_be_left_out() {
        let mut errors = Vec::new();
        assert_eq!(optional::<u32>(" ", "/lease_s", "Whole seconds.", &mut errors), None);
        assert_eq!(optional::<u32>(" 60 ", "/lease_s", "Whole seconds.", &mut errors), Some(60));
        assert!(errors.is_empty());
        for no in ["-1", "1.5", "an hour", "99999999999"] {
            assert_eq!(optional::<u32>(no, "/lease_s", "Whole seconds.", &mut errors), None, "{no}");
        }
        assert_eq!(errors, vec![FieldError::new("/lease_s", "Whole seconds."); 4]);
    }
}
