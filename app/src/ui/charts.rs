//! Charts of the metrics of a job's devices, four per device, live until the end of the job.
//!
//! The server renders frames and labels; `plots` draws the lines in the browser. Values that the driver does
//! not report appear as a text, never as zero.

use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::{Metrics, Series};
use leptos::html::Section;
use leptos::prelude::*;

mod board;
#[cfg(feature = "hydrate")]
mod plots;

pub use board::BoardCharts;

/// The number of readings without a value after which a quantity counts as not reported.
const UNREPORTED_AFTER: u32 = 3;
const NO_READINGS: &str = "No metrics yet.";
const NOT_REPORTED: &str = "The driver does not report this value for a MIG slice.";

/// The marked times of charts, in seconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChartMarks {
    /// The begin and the end of each shaded span.
    pub spans: Vec<(f64, f64)>,
    /// The times of vertical lines.
    pub events: Vec<f64>,
}

/// The quantity of a chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Quantity {
    Utilization,
    Memory,
    Power,
    Temperature,
}

const QUANTITIES: [Quantity; 4] =
    [Quantity::Utilization, Quantity::Memory, Quantity::Power, Quantity::Temperature];

impl Quantity {
    fn title(self) -> &'static str {
        match self {
            Self::Utilization => "Utilization",
            Self::Memory => "Memory",
            Self::Power => "Power",
            Self::Temperature => "Temperature",
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Utilization => "%",
            Self::Memory => "GiB",
            Self::Power => "W",
            Self::Temperature => "°C",
        }
    }

    /// Converts a value of the API into the unit of the chart.
    fn convert(self, value: f64) -> f64 {
        if self == Self::Memory { value / 1_024.0 } else { value }
    }

    /// Returns the column of a series in the unit of the chart.
    fn column(self, series: &Series) -> Vec<Option<f64>> {
        let column = match self {
            Self::Utilization => &series.utilization_percent,
            Self::Memory => &series.memory_used_mib,
            Self::Power => &series.power_watts,
            Self::Temperature => &series.temperature_celsius,
        };
        column.iter().map(|value| value.map(|value| self.convert(value))).collect()
    }
}

/// The readings of one quantity of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    readings: u32,
    reported: bool,
    last: Option<f64>,
}

impl Tally {
    fn new(column: &[Option<f64>]) -> Self {
        let mut tally = Self::default();
        for value in column {
            tally.add(*value);
        }
        tally
    }

    fn add(&mut self, value: Option<f64>) {
        self.readings = self.readings.saturating_add(1);
        self.reported |= value.is_some();
        self.last = value;
    }

    /// Returns the text in place of a missing line.
    fn note(self) -> Option<&'static str> {
        match self {
            Self { readings: 0, .. } => Some(NO_READINGS),
            Self { reported: false, readings, .. } if readings >= UNREPORTED_AFTER => Some(NOT_REPORTED),
            _ => None,
        }
    }

    /// Returns the accessible name of the chart.
    fn label(self, quantity: Quantity) -> String {
        let (title, unit) = (quantity.title(), quantity.unit());
        match self.last {
            Some(value) if quantity == Quantity::Memory => format!("{title}: {value:.1} {unit}"),
            Some(value) => format!("{title}: {value:.0} {unit}"),
            None if self.readings == 0 => format!("{title}: no metrics yet"),
            None => format!("{title}: not reported"),
        }
    }
}

/// The state of the frame of a chart.
#[derive(Clone)]
struct Track {
    quantity: Quantity,
    note: ArcRwSignal<Option<&'static str>>,
    label: ArcRwSignal<String>,
}

/// Rank and index of a device.
type DeviceKey = (u32, u32);

/// The charts of one device.
#[derive(Clone)]
struct Block {
    /// `None` before the first reading of the job.
    device: Option<DeviceKey>,
    tracks: Vec<Track>,
}

impl Block {
    fn new(device: Option<DeviceKey>, series: Option<&Series>) -> Self {
        let track = |quantity: Quantity| {
            let tally = series.map_or_else(Tally::default, |series| Tally::new(&quantity.column(series)));
            let (note, label) = (ArcRwSignal::new(tally.note()), ArcRwSignal::new(tally.label(quantity)));
            Track { quantity, note, label }
        };
        Self { device, tracks: QUANTITIES.into_iter().map(track).collect() }
    }
}

/// Returns a block for each device, or one block before the first reading.
fn device_blocks(seed: &Metrics) -> Vec<Block> {
    if seed.series.is_empty() {
        return vec![Block::new(None, None)];
    }
    seed.series.iter().map(|series| Block::new(Some((series.rank, series.device)), Some(series))).collect()
}

