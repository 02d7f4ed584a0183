//! The rows of a comparison of jobs. Pure.
//!
//! Two jobs differ in a row if their whole texts differ. The rows have shortened texts, because a script may have a
//! megabyte. Values of variables with names of secrets stay hidden.

use std::collections::BTreeSet;

use berth_types::ids::JobId;
use berth_types::jobs::{Job, JobState, NewJob};
use berth_types::metrics::Metrics;
use berth_types::money::{column_decimals, column_text, signed_column_text};
use berth_types::time::{Timestamp, duration_text};
use serde::{Deserialize, Serialize};

use super::super::launch::stored_draft::is_secret;
use super::super::rows::device_text;
use super::super::shell_words::join;
use super::super::text::{
    counted, hourly_text, limit_text, network_text, number, offering_text, priority_text, size_text,
    state_text, topology_text,
};
use super::super::usage::text::device_hours;
use super::lines::Quantity;
use crate::ui::percent;

/// The maximum number of characters of a cell.
const MAX_CELL_CHARS: usize = 400;
/// The maximum number of rows of variables.
const MAX_VARIABLES: usize = 200;

/// The answers of the portal about one job.
#[derive(Clone)]
pub struct ComparedJob {
    /// The job.
    pub job: Job,
    /// The start of the first attempt; absent before it.
    pub first_start: Option<Timestamp>,
    /// The readings of the last attempt.
    pub metrics: Metrics,
    /// The submission; absent without the right to run jobs.
    pub submission: Option<NewJob>,
}

/// The jobs in the order of the address; `None` for a job without access or after its deletion.
pub type Jobs<'a> = &'a [Option<ComparedJob>];

/// A row of the comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// The heading.
    pub name: String,
    /// A cell for each job; absent without a value and for a job that cannot be read.
    pub cells: Vec<Option<String>>,
    /// True if two jobs that can be read differ.
    pub differs: bool,
    /// True for a row of figures.
    pub figures: bool,
    /// True for a row of times: the cells have the exact time in UTC.
    pub times: bool,
}

/// Rows with a heading.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// The rows, at least one.
    pub rows: Vec<Row>,
}

impl Section {
    /// Returns true if a row differs.
    pub fn differs(&self) -> bool {
        self.rows.iter().any(|row| row.differs)
    }
}

/// The head of a column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// The id of the address.
    pub id: JobId,
    /// Name and state; absent for a job that cannot be read.
    pub job: Option<(String, JobState)>,
}

impl Column {
    /// Returns the heads of all columns. `ids` has the id of each job.
    pub fn list(ids: &[JobId], jobs: Jobs<'_>) -> Vec<Self> {
        let head = |(id, job): (&JobId, &Option<ComparedJob>)| Self {
            id: *id,
            job: job.as_ref().map(|one| (one.job.name.clone(), one.job.state)),
        };
        ids.iter().zip(jobs).map(head).collect()
    }
}

/// The whole text of a cell; the outer `None` is a job that cannot be read.
type Text = Option<Option<String>>;

fn texts(jobs: Jobs<'_>, cell: impl Fn(&ComparedJob) -> Option<String>) -> Vec<Text> {
    jobs.iter().map(|job| job.as_ref().map(&cell)).collect()
}

fn differ(texts: &[Text]) -> bool {
    let mut read = texts.iter().flatten();
    read.next().is_some_and(|first| read.any(|other| other != first))
}

/// Returns a text with at most [`MAX_CELL_CHARS`] characters of it.
fn shortened(text: String) -> String {
    let Some((end, _)) = text.char_indices().nth(MAX_CELL_CHARS) else { return text };
    let start = text.get(..end).unwrap_or_default();
    format!("{start}… ({} characters)", number(u64::try_from(text.chars().count()).unwrap_or(u64::MAX)))
}

