//! Drawing of the charts of a board in the browser.

use berth_types::metrics::Series;
use leptos::html::Section;
use leptos::prelude::*;
use wasm_bindgen::JsCast;
use web_sys::Element;

use super::super::{ChartMarks, Quantity};
use super::{LiveChart, ShownChart, scale_max};

/// Draws a quantity in its frame while the frame is in the page, anew after each change.
pub(in crate::ui::charts) fn draw(
    section: NodeRef<Section>,
    quantity: Quantity,
    series: Memo<Series>,
    marks: Memo<ChartMarks>,
    window_s: RwSignal<u32>,
) {
    let shown = StoredValue::new_local(None::<ShownChart>);
    Effect::new(move || {
        let Some(element) = section.get() else { return };
        let element: Element = element.unchecked_into();
        let (xs, ys, max) = series.with(|series| {
            let column = quantity.column(series);
            let ys: Vec<f64> = column.into_iter().map(|value| value.unwrap_or(f64::NAN)).collect();
            (series.at_s.clone(), ys, scale_max(quantity, series.memory_total_mib))
        });
        let (spans, events) = marks.with(|marks| {
            let spans: Vec<f64> = marks.spans.iter().flat_map(|(begin, end)| [*begin, *end]).collect();
            (spans, marks.events.clone())
        });
        let window_s = f64::from(window_s.get());
        let _ = shown.try_update_value(|shown| {
            let chart = shown.get_or_insert_with(|| {
                ShownChart(LiveChart::new(&element, quantity.title(), quantity.unit(), max))
            });
            chart.0.mark(spans, events);
            chart.0.set(xs, ys);
            chart.0.window(window_s);
        });
    });
}
