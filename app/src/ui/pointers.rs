//! Labels of fields from the JSON pointers of errors.

use berth_types::problems::{FieldError, Problem};

/// Fields with other labels than their names, as on the forms.
const LABELS: &[(&str, &str)] = &[
    ("/canary_percent", "Canary steps"),
    ("/checkpoint/dir", "Checkpoint directory"),
    ("/checkpoint/every_s", "Checkpoint interval"),
    ("/checkpoint/grace_s", "Preemption grace period"),
    ("/checkpoint/keep", "Checkpoints kept"),
    ("/class", "Storage class"),
    ("/count", "Devices"),
    ("/cpus", "CPU cores"),
    ("/depends_on", "Start after"),
    ("/email", "E-mail"),
    ("/ends_at", "End"),
    ("/env", "Environment variables"),
    ("/gpu_milli", "Share of a board"),
    ("/gpus_per_node", "Devices"),
    ("/keep_ended_jobs_days", "Removal after the end of a job"),
    ("/lease_s", "Offline tolerance"),
    ("/max_body_bytes", "Body limit"),
    ("/max_bytes", "Maximum size"),
    ("/max_duration_s", "Time limit"),
    ("/memory_mib", "Host memory"),
    ("/registry", "Registry secret"),
    ("/registry/secret", "Registry secret"),
    ("/repeat/count", "Occurrences"),
    ("/repeat/every", "Repeat"),
    ("/retry/max", "Retries"),
    ("/scaling/schedule", "Schedule"),
    ("/starts_at", "Start"),
    ("/stop_when_idle/below_percent", "Utilization below"),
    ("/stop_when_idle/for_s", "Idle period"),
    ("/url", "URL"),
];

/// Lists and maps, each with the name of one item.
const ITEMS: &[(&str, &str)] = &[
    ("artifacts", "Pattern"),
    ("canary_percent", "Step"),
    ("command", "Argument"),
    ("depends_on", "Dependency"),
    ("devices", "Offering"),
    ("domains", "Domain"),
    ("env", "Variable"),
    ("files", "File"),
    ("gpus", "Board"),
    ("grants", "Grant"),
    ("hosts", "Host name"),
    ("kinds", "Kind"),
    ("labels", "Label"),
    ("models", "Model"),
    ("networks", "Network"),
    ("ports", "Port"),
    ("ranges", "Range"),
    ("roles", "Line"),
    ("schedule", "Window"),
    ("secrets", "Secret"),
    ("taxes", "Tax"),
    ("volumes", "Volume"),
];

/// The endings of names with units, which a label does not need.
const UNITS: [&str; 5] = ["_micros", "_milli", "_mib", "_ms", "_s"];

/// Parts of items with other labels than their names.
const PARTS: [(&str, &str); 3] = [("env", "variable"), ("floor", "replicas"), ("mode", "access")];

/// Returns the name of a field as a phrase: `spend_per_hour_micros` is `spend per hour`.
fn phrase(name: &str) -> String {
    if let Some((_, part)) = PARTS.iter().find(|(known, _)| *known == name) {
        return (*part).to_owned();
    }
    let plain = UNITS.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name);
    plain.replace('_', " ")
}

/// Begins a phrase with a capital letter.
fn capitalized(phrase: &str) -> String {
    let mut letters = phrase.chars();
    letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect()
}

/// Returns the label of a field from its JSON pointer: `Time limit`, `Port 1`, `Secret 2, name`, `Variable SEED`.
/// The whole body has no label.
fn pointer_label(pointer: &str) -> String {
    if let Some((_, label)) = LABELS.iter().find(|(known, _)| *known == pointer) {
        return (*label).to_owned();
    }
    // The windows of a schedule are a list of their own on the form.
    let local = pointer.strip_prefix("/scaling").filter(|rest| rest.starts_with("/schedule/"));
    let (mut names, mut parts) = (local.unwrap_or(pointer).split('/').skip(1), Vec::new());
    while let Some(name) = names.next() {
        let one = ITEMS.iter().find(|(list, _)| *list == name).map(|(_, one)| *one);
        let item = one.and_then(|one| names.next().map(|key| item_label(one, key)));
        parts.push(item.unwrap_or_else(|| match name.parse::<u32>() {
            Ok(number) => format!("item {}", number.saturating_add(1)),
            Err(_) => phrase(name),
        }));
    }
    capitalized(&parts.join(", "))
}

