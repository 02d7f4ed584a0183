//! The record of the contract: `worker.descriptor.txt` has each name and number of `worker.proto`.
//!
//! Portals and workers of different builds work together, so fields, values and calls are only added.

use std::collections::BTreeSet;
use std::path::Path;

use protox::Compiler;
use protox::prost_reflect::{DescriptorPool, EnumDescriptor, FieldDescriptor, Kind, MethodDescriptor};

/// The package of the contract, with the point before a name.
const PACKAGE: &str = "berth.worker.v1.";
/// The variable for a write of the record after an addition.
const WRITE: &str = "BERTH_WRITE_DESCRIPTOR";

/// The name of a type without the package.
fn type_name(kind: &Kind) -> String {
    format!("{kind:?}").trim_start_matches(PACKAGE).to_owned()
}

fn field_line(field: &FieldDescriptor) -> String {
    let kind = match field.kind() {
        Kind::Message(entry) if entry.is_map_entry() => {
            let (key, value) = (entry.map_entry_key_field().kind(), entry.map_entry_value_field().kind());
            format!("map<{},{}>", type_name(&key), type_name(&value))
        }
        kind => type_name(&kind),
    };
    // An optional field has a synthetic oneof.
    let label = match field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
        Some(oneof) => format!("oneof {}", oneof.name()),
        None if field.is_list() || field.is_map() => "repeated".to_owned(),
        None if field.supports_presence() => "optional".to_owned(),
        None => "singular".to_owned(),
    };
    let (message, number) = (field.parent_message(), field.number());
    format!("field {}.{} {number} {kind} {label}", message.name(), field.name())
}

fn value_lines(values: &EnumDescriptor) -> Vec<String> {
    let line = |name: &str, number: i32| format!("enum {}.{name} {number}", values.name());
    values.values().map(|value| line(value.name(), value.number())).collect()
}

fn method_line(method: &MethodDescriptor) -> String {
    let stream = |streaming: bool| if streaming { "stream " } else { "" };
    let (request, response) = (method.input(), method.output());
    format!(
        "rpc {}.{} {}{} {}{}",
        method.parent_service().name(),
        method.name(),
        stream(method.is_client_streaming()),
        request.name(),
        stream(method.is_server_streaming()),
        response.name()
    )
}

/// One line for each message, field, value of an enum, and call.
fn descriptor_lines(pool: &DescriptorPool) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for message in pool.all_messages().filter(|message| !message.is_map_entry()) {
        lines.insert(format!("message {}", message.name()));
        lines.extend(message.fields().map(|field| field_line(&field)));
    }
    for values in pool.all_enums() {
        lines.extend(value_lines(&values));
    }
    for service in pool.services() {
        lines.extend(service.methods().map(|method| method_line(&method)));
    }
    lines
}

#[test]
fn names_and_numbers_are_only_added() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut compiler = Compiler::new([root]).unwrap();
    compiler.open_file(root.join("worker.proto")).unwrap();
    let present = descriptor_lines(&compiler.descriptor_pool());
    let file = root.join("worker.descriptor.txt");
    // Without the record, each line is an addition.
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let recorded: BTreeSet<String> = text.lines().map(str::to_owned).collect();
    let removed: Vec<&String> = recorded.difference(&present).collect();
    assert!(
        removed.is_empty(),
        "worker.proto changes or removes names or numbers of the contract: {removed:#?}"
    );
    if std::env::var_os(WRITE).is_some() {
        let text: String = present.iter().map(|line| format!("{line}\n")).collect();
        std::fs::write(&file, text).unwrap();
        return;
    }
    let added: Vec<&String> = present.difference(&recorded).collect();
    assert!(
        added.is_empty(),
        "worker.descriptor.txt lacks additions; run this test with {WRITE}=1: {added:#?}"
    );
}