/// Returns a letter for each text; equal texts have the same letter.
fn letters(texts: &[Text]) -> Vec<Option<char>> {
    let mut known: Vec<&String> = Vec::new();
    let mut letters = Vec::with_capacity(texts.len());
    for text in texts {
        let Some(Some(text)) = text else {
            letters.push(None);
            continue;
        };
        let place = known.iter().position(|one| *one == text).unwrap_or(known.len());
        if place == known.len() {
            known.push(text);
        }
        letters.push(u8::try_from(place).ok().map(|place| char::from(b'A'.saturating_add(place))));
    }
    letters
}

impl Row {
    fn of_texts(name: impl Into<String>, texts: Vec<Text>) -> Self {
        let differs = differ(&texts);
        let cells = texts.into_iter().map(|text| text.flatten().map(shortened)).collect();
        Self { name: name.into(), cells, differs, figures: false, times: false }
    }

    fn new(name: &str, jobs: Jobs<'_>, cell: impl Fn(&ComparedJob) -> Option<String>) -> Self {
        Self::of_texts(name, texts(jobs, cell))
    }

    /// Returns a row of figures.
    fn figures(name: &str, jobs: Jobs<'_>, cell: impl Fn(&ComparedJob) -> Option<String>) -> Self {
        Self { figures: true, ..Self::new(name, jobs, cell) }
    }

    /// Returns a row of times.
    fn times(name: &str, jobs: Jobs<'_>, cell: impl Fn(&ComparedJob) -> Timestamp) -> Self {
        Self { times: true, ..Self::figures(name, jobs, |one| Some(cell(one).to_string())) }
    }

    /// Returns a row of the submissions.
    fn submitted(name: &str, jobs: Jobs<'_>, cell: impl Fn(&NewJob) -> Option<String>) -> Self {
        Self::of_texts(name, submitted_texts(jobs, cell))
    }

    /// Returns a row with a letter in place of each text: `hidden value A`.
    fn lettered(name: impl Into<String>, kind: &str, texts: &[Text]) -> Self {
        let cell = |letter: Option<char>| letter.map(|letter| format!("{kind} {letter}"));
        let cells = letters(texts).into_iter().map(cell).collect();
        Self { name: name.into(), cells, differs: differ(texts), figures: false, times: false }
    }
}

/// Returns the texts of the submissions; a job without a known submission counts as one that cannot be read.
fn submitted_texts(jobs: Jobs<'_>, cell: impl Fn(&NewJob) -> Option<String>) -> Vec<Text> {
    jobs.iter().map(|job| job.as_ref().and_then(|one| one.submission.as_ref()).map(&cell)).collect()
}

/// Returns items as one text; `None` without an item.
fn listed(items: impl IntoIterator<Item = String>) -> Option<String> {
    let items: Vec<String> = items.into_iter().collect();
    (!items.is_empty()).then(|| items.join(", "))
}

fn program(jobs: Jobs<'_>) -> Vec<Row> {
    vec![
        Row::new("Image", jobs, |one| {
            Some(one.job.image.clone().unwrap_or_else(|| "none (system of the node)".into()))
        }),
        Row::new("Image digest", jobs, |one| {
            let mut digests = one.job.image_digests.clone();
            digests.dedup();
            listed(digests)
        }),
        Row::new("Command", jobs, |one| one.job.command.as_ref().map(|command| join(command))),
        Row::new("Script", jobs, |one| one.job.script.clone()),
    ]
}

