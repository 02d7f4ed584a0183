//! The readings of a job's devices as charts: four of each device, live while the job runs.
//!
//! The frames and what they say in words are drawn by the server; the lines exist only in the
//! browser, where `plots` draws them. What the driver does not report is said, never drawn as zero.

use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::{Metrics, Series};
use leptos::html::Section;
use leptos::prelude::*;

#[cfg(feature = "hydrate")]
mod plots;

/// Readings without a value after which the driver counts as not reporting it.
const ABSENT_AFTER: u32 = 3;
const NO_READINGS: &str = "No readings yet.";
const NOT_REPORTED: &str = "The driver does not report this for a MIG slice.";

/// What a chart shows.
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

    /// A value of the wire in the unit that is shown.
    fn shown(self, value: f64) -> f64 {
        if self == Self::Memory { value / 1_024.0 } else { value }
    }

    /// The column of a series, in the unit that is shown.
    fn column(self, series: &Series) -> Vec<Option<f64>> {
        let column = match self {
            Self::Utilization => &series.utilization_percent,
            Self::Memory => &series.memory_used_mib,
            Self::Power => &series.power_watts,
            Self::Temperature => &series.temperature_celsius,
        };
        column.iter().map(|value| value.map(|value| self.shown(value))).collect()
    }
}

/// What was read of one quantity of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Tally {
    readings: u32,
    reported: bool,
    last: Option<f64>,
}

impl Tally {
    fn of(column: &[Option<f64>]) -> Self {
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

    /// What stands where the line would be, when there is none.
    fn note(self) -> Option<&'static str> {
        match self {
            Self { readings: 0, .. } => Some(NO_READINGS),
            Self { reported: false, readings, .. } if readings >= ABSENT_AFTER => Some(NOT_REPORTED),
            _ => None,
        }
    }

    /// The chart in words.
    fn label(self, what: Quantity) -> String {
        let (title, unit) = (what.title(), what.unit());
        match self.last {
            Some(value) if what == Quantity::Memory => format!("{title}: {value:.1} {unit}"),
            Some(value) => format!("{title}: {value:.0} {unit}"),
            None if self.readings == 0 => format!("{title}: no readings yet"),
            None => format!("{title}: not reported"),
        }
    }
}

/// One chart, as its frame watches it.
#[derive(Clone)]
struct Track {
    what: Quantity,
    note: ArcRwSignal<Option<&'static str>>,
    label: ArcRwSignal<String>,
}

/// Rank and index of a device.
type Place = (u32, u32);

/// The charts of one device.
#[derive(Clone)]
struct Block {
    /// None before anything is known of the job's devices.
    place: Option<Place>,
    tracks: Vec<Track>,
}

impl Block {
    fn new(place: Option<Place>, series: Option<&Series>) -> Self {
        let track = |what: Quantity| {
            let tally = series.map_or_else(Tally::default, |series| Tally::of(&what.column(series)));
            Track { what, note: ArcRwSignal::new(tally.note()), label: ArcRwSignal::new(tally.label(what)) }
        };
        Self { place, tracks: QUANTITIES.into_iter().map(track).collect() }
    }
}

/// One block for each device, or one that waits for the first reading.
fn blocks_of(seed: &Metrics) -> Vec<Block> {
    if seed.series.is_empty() {
        return vec![Block::new(None, None)];
    }
    seed.series.iter().map(|series| Block::new(Some((series.rank, series.device)), Some(series))).collect()
}

/// The readings of a job, from what `seed` knows on.
#[component]
pub fn Charts(
    org: OrgId,
    job: JobId,
    seed: Metrics,
    /// The job ended before the page was made: its whole life is shown.
    over: bool,
) -> impl IntoView {
    let blocks = RwSignal::new(blocks_of(&seed));
    #[cfg(feature = "hydrate")]
    plots::start(org, job, seed, blocks, over);
    #[cfg(not(feature = "hydrate"))]
    let _ = (org, job, seed, over);
    view! {
        <div class="stack">
            <For
                each=move || blocks.get()
                key=|block: &Block| block.place
                children=move |block: Block| view! { <Device block=block blocks=blocks/> }
            />
        </div>
    }
}

/// The charts of one device, under its name when there are several.
#[component]
fn Device(block: Block, blocks: RwSignal<Vec<Block>>) -> impl IntoView {
    let place = block.place;
    let many = Signal::derive(move || blocks.with(|blocks| blocks.len() > 1));
    let heading = move || {
        let (rank, device) = place.unwrap_or_default();
        let ranks = blocks.with(|blocks| blocks.iter().any(|b| b.place.is_some_and(|(rank, _)| rank > 0)));
        if ranks { format!("Rank {rank}, device {device}") } else { format!("Device {device}") }
    };
    let figures: Vec<_> =
        block.tracks.into_iter().map(|track| view! { <Figure place=place track=track many=many/> }).collect();
    view! {
        <div class="stack">
            {move || {
                if many.get() { view! { <h3>{heading()}</h3> }.into_any() } else { ().into_any() }
            }}
            <div class="charts">{figures}</div>
        </div>
    }
}

/// The frame of one chart. Its size is the same with and without a line.
#[component]
fn Figure(place: Option<Place>, track: Track, many: Signal<bool>) -> impl IntoView {
    let Track { what, note, label } = track;
    let section = NodeRef::<Section>::new();
    #[cfg(feature = "hydrate")]
    plots::show(section, place, what);
    #[cfg(not(feature = "hydrate"))]
    let _ = place;
    let title = what.title();
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
                    Some(words) => view! { <p class="chart__absent">{words}</p> }.into_any(),
                    None => ().into_any(),
                }}
            </div>
        </section>
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
    fn what_is_never_reported_is_said() {
        let slice = series(0, vec![Some(1_024.0), None, Some(2_560.0)]);
        let note = |what: Quantity| Tally::of(&what.column(&slice)).note();
        assert_eq!(note(Quantity::Utilization), Some(NOT_REPORTED));
        assert_eq!(note(Quantity::Memory), None);
        assert_eq!(Tally::of(&[None, None]).note(), None, "two readings do not tell yet");
        assert_eq!(Tally::default().note(), Some(NO_READINGS));
    }

    #[test]
    fn words_tell_the_last_value() {
        let slice = series(0, vec![Some(1_024.0), Some(2_560.0)]);
        let label = |what: Quantity| Tally::of(&what.column(&slice)).label(what);
        assert_eq!(label(Quantity::Memory), "Memory: 2.5 GiB");
        assert_eq!(label(Quantity::Power), "Power: not reported");
        assert_eq!(Tally::default().label(Quantity::Power), "Power: no readings yet");
    }

    #[test]
    fn there_is_always_a_block() {
        let places = |series: Vec<Series>| {
            blocks_of(&Metrics { step_s: 1, series }).iter().map(|block| block.place).collect::<Vec<_>>()
        };
        assert_eq!(places(Vec::new()), [None]);
        let two = vec![series(0, Vec::new()), series(1, Vec::new())];
        assert_eq!(places(two), [Some((0, 0)), Some((0, 1))]);
    }
}
