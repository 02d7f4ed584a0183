//! The events of the streams, for the code that sends them and for the description of the API.

use berth_types::Page;
use berth_types::events::{JobChange, JobCost, JobEvent, LogChunk};
use berth_types::metrics::{Metrics, Sample};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// The data of an event.
#[derive(Clone, Copy)]
enum Data {
    /// A text with this meaning.
    Text(&'static str),
    /// A JSON value with this schema.
    Json(fn(&mut SchemaGenerator) -> Schema),
}

/// A kind of event.
pub struct EventKind {
    /// The value of the field `event`.
    pub name: &'static str,
    description: &'static str,
    /// The meaning of the field `id`; absent for events without an id.
    id: Option<&'static str>,
    data: Data,
}

/// A stream of events.
pub struct Stream {
    /// The kinds of events that the stream can have.
    pub kinds: &'static [&'static EventKind],
    /// True if a stream continues after the `id` of an event.
    pub resumable: bool,
    /// The rule for a new connection.
    reconnection: &'static str,
}

/// An answer in JSON that can also be a stream.
pub trait Streamed: JsonSchema {
    const STREAM: Stream;
}

/// The data of a heartbeat. Browsers ignore an event with empty data.
pub const BEAT_DATA: &str = "ok";

/// The data of the end of a complete stream.
pub const END_DATA: &str = "complete";

/// The heartbeat of every stream.
pub const BEAT: EventKind = EventKind {
    name: "beat",
    description: "The heartbeat, once a second.",
    id: None,
    data: Data::Text("The text `ok`."),
};

/// A change in the stream of an organization.
pub const ORG_CHANGE: EventKind = EventKind {
    name: "change",
    description: "A change of a job.",
    id: Some(
        "The time of the change in microseconds since 1970-01-01T00:00:00Z; absent without a recorded event.",
    ),
    data: Data::Json(json_data::<JobChange>),
};

/// A change in the stream of a job.
pub const JOB_CHANGE: EventKind = EventKind {
    name: "change",
    description: "A change of the job.",
    id: Some("The number `seq` of the recorded event; absent without one."),
    data: Data::Json(json_data::<JobChange>),
};

/// The meter of a running job.
pub const COST: EventKind = EventKind {
    name: "cost",
    description: "The meter of the running job.",
    id: None,
    data: Data::Json(json_data::<JobCost>),
};

/// A part of a log.
pub const LOG: EventKind = EventKind {
    name: "log",
    description: "The next bytes of the log.",
    id: Some("The offset of the next byte of the log."),
    data: Data::Json(json_data::<LogChunk>),
};

/// The end of a log.
pub const LOG_END: EventKind = EventKind {
    name: "end",
    description: "The last event: the log is complete, or its node is lost.",
    id: None,
    data: Data::Text("The text `complete` for a complete log; otherwise a sentence about the missing rest."),
};

/// The readings of a job's devices.
pub const SAMPLE: EventKind = EventKind {
    name: "sample",
    description: "The latest readings of the devices of a rank.",
    id: Some("The time of the readings in microseconds since 1970-01-01T00:00:00Z."),
    data: Data::Json(json_data::<Vec<Sample>>),
};

/// The end of a job's readings.
pub const SAMPLE_END: EventKind = EventKind {
    name: "end",
    description: "The last event: the job has ended.",
    id: None,
    data: Data::Text("The text `complete`."),
};

/// The changes of an organization's jobs.
pub const ORG_STREAM: Stream = Stream {
    kinds: &[&BEAT, &ORG_CHANGE],
    resumable: true,
    reconnection: "A client continues with the header `Last-Event-ID` or with `after`; the header wins. A \
                   continued stream repeats the changes of the last seconds before its position.",
};

/// The changes and the cost of a job.
pub const JOB_STREAM: Stream = Stream {
    kinds: &[&BEAT, &JOB_CHANGE, &COST],
    resumable: true,
    reconnection: "A client continues with the header `Last-Event-ID` or with `after`; the header wins.",
};

/// The log of a rank.
pub const LOG_STREAM: Stream = Stream {
    kinds: &[&BEAT, &LOG, &LOG_END],
    resumable: true,
    reconnection: "A client continues with the header `Last-Event-ID` or with `from`; the header wins.",
};

/// The readings of a job's devices.
pub const SAMPLE_STREAM: Stream = Stream {
    kinds: &[&BEAT, &SAMPLE, &SAMPLE_END],
    resumable: false,
    reconnection: "A new connection has only later readings; the answer in JSON has the earlier ones.",
};

impl Streamed for Page<JobEvent> {
    const STREAM: Stream = JOB_STREAM;
}

impl Streamed for Metrics {
    const STREAM: Stream = SAMPLE_STREAM;
}

fn json_data<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

impl EventKind {
    fn schema(&self, generator: &mut SchemaGenerator) -> Value {
        let data = match self.data {
            Data::Text(description) => json!({ "type": "string", "description": description }),
            Data::Json(schema) => json!({
                "type": "string",
                "description": "A value in JSON.",
                "contentMediaType": "application/json",
                "contentSchema": schema(generator),
            }),
        };
        let id = self.id.map(|description| json!({ "type": "string", "description": description }));
        let fields = [("event", Some(json!({ "const": self.name }))), ("id", id), ("data", Some(data))];
        let properties: Map<String, Value> =
            fields.into_iter().filter_map(|(name, field)| Some((name.to_owned(), field?))).collect();
        json!({
            "type": "object",
            "description": self.description,
            "properties": properties,
            "required": ["event", "data"],
        })
    }
}

impl Stream {
    /// The schema of the stream as a text.
    pub fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        let kinds: Vec<Value> = self.kinds.iter().map(|kind| kind.schema(generator)).collect();
        let description = format!(
            "Server-sent events. The heartbeat `beat` shows that the connection works. A stream ends without an \
             event when the caller loses the right to it. {}",
            self.reconnection
        );
        json_schema!({
            "type": "string",
            "description": description,
            "contentMediaType": "text/event-stream",
            "contentSchema": { "type": "array", "items": { "oneOf": kinds } },
        })
    }
}
