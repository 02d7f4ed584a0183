//! Ports of a job, which can be opened in the browser.
//!
//! Checks only the format of numbers.

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::parts::Call;
use super::errors_at;
use super::form::Form;
use crate::ui::Field;

/// Parses port numbers from a text such as `8888, 6006`.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<u32> {
    let parts = text.split(|c: char| c.is_whitespace() || c == ',').filter(|part| !part.is_empty());
    let read = |part: &str| {
        let port = part.parse::<u32>().ok();
        if port.is_none() {
            errors.push(FieldError::new("/ports", format!("{part}: expected a port number, such as 8888.")));
        }
        port
    };
    parts.filter_map(read).collect()
}

/// The field of port numbers and the choice of the URL path.
#[component]
pub fn PortFields(
    /// The form.
    form: Form,
    /// The submission.
    call: Call,
) -> impl IntoView {
    view! {
        <Field
            label="Ports"
            name="ports"
            kind="text"
            value=form.ports
            hint=Some("TCP port numbers of the job, comma-separated, such as 8888 for a notebook. Open the ports in the browser while the job runs. Empty: no ports.".to_owned())
            error=errors_at(call, "/ports")
            autocomplete=Some("off")
        />
        <label class="check">
            <input
                type="checkbox"
                name="ports_keep_path"
                prop:checked=move || form.ports_keep_path.get()
                on:change=move |ev| form.ports_keep_path.set(event_target_checked(&ev))
            />
            "Pass the full URL path to the job, for example for a notebook with --ServerApp.base_url=/$BERTH_JOB_ID/8888/"
        </label>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_separated_by_commas_or_blanks() {
        let mut errors = Vec::new();
        assert_eq!(parse(" 8888,6006  80,", &mut errors), [8_888, 6_006, 80]);
        assert!(errors.is_empty() && parse("", &mut errors).is_empty());
        assert_eq!(parse("80 http -1", &mut errors), [80]);
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/ports", "/ports"]);
    }
}
