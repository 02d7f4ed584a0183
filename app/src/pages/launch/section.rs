//! Collapsible sections of the form, and parsing of optional numbers.

use std::str::FromStr;

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::parts::{Call, focus_soon};

/// A collapsible section. It opens for an error inside, and never closes by itself.
#[component]
pub fn FormSection(
    /// The title, which opens the section.
    title: &'static str,
    /// The submission.
    call: Call,
    /// The error pointers of the section.
    pointers: &'static [&'static str],
    /// True for a section with input, which is open from the begin.
    filled: bool,
    children: Children,
) -> impl IntoView {
    let section = NodeRef::<leptos::html::Details>::new();
    Effect::new(move || {
        let has_error = call.has_errors_in(pointers);
        if has_error && let Some(section) = section.get() {
            section.set_open(true);
        }
    });
    view! {
        <details class="more" open=filled node_ref=section>
            <summary>{title}</summary>
            <div class="stack">{children()}</div>
        </details>
    }
}

/// Parses an optional whole number.
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

/// Focuses the first invalid field, which may be far from the button.
pub fn focus_first_invalid() {
    focus_soon("#launch [aria-invalid=\"true\"]".to_owned());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_optional_number_may_be_empty() {
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
