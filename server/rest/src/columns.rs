//! The columns of the answers in CSV, for the routes that write them and for the description of the API.

use berth_types::Page;
use berth_types::invoices::{Invoice, MonthStatement};
use berth_types::ledger::Transfer;
use berth_types::operations::{InventoryHost, OperatedJob};
use berth_types::quotas::AuditEvent;
use berth_types::usage::Usage;
use schemars::{JsonSchema, Schema, json_schema};

/// An answer in JSON that can also be a table in CSV.
pub trait Table: JsonSchema {
    /// The names of the columns, in the order of the file.
    const COLUMNS: &'static [&'static str];

    /// The schema of the table as a text.
    fn table_schema() -> Schema {
        let names: Vec<String> = Self::COLUMNS.iter().map(|name| format!("`{name}`")).collect();
        let description = format!(
            "CSV (RFC 4180). The first line has the columns {}. An absent value is an empty cell. A free text that \
             begins like a formula has a `'` before it.",
            names.join(", ")
        );
        json_schema!({
            "type": "string",
            "description": description,
            "contentMediaType": "text/csv",
            "x-columns": Self::COLUMNS,
        })
    }
}

impl Table for Page<OperatedJob> {
    const COLUMNS: &'static [&'static str] = &[
        "id",
        "org",
        "org_name",
        "name",
        "state",
        "attempt",
        "offering",
        "count",
        "nodes",
        "node_name",
        "labels",
        "created_by",
        "created_at",
        "started_at",
        "ended_at",
        "exit_code",
        "failure",
        "metered_ms",
        "cost_micros",
        "currency",
    ];
}

impl Table for Page<AuditEvent> {
    const COLUMNS: &'static [&'static str] = &[
        "seq",
        "id",
        "at",
        "org",
        "actor",
        "actor_id",
        "token_id",
        "session",
        "address",
        "request_id",
        "action",
        "subject",
        "detail",
        "before",
        "after",
        "hash",
    ];
}

impl Table for Page<Transfer> {
    const COLUMNS: &'static [&'static str] =
        &["at", "id", "kind", "amount_micros", "currency", "source", "source_id", "memo", "expires_at"];
}

impl Table for Usage {
    const COLUMNS: &'static [&'static str] = &["day", "key", "device_ms", "cost_micros", "currency"];
}

impl Table for MonthStatement {
    const COLUMNS: &'static [&'static str] =
        &["month", "kind", "item", "mode", "device_ms", "amount_micros", "currency", "unit_nano_per_second"];
}

/// A row for each line (`line`) and each tax (`tax`). Their amounts add up to the total.
impl Table for Invoice {
    const COLUMNS: &'static [&'static str] = &[
        "number",
        "month",
        "kind",
        "item",
        "mode",
        "device_ms",
        "unit_nano_per_second",
        "amount_micros",
        "currency",
        "seller",
        "seller_tax_id",
        "buyer",
        "buyer_address",
        "buyer_tax_id",
    ];
}

/// Each fact of a host is a row, so that new facts add no columns.
impl Table for Page<InventoryHost> {
    const COLUMNS: &'static [&'static str] =
        &["node", "name", "boards", "fact", "value", "usual", "last_seen_at"];
}