/// The charts of a job. `seed` has the metrics until the load of the page.
#[component]
pub fn Charts(
    org: OrgId,
    job: JobId,
    seed: Metrics,
    /// True for a job that finished before the load of the page: the charts show the whole run.
    finished: bool,
) -> impl IntoView {
    let blocks = RwSignal::new(device_blocks(&seed));
    #[cfg(feature = "hydrate")]
    plots::start(org, job, seed, blocks, finished);
    #[cfg(not(feature = "hydrate"))]
    let _ = (org, job, seed, finished);
    view! {
        <div class="stack">
            <For
                each=move || blocks.get()
                key=|block: &Block| block.device
                children=move |block: Block| view! { <Device block=block blocks=blocks/> }
            />
        </div>
    }
}

/// The charts of one device, with a heading for several devices.
#[component]
fn Device(block: Block, blocks: RwSignal<Vec<Block>>) -> impl IntoView {
    let key = block.device;
    let many = Signal::derive(move || blocks.with(|blocks| blocks.len() > 1));
    let heading = move || {
        let (rank, device) = key.unwrap_or_default();
        let ranks = blocks.with(|blocks| blocks.iter().any(|b| b.device.is_some_and(|(rank, _)| rank > 0)));
        if ranks { format!("Rank {rank}, device {device}") } else { format!("Device {device}") }
    };
    let figures: Vec<_> =
        block.tracks.into_iter().map(|track| view! { <Figure device=key track=track many=many/> }).collect();
    view! {
        <div class="stack">
            {move || {
                if many.get() { view! { <h3>{heading()}</h3> }.into_any() } else { ().into_any() }
            }}
            <div class="charts">{figures}</div>
        </div>
    }
}

/// The frame of a chart, of constant size.
#[component]
fn Figure(device: Option<DeviceKey>, track: Track, many: Signal<bool>) -> impl IntoView {
    let Track { quantity, note, label } = track;
    let section = NodeRef::<Section>::new();
    #[cfg(feature = "hydrate")]
    plots::show(section, device, quantity);
    #[cfg(not(feature = "hydrate"))]
    let _ = device;
    let title = quantity.title();
    view! {
        <section class="chart series-1" aria-label=title node_ref=section>
            <div class="chart__head">
                {move || {
                    if many.get() {
                        view! { <h4 class="chart__title">{title}</h4> }.into_any()
                    } else {
                        view! { <h3 class="chart__title">{title}</h3> }.into_any()
                    }
                }}
                <p class="chart__values"></p>
            </div>
            <div class="chart__plot">
                <div data-plot="" role="img" aria-label=move || label.get()></div>
                {move || match note.get() {
                    Some(text) => view! { <p class="chart__absent">{text}</p> }.into_any(),
                    None => ().into_any(),
                }}
            </div>
        </section>
    }
}

/// Returns the step of a chart after a key, from 0 to `last`; `None` for other keys. Without a step the last one counts.
pub fn step_by_key(key: &str, at: Option<usize>, last: usize) -> Option<usize> {
    let now = at.unwrap_or(last).min(last);
    match key {
        "ArrowRight" | "ArrowUp" => Some(now.saturating_add(1).min(last)),
        "ArrowLeft" | "ArrowDown" => Some(now.saturating_sub(1)),
        "Home" => Some(0),
        "End" => Some(last),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(device: u32, memory: Vec<Option<f64>>) -> Series {
        let nothing = vec![None; memory.len()];
        Series {
            rank: 0,
            device,
            memory_total_mib: 20_480.0,
            at_s: (0..memory.len()).map(|step| step as f64).collect(),
            utilization_percent: nothing.clone(),
            memory_used_mib: memory,
            power_watts: nothing.clone(),
            temperature_celsius: nothing,
        }
    }

    #[test]
    fn an_unreported_quantity_has_a_note() {
        let slice = series(0, vec![Some(1_024.0), None, Some(2_560.0)]);
        let note = |quantity: Quantity| Tally::new(&quantity.column(&slice)).note();
        assert_eq!(note(Quantity::Utilization), Some(NOT_REPORTED));
        assert_eq!(note(Quantity::Memory), None);
        assert_eq!(Tally::new(&[None, None]).note(), None, "two readings do not suffice");
        assert_eq!(Tally::default().note(), Some(NO_READINGS));
    }

    #[test]
    fn the_label_has_the_last_value() {
        let slice = series(0, vec![Some(1_024.0), Some(2_560.0)]);
        let label = |quantity: Quantity| Tally::new(&quantity.column(&slice)).label(quantity);
        assert_eq!(label(Quantity::Memory), "Memory: 2.5 GiB");
        assert_eq!(label(Quantity::Power), "Power: not reported");
        assert_eq!(Tally::default().label(Quantity::Power), "Power: no metrics yet");
    }

    #[test]
    fn there_is_always_a_block() {
        let devices = |series: Vec<Series>| {
            device_blocks(&Metrics { step_s: 1, series }).iter().map(|block| block.device).collect::<Vec<_>>()
        };
        assert_eq!(devices(Vec::new()), [None]);
        let two = vec![series(0, Vec::new()), series(1, Vec::new())];
        assert_eq!(devices(two), [Some((0, 0)), Some((0, 1))]);
    }
}
