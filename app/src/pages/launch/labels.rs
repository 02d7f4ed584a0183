//! Labels of a job, one per line.
//!
//! Checks only the format of lines.

use std::collections::BTreeMap;

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::form::TextBlock;

/// Parses lines such as `project=ocr`, without empty lines.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut refuse = |detail: String| errors.push(FieldError::new("/labels", detail));
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            None => refuse(format!("Line {number}: expected key=value, such as project=ocr.")),
            Some(("", _)) => refuse(format!("Line {number}: expected a key before the =.")),
            Some((key, value)) => {
                if out.insert(key.to_owned(), value.to_owned()).is_some() {
                    refuse(format!("Line {number}: duplicate key {key}; remove one line."));
                }
            }
        }
    }
    out
}

/// The field with one label per line.
#[component]
pub fn LabelLines(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Labels"
            name="labels"
            value=value
            rows=2
            hint="One per line, such as project=ocr. Usage and budgets can be grouped by label."
            error=error
        />
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Vec<(String, String)>, Vec<String>) {
        let mut errors = Vec::new();
        let labels = parse(text, &mut errors).into_iter().collect();
        assert!(errors.iter().all(|error| error.pointer == "/labels"));
        (labels, errors.into_iter().map(|error| error.detail).collect())
    }

    #[test]
    fn every_line_is_a_label() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let (labels, errors) = read("\n project = ocr \r\nformula=a=b\nempty=\n\n");
        assert_eq!(labels, [pair("empty", ""), pair("formula", "a=b"), pair("project", "ocr")]);
        assert_eq!((errors, read("")), (vec![], (vec![], vec![])));
    }

    #[test]
    fn each_error_has_its_line() {
        let (_, errors) = read("a=1\nproject\n\n=x\na=2");
        assert_eq!(errors.len(), 3);
        for (error, line) in errors.iter().zip(["Line 2: ", "Line 4: ", "Line 5: duplicate key a;"]) {
            assert!(error.starts_with(line), "{error}");
        }
    }
}
