//! The labels of a job, as lines of text.
//!
//! Must not decide what the portal accepts: only what is no label at all is refused here.

use std::collections::BTreeMap;

use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::form::TextBlock;

/// The labels of lines such as `project=ocr`; lines without anything in them do not count.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut wrong = |detail: String| errors.push(FieldError::new("/labels", detail));
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        match line.split_once('=').map(|(key, value)| (key.trim(), value.trim())) {
            None => wrong(format!("Line {number} is no label such as project=ocr.")),
            Some(("", _)) => wrong(format!("Line {number} has no name before its =.")),
            Some((key, value)) => {
                if out.insert(key.to_owned(), value.to_owned()).is_some() {
                    wrong(format!("Line {number} names {key} a second time; keep one."));
                }
            }
        }
    }
    out
}

/// The text with a label on each line.
#[component]
pub fn LabelLines(
    /// The text.
    value: RwSignal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Labels"
            name="labels"
            value=value
            rows=2
            hint="One on each line, such as project=ocr. Usage and budgets can be told apart by them."
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
    fn what_is_no_label_is_told_by_its_line() {
        let (_, errors) = read("a=1\nproject\n\n=x\na=2");
        assert_eq!(errors.len(), 3);
        for (error, line) in errors.iter().zip(["Line 2 ", "Line 4 ", "Line 5 names a "]) {
            assert!(error.starts_with(line), "{error}");
        }
    }
}
