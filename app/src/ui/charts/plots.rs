//! Data of the charts of a job in the browser, from the seed and the stream of metrics.
//!
//! Browser only. `js/chart.js` draws the charts.

pub(super) mod board;

use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::{Metrics, Sample, Series};
use berth_types::time::Timestamp;
use leptos::html::Section;
use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::Element;

use super::{Block, DeviceKey, Quantity, Tally, Track};
use crate::api::Answer;

/// The length of silence after which the metrics are read again.
const SILENCE_MS: f64 = 3_000.0;
/// The period of a live chart in seconds; the same as in `js/chart.js`.
const WINDOW_S: i64 = 600;
/// The minimum interval between changes of an accessible name, for screen readers.
const LABEL_MS: f64 = 5_000.0;

#[wasm_bindgen(module = "/js/chart.js")]
extern "C" {
    type LiveChart;

    #[wasm_bindgen(constructor)]
    fn new(element: &Element, title: &str, unit: &str, max: f64) -> LiveChart;

    #[wasm_bindgen(method)]
    fn set(this: &LiveChart, xs: Vec<f64>, ys: Vec<f64>);

    #[wasm_bindgen(method)]
    fn push(this: &LiveChart, x: f64, y: f64);

    #[wasm_bindgen(method)]
    fn mark(this: &LiveChart, spans: Vec<f64>, events: Vec<f64>);

    #[wasm_bindgen(method)]
    fn window(this: &LiveChart, seconds: f64);

    #[wasm_bindgen(method)]
    fn limit(this: &LiveChart, max: f64);

    #[wasm_bindgen(method)]
    fn destroy(this: &LiveChart);
}

/// A chart of the page. The drop removes it.
struct ShownChart(LiveChart);

impl Drop for ShownChart {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// One quantity of one device.
struct Plot {
    device: DeviceKey,
    track: Track,
    tally: Tally,
    max: f64,
    /// Readings before the chart is in the page.
    pending: (Vec<f64>, Vec<f64>),
    chart: Option<ShownChart>,
    labelled_ms: f64,
}

impl Plot {
    fn new(device: DeviceKey, track: Track) -> Self {
        let max = scale_max(track.quantity, 0.0);
        let (tally, pending) = (Tally::default(), (Vec::new(), Vec::new()));
        Self { device, track, tally, max, pending, chart: None, labelled_ms: 0.0 }
    }

    /// Adds a series. Newer readings remain.
    fn add_series(&mut self, series: &Series) {
        let quantity = self.track.quantity;
        let column = quantity.column(series);
        for value in &column {
            self.tally.add(*value);
        }
        self.max = scale_max(quantity, series.memory_total_mib);
        let mut xs = series.at_s.clone();
        let mut ys: Vec<f64> = column.iter().map(|value| value.unwrap_or(f64::NAN)).collect();
        match &self.chart {
            Some(chart) => {
                chart.0.limit(self.max);
                chart.0.set(xs, ys);
            }
            None => {
                let last = xs.last().copied().unwrap_or(f64::NEG_INFINITY);
                let (old_xs, old_ys) = std::mem::take(&mut self.pending);
                for (x, y) in old_xs.into_iter().zip(old_ys).filter(|(x, _)| *x > last) {
                    xs.push(x);
                    ys.push(y);
                }
                self.pending = (xs, ys);
            }
        }
        self.update_text();
    }

    fn add_sample(&mut self, sample: &Sample) {
        let value = reading(self.track.quantity, sample);
        self.tally.add(value);
        let (x, y) = (seconds(sample.at), value.unwrap_or(f64::NAN));
        match &self.chart {
            Some(chart) => chart.0.push(x, y),
            None => {
                self.pending.0.push(x);
                self.pending.1.push(y);
            }
        }
        self.update_text();
    }

    fn mount(&mut self, element: &Element) {
        let quantity = self.track.quantity;
        let chart = LiveChart::new(element, quantity.title(), quantity.unit(), self.max);
        let (xs, ys) = std::mem::take(&mut self.pending);
        chart.set(xs, ys);
        self.chart = Some(ShownChart(chart));
    }

    /// Updates the note and the accessible name of the frame.
    fn update_text(&mut self) {
        let note = self.tally.note();
        if self.track.note.try_get_untracked() != Some(note) {
            let _ = self.track.note.try_set(note);
        }
        let now = js_sys::Date::now();
        if now - self.labelled_ms >= LABEL_MS {
            self.labelled_ms = now;
            let _ = self.track.label.try_set(self.tally.label(self.track.quantity));
        }
    }
}

/// The charts of a job.
pub(super) struct LiveCharts {
    org: OrgId,
    job: JobId,
    blocks: RwSignal<Vec<Block>>,
    plots: Vec<Plot>,
    last: Option<Timestamp>,
    last_event_ms: Option<f64>,
    fetching: bool,
    ended: bool,
}

type Handle = StoredValue<LiveCharts, LocalStorage>;

/// Starts the charts and the stream of metrics. The frames find the charts in the context.
pub(super) fn start(org: OrgId, job: JobId, seed: Metrics, blocks: RwSignal<Vec<Block>>, finished: bool) {
    let mut plots = Vec::new();
    for block in blocks.get_untracked() {
        if let Some(device) = block.device {
            plots.extend(block.tracks.into_iter().map(|track| Plot::new(device, track)));
        }
    }
    let (last, last_event_ms) = (None, None);
    let mut charts =
        LiveCharts { org, job, blocks, plots, last, last_event_ms, fetching: false, ended: finished };
    for series in &seed.series {
        charts.add_series(series);
    }
    let handle: Handle = StoredValue::new_local(charts);
    provide_context(handle);
    if seed.step_s > 1 && !finished {
        // The seed has the whole run at a coarse step; the live view shows its end.
        with(handle, |charts| charts.fetch(handle, charts.last.map(|last| last.plus_seconds(-WINDOW_S))));
    }
    let resume = move || format!("/api/v1/orgs/{org}/jobs/{job}/metrics");
    crate::live::open(resume, &["sample", "beat", "end"], move |name: &str, data: &str, _: &str| {
        with(handle, |charts| charts.on_event(handle, name, data));
    });
}

/// Draws a quantity in its frame while the frame is in the page.
pub(super) fn show(section: NodeRef<Section>, device: Option<DeviceKey>, quantity: Quantity) {
    let (Some(device), Some(handle)) = (device, use_context::<Handle>()) else { return };
    Effect::new(move || {
        if let Some(element) = section.get() {
            let element: Element = element.unchecked_into();
            with(handle, |charts| charts.mount(device, quantity, &element));
        }
    });
    on_cleanup(move || with(handle, |charts| charts.unmount(device, quantity)));
}

/// Runs `act`, unless the page has ended.
fn with(handle: Handle, act: impl FnOnce(&mut LiveCharts)) {
    let _ = handle.try_update_value(act);
}

impl LiveCharts {
    fn plot(&mut self, device: DeviceKey, quantity: Quantity) -> Option<&mut Plot> {
        self.plots.iter_mut().find(|plot| plot.device == device && plot.track.quantity == quantity)
    }

