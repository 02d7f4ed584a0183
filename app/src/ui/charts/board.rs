//! Charts of a board, four quantities, with the times of jobs and events. The page brings newer readings.

use berth_types::board_samples::BoardSamples;
use berth_types::metrics::Series;
use leptos::html::Section;
use leptos::prelude::*;

use super::{ChartMarks, NO_READINGS, QUANTITIES, Quantity, Tally, UNREPORTED_AFTER};

const NO_VALUES: &str = "The driver does not report this value.";

/// Returns the readings of a board as the series of one device.
fn series(samples: &BoardSamples, memory_total_mib: f64) -> Series {
    Series {
        rank: 0,
        device: 0,
        memory_total_mib,
        at_s: samples.at_s.clone(),
        utilization_percent: samples.utilization_percent.clone(),
        memory_used_mib: samples.memory_used_mib.clone(),
        power_watts: samples.power_watts.clone(),
        temperature_celsius: samples.temperature_celsius.clone(),
    }
}

/// Returns the text in place of a missing line.
fn note(tally: Tally) -> Option<&'static str> {
    match tally {
        Tally { readings: 0, .. } => Some(NO_READINGS),
        Tally { reported: false, readings, .. } if readings >= UNREPORTED_AFTER => Some(NO_VALUES),
        _ => None,
    }
}

/// The charts of a board.
#[component]
pub fn BoardCharts(
    samples: RwSignal<BoardSamples>,
    marks: Memo<ChartMarks>,
    /// The memory of the board in MiB.
    memory_total_mib: f64,
    /// The shown time in seconds until the last reading.
    window_s: RwSignal<u32>,
) -> impl IntoView {
    let series = Memo::new(move |_| samples.with(|samples| series(samples, memory_total_mib)));
    let figure = |quantity: Quantity| {
        view! { <BoardFigure quantity=quantity series=series marks=marks window_s=window_s/> }
    };
    view! { <div class="charts">{QUANTITIES.map(figure).into_iter().collect_view()}</div> }
}

/// The frame of a chart, of constant size.
#[component]
fn BoardFigure(
    quantity: Quantity,
    series: Memo<Series>,
    marks: Memo<ChartMarks>,
    window_s: RwSignal<u32>,
) -> impl IntoView {
    let tally = Memo::new(move |_| series.with(|series| Tally::new(&quantity.column(series))));
    let section = NodeRef::<Section>::new();
    #[cfg(feature = "hydrate")]
    super::plots::board::draw(section, quantity, series, marks, window_s);
    #[cfg(not(feature = "hydrate"))]
    let _ = (marks, window_s);
    let title = quantity.title();
    view! {
        <section class="chart series-1" aria-label=title node_ref=section>
            <div class="chart__head">
                <h3 class="chart__title">{title}</h3>
                <p class="chart__values"></p>
            </div>
            <div class="chart__plot">
                <div data-plot="" role="img" aria-label=move || tally.get().label(quantity)></div>
                {move || match note(tally.get()) {
                    Some(text) => view! { <p class="chart__absent">{text}</p> }.into_any(),
                    None => ().into_any(),
                }}
            </div>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreported_quantity_of_a_board_has_a_note() {
        let nothing = vec![None; 3];
        let samples = BoardSamples {
            at_s: vec![0.0, 10.0, 20.0],
            utilization_percent: nothing.clone(),
            memory_used_mib: vec![None, None, Some(2_048.0)],
            power_watts: nothing.clone(),
            temperature_celsius: nothing,
            jobs: Vec::new(),
        };
        let found = series(&samples, 81_920.0);
        let tally = |quantity: Quantity| Tally::new(&quantity.column(&found));
        assert_eq!(note(tally(Quantity::Power)), Some(NO_VALUES));
        assert_eq!(note(tally(Quantity::Memory)), None);
        assert_eq!(tally(Quantity::Memory).label(Quantity::Memory), "Memory: 2.0 GiB");
        assert_eq!(note(Tally::default()), Some(NO_READINGS));
    }
}
