//! The labels of a node: those that count, those that its worker reports, and the dialog that sets them.

use std::collections::BTreeMap;

use berth_types::nodes::{Node, PatchNode};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;

use super::super::super::dialog_form::DialogForm;
use super::super::super::parts::{Call, CallProblem};
use super::dialog::NodeDialog;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/labels"];

/// Returns the labels as a text of `name=value`.
fn text(labels: &BTreeMap<String, String>, separator: &str) -> String {
    labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(separator)
}

/// Returns the reported labels that do not count: `reported: rack=r1`; `None` without such labels.
fn uncounted_text(node: &Node) -> Option<String> {
    let counts = |name: &String, value: &String| node.labels.get(name) == Some(value);
    let uncounted: BTreeMap<String, String> = node
        .reported_labels
        .iter()
        .filter(|(name, value)| !counts(name, value))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    (!uncounted.is_empty()).then(|| format!("reported: {}", text(&uncounted, ", ")))
}

/// Returns the labels of a node as chips, and the reported labels that do not count; `None` without labels.
pub fn label_chips(node: &Node) -> Option<AnyView> {
    let chip = |(name, value): (&String, &String)| {
        let text = format!("{name}={value}");
        view! { <span class="tag tag--label">{text}</span> }.into_any()
    };
    let chips: Vec<AnyView> = node.labels.iter().map(chip).collect();
    let reported = uncounted_text(node);
    if chips.is_empty() && reported.is_none() {
        return None;
    }
    let reported = reported.map(|text| view! { <span class="table__sub">{text}</span> });
    Some(view! { <span class="tags">{chips}</span> {reported} }.into_any())
}

/// Parses lines of `name=value`. Empty lines are left out.
///
/// # Errors
/// A line has no name or no value, or a name is there twice.
fn parse(lines: &str) -> Result<BTreeMap<String, String>, Vec<Wrong>> {
    let mut labels = BTreeMap::new();
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let parts = line.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
        let Some((name, value)) = parts.filter(|(name, value)| !name.is_empty() && !value.is_empty()) else {
            let detail =
                format!("Enter one label per line as name=value. The line “{line}” has no name or no value.");
            return Err(vec![Wrong::new("/labels", detail)]);
        };
        if labels.insert(name.to_owned(), value.to_owned()).is_some() {
            return Err(vec![Wrong::new("/labels", format!("The label “{name}” is there twice."))]);
        }
    }
    Ok(labels)
}

/// The dialog for the labels of a node.
#[component]
pub fn LabelsDialog(
    /// The signals of the page.
    state: NodeDialog,
) -> impl IntoView {
    let call = Call::idle();
    let NodeDialog { chosen, open, .. } = state;
    let lines = RwSignal::new(String::new());
    // The labels at the opening of the dialog. The portal refuses to replace others.
    let seen = RwSignal::new(BTreeMap::new());
    let node = state.node();
    // A refresh of the list changes no text that is being edited.
    let reset = move |()| {
        let labels = node.with_untracked(|node| node.as_ref().map(|node| node.labels.clone()));
        let labels = labels.unwrap_or_default();
        lines.set(text(&labels, "\n"));
        seen.set(labels);
    };
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Labels of {}", node.name),
        None => "Labels".to_owned(),
    });
    let reported = move || match node.get() {
        Some(node) if node.adopts_labels => {
            "The labels of the worker are adopted with each report.".to_owned()
        }
        Some(node) if node.reported_labels.is_empty() => "The worker reports no labels.".to_owned(),
        Some(node) => format!("The worker reports {}.", text(&node.reported_labels, ", ")),
        None => String::new(),
    };
    let change = move |body: PatchNode| {
        let Some(id) = chosen.get_untracked() else { return };
        state.change(call, id, api::nodes::patch(id, &body), move || open.set(false));
    };
    let submit = move |()| match lines.with_untracked(|lines| parse(lines)) {
        Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
        Ok(labels) => {
            let seen_labels = Some(seen.get_untracked());
            change(PatchNode { labels: Some(labels), seen_labels, ..PatchNode::default() });
        }
    };
    let adopt = move |_: leptos::ev::MouseEvent| {
        let seen_labels = Some(seen.get_untracked());
        change(PatchNode { adopt_labels: Some(true), seen_labels, ..PatchNode::default() });
    };
    let nothing_to_adopt = move || {
        node.with(|node| {
            node.as_ref().is_none_or(|node| node.reported_labels.is_empty() || node.adopts_labels)
        })
    };
    let further = view! {
        <button
            class="btn"
            type="button"
            aria-describedby="node-labels-adopt"
            disabled=nothing_to_adopt
            aria-disabled=move || call.pending.get().then_some("true")
            on:click=adopt
        >
            "Adopt reported labels"
        </button>
    };
    view! {
        <DialogForm
            id="node-labels"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb="Save labels"
            reset=Callback::new(reset)
            further=further.into_any()
            submit=Callback::new(submit)
        >
            <p>
                "The labels rack and switch decide about placements and power budgets. A power budget is kept under the name of its rack. Before you rename a rack, set a budget for the new name on the page Hardware. "
                {reported}
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <TextArea
                label="Labels"
                id="node-labels-text"
                rows=4
                max_length=8192
                value=lines
                hint="One name=value per line, at most 64. Saved labels replace all labels; the labels of the worker then no longer count."
                error=call.field("/labels")
            />
            <p class="field__hint" id="node-labels-adopt">
                "Adopted labels replace all labels, now and with each report of the worker."
            </p>
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_lines_of_name_and_value() {
        let labels = parse("rack=r1\n\n switch = s=2 \n").unwrap();
        assert_eq!(text(&labels, ", "), "rack=r1, switch=s=2");
        assert!(parse("").unwrap().is_empty());
        for lines in ["rack", "=r1", "rack=", "rack=r1\nrack=r2"] {
            assert!(parse(lines).is_err(), "{lines}");
        }
    }

    #[test]
    fn only_reported_labels_that_do_not_count_are_marked() {
        let mut node: Node = serde_json::from_value(serde_json::json!({
            "id": "node_00000000000000000000000001", "name": "pier-01", "state": "ready", "simulated": true,
            "unisolated": true, "driver_version": "1", "gpus": [], "labels": {"rack": "r1"},
            "reported_labels": {"rack": "r1"},
        }))
        .unwrap();
        assert_eq!(uncounted_text(&node), None);
        node.reported_labels.insert("switch".to_owned(), "s1".to_owned());
        assert_eq!(uncounted_text(&node).as_deref(), Some("reported: switch=s1"));
        node.labels.clear();
        assert_eq!(uncounted_text(&node).as_deref(), Some("reported: rack=r1, switch=s1"));
    }
}
