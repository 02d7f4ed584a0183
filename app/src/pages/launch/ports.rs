//! The ports of a job that can be opened in the browser.
//!
//! Must not decide what the portal accepts: only what is no number is refused here.

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::parts::Call;
use super::below;
use super::form::Form;
use crate::ui::Field;

/// The numbers of a text such as `8888, 6006`.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<u32> {
    let words = text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty());
    let read = |word: &str| {
        let port = word.parse::<u32>().ok();
        if port.is_none() {
            errors.push(FieldError::new(
                "/ports",
                format!("{word} is no port, which is a number such as 8888."),
            ));
        }
        port
    };
    words.filter_map(read).collect()
}

/// The field, and how what listens there is asked.
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
            hint=Some("On which it listens, such as 8888 for a notebook: they can be opened in the browser while it runs. Empty: none.".to_owned())
            error=below(call, "/ports")
            autocomplete=Some("off")
        />
        <label class="check">
            <input
                type="checkbox"
                name="ports_keep_path"
                prop:checked=move || form.ports_keep_path.get()
                on:change=move |ev| form.ports_keep_path.set(event_target_checked(&ev))
            />
            "It is told its whole path in the browser, such as a notebook with --ServerApp.base_url=/$BERTH_JOB_ID/8888/"
        </label>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_however_they_are_apart() {
        let mut errors = Vec::new();
        assert_eq!(parse(" 8888,6006  80,", &mut errors), [8_888, 6_006, 80]);
        assert!(errors.is_empty() && parse("", &mut errors).is_empty());
        assert_eq!(parse("80 http -1", &mut errors), [80]);
        let told: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(told, ["/ports", "/ports"]);
    }
}
