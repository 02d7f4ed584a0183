//! Draws the charts of a job in the browser, from the seed and from what the stream brings.
//!
//! Browser only. The drawing itself is `js/chart.js`; here it is decided what is drawn.

use berth_types::ids::{JobId, OrgId};
use berth_types::metrics::{Metrics, Sample, Series};
use berth_types::time::Timestamp;
use leptos::html::Section;
use leptos::prelude::*;
use wasm_bindgen::JsCast;
use wasm_bindgen::prelude::wasm_bindgen;
use web_sys::Element;

use super::{Block, Place, Quantity, Tally, Track};
use crate::api::Answer;

/// Silence of the stream after which what it may have missed is read again.
const SILENCE_MS: f64 = 3_000.0;
/// What a live chart shows, in seconds; the same as in `js/chart.js`.
const SHOWN_S: i64 = 600;
/// The words of a chart change no more often than this, for those who hear them.
const WORDS_MS: f64 = 5_000.0;

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
    fn window(this: &LiveChart, seconds: f64);

    #[wasm_bindgen(method)]
    fn limit(this: &LiveChart, max: f64);

    #[wasm_bindgen(method)]
    fn destroy(this: &LiveChart);
}

/// A chart in the page, until it is dropped.
struct Shown(LiveChart);

impl Drop for Shown {
    fn drop(&mut self) {
        self.0.destroy();
    }
}

/// One quantity of one device.
struct Plot {
    place: Place,
    track: Track,
    tally: Tally,
    max: f64,
    /// Readings that wait for the chart to be in the page.
    waiting: (Vec<f64>, Vec<f64>),
    shown: Option<Shown>,
    said_ms: f64,
}

impl Plot {
    fn new(place: Place, track: Track) -> Self {
        let max = largest(track.what, 0.0);
        let (tally, waiting) = (Tally::default(), (Vec::new(), Vec::new()));
        Self { place, track, tally, max, waiting, shown: None, said_ms: 0.0 }
    }

    /// Takes what a series tells; newer readings that came meanwhile stay.
    fn take_series(&mut self, series: &Series) {
        let what = self.track.what;
        let column = what.column(series);
        for value in &column {
            self.tally.add(*value);
        }
        self.max = largest(what, series.memory_total_mib);
        let mut xs = series.at_s.clone();
        let mut ys: Vec<f64> = column.iter().map(|value| value.unwrap_or(f64::NAN)).collect();
        match &self.shown {
            Some(shown) => {
                shown.0.limit(self.max);
                shown.0.set(xs, ys);
            }
            None => {
                let last = xs.last().copied().unwrap_or(f64::NEG_INFINITY);
                let (old_xs, old_ys) = std::mem::take(&mut self.waiting);
                for (x, y) in old_xs.into_iter().zip(old_ys).filter(|(x, _)| *x > last) {
                    xs.push(x);
                    ys.push(y);
                }
                self.waiting = (xs, ys);
            }
        }
        self.tell();
    }

    fn take_sample(&mut self, sample: &Sample) {
        let value = reading(self.track.what, sample);
        self.tally.add(value);
        let (x, y) = (seconds(sample.at), value.unwrap_or(f64::NAN));
        match &self.shown {
            Some(shown) => shown.0.push(x, y),
            None => {
                self.waiting.0.push(x);
                self.waiting.1.push(y);
            }
        }
        self.tell();
    }

    fn mount(&mut self, element: &Element) {
        let what = self.track.what;
        let chart = LiveChart::new(element, what.title(), what.unit(), self.max);
        let (xs, ys) = std::mem::take(&mut self.waiting);
        chart.set(xs, ys);
        self.shown = Some(Shown(chart));
    }

    /// Brings the words of the frame up to date.
    fn tell(&mut self) {
        let note = self.tally.note();
        if self.track.note.try_get_untracked() != Some(note) {
            let _ = self.track.note.try_set(note);
        }
        let now = js_sys::Date::now();
        if now - self.said_ms >= WORDS_MS {
            self.said_ms = now;
            let _ = self.track.label.try_set(self.tally.label(self.track.what));
        }
    }
}

/// Everything that is drawn of a job.
pub(super) struct Live {
    org: OrgId,
    job: JobId,
    blocks: RwSignal<Vec<Block>>,
    plots: Vec<Plot>,
    last: Option<Timestamp>,
    heard_ms: Option<f64>,
    fetching: bool,
    ended: bool,
}

type Hand = StoredValue<Live, LocalStorage>;

/// Starts to draw, and to listen for more. The frames find it in the context.
pub(super) fn start(org: OrgId, job: JobId, seed: Metrics, blocks: RwSignal<Vec<Block>>, over: bool) {
    let mut plots = Vec::new();
    for block in blocks.get_untracked() {
        if let Some(place) = block.place {
            plots.extend(block.tracks.into_iter().map(|track| Plot::new(place, track)));
        }
    }
    let mut live = Live { org, job, blocks, plots, last: None, heard_ms: None, fetching: false, ended: over };
    for series in &seed.series {
        live.take_series(series);
    }
    let hand: Hand = StoredValue::new_local(live);
    provide_context(hand);
    if seed.step_s > 1 && !over {
        // The seed is of the whole life of the job, and what is shown first is the end of it.
        with(hand, |live| live.fetch(hand, live.last.map(|last| last.plus_seconds(-SHOWN_S))));
    }
    let resume = move || format!("/api/v1/orgs/{org}/jobs/{job}/metrics");
    crate::live::open(resume, &["sample", "beat", "end"], move |name: &str, data: &str, _: &str| {
        with(hand, |live| live.hear(hand, name, data));
    });
}