fn inputs(jobs: Jobs<'_>) -> Vec<Row> {
    let contents = submitted_texts(jobs, |job| {
        if job.files.is_empty() { None } else { serde_json::to_string(&job.files).ok() }
    });
    let size = |job: &NewJob| job.files.values().map(|text| text.len()).sum::<usize>();
    vec![
        Row::new("Files", jobs, |one| listed(one.job.files.clone())),
        Row::figures("Size of the files", jobs, |one| {
            let bytes = one.submission.as_ref().map(size).filter(|bytes| *bytes > 0)?;
            Some(size_text(u64::try_from(bytes).unwrap_or(u64::MAX)))
        }),
        Row::lettered("Contents of the files", "contents", &contents),
        Row::new("Volumes", jobs, |one| {
            listed(one.job.volumes.iter().map(|volume| {
                let version =
                    volume.version.map(|version| format!(", version {version}")).unwrap_or_default();
                format!("{} at {} ({}{version})", volume.name, volume.path, volume.mode.name())
            }))
        }),
        Row::submitted("Secrets", jobs, |job| listed(job.secrets.iter().map(|secret| secret.name.clone()))),
        Row::new("Start after", jobs, |one| {
            listed(one.job.depends_on.iter().map(|dependency| dependency.job.to_string()))
        }),
        Row::submitted("Artifacts", jobs, |job| listed(job.artifacts.clone())),
    ]
}

fn devices(jobs: Jobs<'_>) -> Vec<Row> {
    vec![
        Row::new("Offering", jobs, |one| Some(offering_text(&one.job.offering, one.job.count))),
        Row::figures("Nodes", jobs, |one| Some(one.job.nodes.to_string())),
        Row::figures("Share of a board", jobs, |one| one.job.gpu_milli.map(percent)),
        Row::figures("CPU cores", jobs, |one| one.job.cpus.map(|cpus| cpus.to_string())),
        Row::figures("Host memory", jobs, |one| one.job.memory_mib.map(|mib| format!("{mib} MiB"))),
        Row::new("Topology", jobs, |one| {
            (!one.job.topology.is_any()).then(|| topology_text(one.job.topology).to_owned())
        }),
        Row::new("Network", jobs, |one| network_text(one.job.network).map(str::to_owned)),
        Row::new("RDMA", jobs, |one| one.job.rdma.then(|| "yes".to_owned())),
        Row::new("Boards", jobs, |one| listed(one.job.devices.iter().map(device_text))),
    ]
}

fn scheduling(jobs: Jobs<'_>) -> Vec<Row> {
    vec![
        Row::figures("Time limit", jobs, |one| Some(limit_text(one.job.max_duration_s))),
        Row::new("Priority", jobs, |one| Some(priority_text(one.job.priority).to_owned())),
        Row::new("Preemptible", jobs, |one| one.job.preemptible.then(|| "yes".to_owned())),
        Row::figures("Maximum retries", jobs, |one| {
            one.job.retry.as_ref().map(|retry| retry.max.to_string())
        }),
        Row::new("Stop when idle", jobs, |one| {
            let idle = one.job.stop_when_idle?;
            Some(format!("below {} % for {}", idle.below_percent, limit_text(idle.for_s.into())))
        }),
        Row::new("Reservation", jobs, |one| one.job.reservation.map(|id| id.to_string())),
    ]
}

fn labels(jobs: Jobs<'_>) -> Vec<Row> {
    let keys: BTreeSet<&String> = jobs.iter().flatten().flat_map(|one| one.job.labels.keys()).collect();
    keys.into_iter().map(|key| Row::new(key, jobs, |one| one.job.labels.get(key).cloned())).collect()
}

fn environment(jobs: Jobs<'_>) -> Vec<Row> {
    let submissions = jobs.iter().flatten().filter_map(|one| one.submission.as_ref());
    let names: BTreeSet<&String> = submissions.flat_map(|job| job.env.keys()).collect();
    let texts_of = |name: &String| submitted_texts(jobs, |job| job.env.get(name).cloned());
    let mut rows: Vec<Row> = names
        .iter()
        .take(MAX_VARIABLES)
        .map(|name| {
            let texts = texts_of(name);
            if is_secret(name) {
                Row::lettered(*name, "hidden value", &texts)
            } else {
                Row::of_texts(*name, texts)
            }
        })
        .collect();
    let rest: Vec<&String> = names.into_iter().skip(MAX_VARIABLES).collect();
    if !rest.is_empty() {
        let values = submitted_texts(jobs, |job| {
            serde_json::to_string(&rest.iter().map(|name| job.env.get(*name)).collect::<Vec<_>>()).ok()
        });
        let name = counted(rest.len(), "further variable", "further variables");
        rows.push(Row::lettered(name, "values", &values));
    }
    rows
}