/// Returns the label of an item: lists have numbers, maps have names.
fn item_label(one: &str, key: &str) -> String {
    match key.parse::<u32>() {
        Ok(number) => format!("{one} {}", number.saturating_add(1)),
        Err(_) if key.is_empty() => one.to_owned(),
        Err(_) => format!("{one} {}", key.replace("~1", "/").replace("~0", "~")),
    }
}

/// Returns the text of an error with the label of its field.
pub fn labelled_error(error: &FieldError) -> String {
    match pointer_label(&error.pointer) {
        label if label.is_empty() => error.detail.clone(),
        label => format!("{label}: {}", error.detail),
    }
}

/// Returns true if a pointer is of a field or of a part of it.
pub fn is_into(pointer: &str, field: &str) -> bool {
    pointer.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the first five errors of a field and of its parts as one text. Those of parts have the label of the part.
pub fn errors_into(problem: &Problem, field: &str) -> Option<String> {
    let inside = problem.errors.iter().filter(|error| is_into(&error.pointer, field));
    let text = |error: &FieldError| {
        if error.pointer == field { error.detail.clone() } else { labelled_error(error) }
    };
    let texts: Vec<String> = inside.take(5).map(text).collect();
    (!texts.is_empty()).then(|| texts.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_has_the_label_of_its_field() {
        for (pointer, label) in [
            ("", ""),
            ("/name", "Name"),
            ("/max_duration_s", "Time limit"),
            ("/retry/max", "Retries"),
            ("/ports/0", "Port 1"),
            ("/scaling/schedule", "Schedule"),
            ("/scaling/schedule/1/begin", "Window 2, begin"),
            ("/scaling/schedule/1/floor", "Window 2, replicas"),
            ("/scaling/max_replicas", "Scaling, max replicas"),
            ("/canary_percent", "Canary steps"),
            ("/canary_percent/1", "Step 2"),
            ("/secrets/1/name", "Secret 2, name"),
            ("/secrets/0/env", "Secret 1, variable"),
            ("/depends_on/4294967295/job", "Dependency 4294967295, job"),
            ("/env/SEED", "Variable SEED"),
            ("/files/a~1b~0.py", "File a/b~.py"),
            ("/labels/", "Label"),
            ("/ports", "Ports"),
            ("/command/0", "Argument 1"),
            ("/domains/1", "Domain 2"),
            ("/roles/0/group", "Line 1, group"),
            ("/limits/spend_per_hour_micros", "Limits, spend per hour"),
            ("/windows/2/starts_at", "Windows, item 3, starts at"),
            ("no pointer", ""),
        ] {
            assert_eq!(pointer_label(pointer), label, "{pointer}");
        }
        let error = FieldError::new("/ports/1", "Enter a port number.");
        assert_eq!(labelled_error(&error), "Port 2: Enter a port number.");
        assert_eq!(labelled_error(&FieldError::new("", "No body.")), "No body.");
    }

    #[test]
    fn a_field_has_the_errors_of_its_parts() {
        let wrong = ["/domains/0", "/domains", "/domains_of_others"].map(|at| FieldError::new(at, "Wrong."));
        let problem = Problem::invalid(wrong.into());
        assert_eq!(errors_into(&problem, "/domains").as_deref(), Some("Domain 1: Wrong. Wrong."));
        assert_eq!(errors_into(&problem, "/roles"), None);
    }
}