/// Draws a quantity in its frame as soon as that is in the page, and for as long.
pub(super) fn show(section: NodeRef<Section>, place: Option<Place>, what: Quantity) {
    let (Some(place), Some(hand)) = (place, use_context::<Hand>()) else { return };
    Effect::new(move || {
        if let Some(element) = section.get() {
            let element: Element = element.unchecked_into();
            with(hand, |live| live.mount(place, what, &element));
        }
    });
    on_cleanup(move || with(hand, |live| live.unmount(place, what)));
}

/// Does nothing when the page is gone already.
fn with(hand: Hand, act: impl FnOnce(&mut Live)) {
    let _ = hand.try_update_value(act);
}

impl Live {
    fn plot(&mut self, place: Place, what: Quantity) -> Option<&mut Plot> {
        self.plots.iter_mut().find(|plot| plot.place == place && plot.track.what == what)
    }

    fn mount(&mut self, place: Place, what: Quantity, element: &Element) {
        if let Some(plot) = self.plot(place, what)
            && plot.shown.is_none()
        {
            plot.mount(element);
        }
        self.show_span();
    }

    fn unmount(&mut self, place: Place, what: Quantity) {
        if let Some(plot) = self.plot(place, what) {
            plot.shown = None;
        }
    }

    /// After the end the charts show the job's whole life. One chart tells all others.
    fn show_span(&self) {
        if self.ended
            && let Some(shown) = self.plots.iter().find_map(|plot| plot.shown.as_ref())
        {
            shown.0.window(0.0);
        }
    }

    /// Takes one event of the stream.
    fn hear(&mut self, hand: Hand, name: &str, data: &str) {
        let now = js_sys::Date::now();
        let silent_ms = self.heard_ms.replace(now).map_or(0.0, |before| now - before);
        if silent_ms > SILENCE_MS {
            self.fetch(hand, self.last);
        }
        match name {
            "sample" => {
                for sample in serde_json::from_str::<Vec<Sample>>(data).unwrap_or_default() {
                    self.take_sample(hand, &sample);
                }
            }
            "end" => {
                self.ended = true;
                self.show_span();
            }
            _ => {}
        }
    }

    fn take_sample(&mut self, hand: Hand, sample: &Sample) {
        self.last = self.last.max(Some(sample.at));
        let place = (sample.rank, sample.device);
        if !self.plots.iter().any(|plot| plot.place == place) {
            self.add_block(place);
            // A reading does not say how much memory the device has; the series does.
            self.fetch(hand, None);
        }
        for plot in self.plots.iter_mut().filter(|plot| plot.place == place) {
            plot.take_sample(sample);
        }
    }

    fn take_series(&mut self, series: &Series) {
        let place = (series.rank, series.device);
        if !self.plots.iter().any(|plot| plot.place == place) {
            self.add_block(place);
        }
        if let Some(last) = series.at_s.last() {
            self.last = self.last.max(Some(Timestamp::from_micros((last * 1e6) as i64)));
        }
        for plot in self.plots.iter_mut().filter(|plot| plot.place == place) {
            plot.take_series(series);
        }
    }

    /// Makes room for a device that was not known; the first takes the place that waited for it.
    fn add_block(&mut self, place: Place) {
        let block = Block::new(Some(place), None);
        self.plots.extend(block.tracks.iter().map(|track| Plot::new(place, track.clone())));
        let _ = self.blocks.try_update(|blocks| {
            blocks.retain(|block| block.place.is_some());
            blocks.push(block);
            blocks.sort_by_key(|block| block.place);
        });
    }

    /// Reads the series again, from a time on or from the beginning.
    fn fetch(&mut self, hand: Hand, from: Option<Timestamp>) {
        if self.fetching {
            return;
        }
        self.fetching = true;
        let from = from.map_or_else(String::new, |from| format!("?from={from}"));
        let path = format!("/orgs/{}/jobs/{}/metrics{from}", self.org, self.job);
        let request = crate::api::get::<Metrics>(path);
        wasm_bindgen_futures::spawn_local(async move {
            let answer: Answer<Metrics> = request.await;
            with(hand, |live| {
                live.fetching = false;
                // Without an answer the line keeps its gap, and the next silence asks again.
                for series in answer.map(|metrics| metrics.series).unwrap_or_default() {
                    live.take_series(&series);
                }
            });
        });
    }
}

fn seconds(at: Timestamp) -> f64 {
    at.micros() as f64 / 1e6
}

/// A value of a sample, in the unit that is shown.
fn reading(what: Quantity, sample: &Sample) -> Option<f64> {
    let value = match what {
        Quantity::Utilization => sample.utilization_percent,
        Quantity::Memory => sample.memory_used_mib,
        Quantity::Power => sample.power_watts,
        Quantity::Temperature => sample.temperature_celsius,
    };
    value.map(|value| what.shown(value))
}

/// The end of a chart's scale; 0 where only the readings tell.
fn largest(what: Quantity, memory_total_mib: f64) -> f64 {
    match what {
        Quantity::Utilization => 100.0,
        Quantity::Memory => what.shown(memory_total_mib),
        Quantity::Power | Quantity::Temperature => 0.0,
    }
}