    fn mount(&mut self, device: DeviceKey, quantity: Quantity, element: &Element) {
        if let Some(plot) = self.plot(device, quantity)
            && plot.chart.is_none()
        {
            plot.mount(element);
        }
        self.show_span();
    }

    fn unmount(&mut self, device: DeviceKey, quantity: Quantity) {
        if let Some(plot) = self.plot(device, quantity) {
            plot.chart = None;
        }
    }

    /// After the end the charts show the whole run of the job. One chart updates all others.
    fn show_span(&self) {
        if self.ended
            && let Some(chart) = self.plots.iter().find_map(|plot| plot.chart.as_ref())
        {
            chart.0.window(0.0);
        }
    }

    /// Processes an event of the stream.
    fn on_event(&mut self, handle: Handle, name: &str, data: &str) {
        let now = js_sys::Date::now();
        let silent_ms = self.last_event_ms.replace(now).map_or(0.0, |before| now - before);
        if silent_ms > SILENCE_MS {
            self.fetch(handle, self.last);
        }
        match name {
            "sample" => {
                for sample in serde_json::from_str::<Vec<Sample>>(data).unwrap_or_default() {
                    self.add_sample(handle, &sample);
                }
            }
            "end" => {
                self.ended = true;
                self.show_span();
            }
            _ => {}
        }
    }

    fn add_sample(&mut self, handle: Handle, sample: &Sample) {
        self.last = self.last.max(Some(sample.at));
        let device = (sample.rank, sample.device);
        if !self.plots.iter().any(|plot| plot.device == device) {
            self.add_block(device);
            // Only the series has the total memory of the device.
            self.fetch(handle, None);
        }
        for plot in self.plots.iter_mut().filter(|plot| plot.device == device) {
            plot.add_sample(sample);
        }
    }

    fn add_series(&mut self, series: &Series) {
        let device = (series.rank, series.device);
        if !self.plots.iter().any(|plot| plot.device == device) {
            self.add_block(device);
        }
        if let Some(last) = series.at_s.last() {
            self.last = self.last.max(Some(Timestamp::from_micros((last * 1e6) as i64)));
        }
        for plot in self.plots.iter_mut().filter(|plot| plot.device == device) {
            plot.add_series(series);
        }
    }

    /// Adds the block of a new device. The first device replaces the empty block.
    fn add_block(&mut self, device: DeviceKey) {
        let block = Block::new(Some(device), None);
        self.plots.extend(block.tracks.iter().map(|track| Plot::new(device, track.clone())));
        let _ = self.blocks.try_update(|blocks| {
            blocks.retain(|block| block.device.is_some());
            blocks.push(block);
            blocks.sort_by_key(|block| block.device);
        });
    }

    /// Reads the series again, from a time or from the start.
    fn fetch(&mut self, handle: Handle, from: Option<Timestamp>) {
        if self.fetching {
            return;
        }
        self.fetching = true;
        let from = from.map_or_else(String::new, |from| format!("?from={from}"));
        let path = format!("/orgs/{}/jobs/{}/metrics{from}", self.org, self.job);
        let request = crate::api::get::<Metrics>(path);
        wasm_bindgen_futures::spawn_local(async move {
            let answer: Answer<Metrics> = request.await;
            with(handle, |charts| {
                charts.fetching = false;
                // After a failed request the line keeps its gap until the next silence.
                for series in answer.map(|metrics| metrics.series).unwrap_or_default() {
                    charts.add_series(&series);
                }
            });
        });
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.micros() as f64 / 1e6
}

/// Returns a value of a sample in the unit of the chart.
fn reading(quantity: Quantity, sample: &Sample) -> Option<f64> {
    let value = match quantity {
        Quantity::Utilization => sample.utilization_percent,
        Quantity::Memory => sample.memory_used_mib,
        Quantity::Power => sample.power_watts,
        Quantity::Temperature => sample.temperature_celsius,
    };
    value.map(|value| quantity.convert(value))
}

/// Returns the upper end of a scale; 0 without a fixed end.
fn scale_max(quantity: Quantity, memory_total_mib: f64) -> f64 {
    match quantity {
        Quantity::Utilization => 100.0,
        Quantity::Memory => quantity.convert(memory_total_mib),
        Quantity::Power | Quantity::Temperature => 0.0,
    }
}