fn result(jobs: Jobs<'_>) -> Vec<Row> {
    vec![
        Row::new("State", jobs, |one| Some(state_text(one.job.state))),
        Row::figures("Exit code", jobs, |one| one.job.exit_code.map(|code| code.to_string())),
        Row::new("Failure", jobs, |one| one.job.failure.as_ref().map(|failure| failure.detail.clone())),
        Row::figures("Attempts", jobs, |one| Some(one.job.attempt.to_string())),
    ]
}

/// Returns the metered time of all devices of a job in milliseconds; a share counts as its part of a board.
fn device_ms(job: &Job) -> i64 {
    let devices = i128::from(job.count) * i128::from(job.nodes);
    let milli = i128::from(job.metered_ms) * devices * i128::from(job.gpu_milli.unwrap_or(1_000));
    i64::try_from(milli / 1_000).unwrap_or(i64::MAX)
}

fn times_and_cost(jobs: Jobs<'_>) -> Vec<Row> {
    let decimals = column_decimals(jobs.iter().flatten().map(|one| one.job.cost_micros));
    let cost =
        Row::figures("Cost", jobs, |one| Some(column_text(one.job.cost_micros, &one.job.currency, decimals)));
    let first = jobs.iter().flatten().next().map(|one| &one.job);
    let difference = Row::figures("Cost difference from the first job", jobs, |one| {
        let first = first?;
        let comparable = one.job.id != first.id && one.job.currency == first.currency;
        let more = one.job.cost_micros.saturating_sub(first.cost_micros);
        comparable.then(|| signed_column_text(more, &one.job.currency, decimals))
    });
    let difference = Row { differs: cost.differs, ..difference };
    vec![
        Row::new("Submitted by", jobs, |one| Some(one.job.created_by.clone())),
        Row::times("Submitted", jobs, |one| one.job.created_at),
        Row::figures("Wait before the first start", jobs, |one| {
            one.first_start.map(|at| duration_text(at.millis_since(one.job.created_at)))
        }),
        Row::figures("Run time of all attempts", jobs, |one| Some(duration_text(one.job.metered_ms))),
        Row::figures("Device-hours", jobs, |one| Some(device_hours(device_ms(&one.job)))),
        Row::figures("Price an hour", jobs, |one| Some(hourly_text(&one.job))),
        cost,
        difference,
    ]
}

fn readings(jobs: Jobs<'_>) -> Vec<Row> {
    let rows = Quantity::ALL.into_iter().flat_map(|quantity| {
        let (mean, highest) =
            (format!("{}, mean", quantity.title()), format!("{}, highest", quantity.title()));
        [
            Row::figures(&mean, jobs, |one| quantity.mean(&one.metrics).map(|tenths| quantity.text(tenths))),
            Row::figures(&highest, jobs, |one| {
                quantity.highest(&one.metrics).map(|tenths| quantity.text(tenths))
            }),
        ]
    });
    rows.collect()
}

/// Returns all rows with a value, by section.
pub fn sections(jobs: Jobs<'_>) -> Vec<Section> {
    let all = [
        ("Result", result(jobs)),
        ("Time and cost", times_and_cost(jobs)),
        ("Program", program(jobs)),
        ("Inputs and outputs", inputs(jobs)),
        ("Devices", devices(jobs)),
        ("Scheduling", scheduling(jobs)),
        ("Labels", labels(jobs)),
        ("Environment", environment(jobs)),
        ("Readings of the last attempt", readings(jobs)),
    ];
    let with_values = |(title, mut rows): (&str, Vec<Row>)| {
        rows.retain(|row| row.cells.iter().any(Option::is_some));
        (!rows.is_empty()).then(|| Section { title: title.to_owned(), rows })
    };
    all.into_iter().filter_map(with_values).collect()
}

#[cfg(test)]
mod tests;
