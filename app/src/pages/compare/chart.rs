//! The charts of a comparison, with one line for each job and one crosshair.
//!
//! Without inline styles: positions are coordinates, colours and dashes are classes. The line above a chart shows the
//! values of one step, by pointer or arrow keys; the table of the page has means and maxima.

use berth_types::time::duration_text;
use leptos::html::Div;
use leptos::prelude::*;

use super::lines::{Chart, Charts, HIGH, middle, path};
use super::rows::Column;
use super::table::{column_text, line_class, line_key};
use crate::ui::step_by_key;

/// Returns the step at a place of the plot; `None` outside of it. `x` and `width` are in pixels.
fn step_at(x: i32, width: i32, steps: usize) -> Option<usize> {
    if x < 0 || width <= 0 {
        return None;
    }
    let steps_i64 = i64::try_from(steps).ok()?;
    let step = i64::from(x).saturating_mul(steps_i64) / i64::from(width);
    usize::try_from(step).ok().filter(|step| *step < steps)
}

/// Returns the time from the start to a step: `12 min 04 s`.
fn step_text(step: usize, step_s: i64) -> String {
    let seconds = i64::try_from(step).unwrap_or(i64::MAX).saturating_mul(step_s);
    duration_text(seconds.min(i64::MAX / 1_000).saturating_mul(1_000))
}

/// Returns the value of a job in a step: `95 %`, or `absent`.
fn value_text(chart: &Chart, job: usize, step: usize) -> String {
    let value = chart.lines.get(job).and_then(|line| line.get(step).copied()).flatten();
    value.map_or_else(|| "absent".to_owned(), |tenths| chart.quantity.text(tenths))
}

/// Returns the values of all jobs in a step: `12 min 04 s: job 1 95 %, job 2 absent`.
fn step_values(chart: &Chart, step: usize, step_s: i64) -> String {
    let value = |job: usize| format!("job {} {}", job.saturating_add(1), value_text(chart, job, step));
    let values: Vec<String> = (0..chart.lines.len()).map(value).collect();
    format!("{}: {}", step_text(step, step_s), values.join(", "))
}

/// Returns the line above a chart.
fn values(chart: &Chart, at: Option<usize>, step_s: i64) -> AnyView {
    let Some(step) = at else {
        let reported = chart.lines.iter().flatten().any(Option::is_some);
        let text =
            if reported { "time since the start of the last attempt" } else { "not reported by the driver" };
        return view! { <span class="chart__time">{text}</span> }.into_any();
    };
    let value = |job: usize| {
        let text = format!("{} {}", job.saturating_add(1), value_text(chart, job, step));
        view! { <span class="chart__value">{line_key(job)}{text}</span> }
    };
    let each: Vec<_> = (0..chart.lines.len()).map(value).collect();
    view! { <span class="chart__time">{step_text(step, step_s)}</span> {each} }.into_any()
}

/// Returns the labels of the value axis.
fn scale(chart: &Chart) -> AnyView {
    let mark = |tenths: i64| view! { <span>{chart.quantity.text(tenths)}</span> };
    [chart.top, chart.top / 2, 0].map(mark).into_iter().collect_view().into_any()
}

/// Returns the labels of the time axis.
fn times(steps: usize, step_s: i64) -> AnyView {
    let mark = |step: usize| view! { <span>{step_text(step, step_s)}</span> };
    [0, steps / 2, steps].map(mark).into_iter().collect_view().into_any()
}

fn drawing(chart: &Chart, width: usize, at: RwSignal<Option<usize>>) -> AnyView {
    let wide = width.to_string();
    let frame = format!("0 0 {width} {HIGH}");
    let grid: Vec<AnyView> = [0, HIGH / 2, HIGH]
        .into_iter()
        .map(|y| {
            let y = y.to_string();
            view! { <line class="chart__grid" x1="0" x2=wide.clone() y1=y.clone() y2=y></line> }.into_any()
        })
        .collect();
    let line = |(index, line): (usize, &Vec<Option<i64>>)| {
        let class = format!("compare__line {}", line_class(index));
        let path = path(line, chart.top);
        view! { <path class=class d=path></path> }.into_any()
    };
    let lines: Vec<AnyView> = chart.lines.iter().enumerate().map(line).collect();
    let high = HIGH.to_string();
    let cross = move || {
        at.get().map(|step| {
            let x = middle(step).to_string();
            view! { <line class="compare__at" x1=x.clone() x2=x y1="0" y2=high.clone()></line> }
        })
    };
    view! {
        <svg
            class="compare__drawing"
            viewBox=frame
            preserveAspectRatio="none"
            aria-hidden="true"
            focusable="false"
        >
            {grid}
            {lines}
            {cross}
        </svg>
    }
    .into_any()
}

/// A chart with the line of values.
#[component]
fn Figure(
    chart: Chart,
    /// The width of the drawing.
    width: usize,
    steps: usize,
    /// The length of a step in seconds.
    step_s: i64,
    /// The step of the crosshair of all charts.
    at: RwSignal<Option<usize>>,
) -> impl IntoView {
    let plot = NodeRef::<Div>::new();
    let last = steps.saturating_sub(1);
    let over = move |event: leptos::ev::PointerEvent| {
        let width = plot.get_untracked().map_or(0, |plot| plot.client_width());
        let found = step_at(event.offset_x(), width, steps);
        if at.get_untracked() != found {
            at.set(found);
        }
    };
    let walk = move |event: leptos::ev::KeyboardEvent| {
        let Some(next) = step_by_key(&event.key(), at.get_untracked(), last) else { return };
        event.prevent_default();
        at.set(Some(next));
    };
    // The keyboard starts at the latest step.
    let focus_latest = move |_: leptos::ev::FocusEvent| {
        if at.get_untracked().is_none() {
            at.set(Some(last));
        }
    };
    let title = chart.quantity.title();
    let label = format!("{title}, mean of the devices; arrow keys change the time");
    let (drawing, scale, times) = (drawing(&chart, width, at), scale(&chart), times(steps, step_s));
    let chart = StoredValue::new(chart);
    let value_text = move || match at.get() {
        Some(step) => chart.with_value(|chart| step_values(chart, step, step_s)),
        None => "No time selected.".to_owned(),
    };
    let position = move || at.get().map_or(steps, |step| step.saturating_add(1)).to_string();
    view! {
        <section class="chart" aria-label=title>
            <div class="compare__head">
                <h3 class="chart__title">{title}</h3>
                <p class="compare__values">{move || chart.with_value(|chart| values(chart, at.get(), step_s))}</p>
            </div>
            <div class="days">
                <div class="days__scale" aria-hidden="true">{scale}</div>
                <div
                    class="days__plot"
                    role="slider"
                    tabindex="0"
                    aria-label=label
                    aria-orientation="horizontal"
                    aria-valuemin="1"
                    aria-valuemax=steps.to_string()
                    aria-valuenow=position
                    aria-valuetext=value_text
                    node_ref=plot
                    on:keydown=walk
                    on:focus=focus_latest
                    on:blur=move |_| at.set(None)
                    on:pointermove=over
                    on:pointerleave=move |_| at.set(None)
                >
                    {drawing}
                </div>
                <div class="days__dates" aria-hidden="true">{times}</div>
            </div>
        </section>
    }
}

/// The section of all charts with the key of the lines.
#[component]
pub fn ReadingCharts(
    /// The charts.
    charts: Charts,
    /// The jobs in the order of the lines.
    columns: Vec<Column>,
) -> impl IntoView {
    let at = RwSignal::new(None::<usize>);
    let (width, steps, step_s) = (charts.width(), charts.steps, charts.step_s);
    let key = |(index, column): (usize, &Column)| {
        let text = column_text(index, column);
        view! { <li class="compare__keys-item">{line_key(index)}<span class="break">{text}</span></li> }
            .into_any()
    };
    let keys: Vec<AnyView> = columns.iter().enumerate().map(key).collect();
    let figure =
        |chart: Chart| view! { <Figure chart=chart width=width steps=steps step_s=step_s at=at/> }.into_any();
    let figures: Vec<AnyView> = charts.charts.into_iter().map(figure).collect();
    let body = if figures.is_empty() {
        view! { <p class="quiet">"No readings: the jobs did not run, or the readings have expired."</p> }
            .into_any()
    } else {
        view! {
            <ul class="compare__keys" role="list" aria-label="Lines of the charts">{keys}</ul>
            {figures}
        }
        .into_any()
    };
    view! {
        <section class="section" aria-labelledby="compare-charts">
            <div class="section__head"><h2 id="compare-charts">"Readings"</h2></div>
            {body}
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::super::lines::Quantity;
    use super::*;

    #[test]
    fn a_place_of_the_plot_is_a_step() {
        let steps = [(0, Some(0)), (49, Some(0)), (50, Some(1)), (99, Some(1)), (100, None), (-1, None)];
        for (x, step) in steps {
            assert_eq!(step_at(x, 100, 2), step, "{x}");
        }
        assert_eq!((step_at(0, 0, 2), step_at(0, 100, 0)), (None, None));
    }

    #[test]
    fn a_step_names_the_value_of_each_job() {
        let lines = vec![vec![Some(950), None], vec![None, Some(5)]];
        let chart = Chart { quantity: Quantity::Utilization, top: 1_000, lines };
        assert_eq!(step_values(&chart, 0, 60), "0 s: job 1 95 %, job 2 absent");
        assert_eq!(step_values(&chart, 1, 60), "1 min 00 s: job 1 absent, job 2 1 %");
        assert_eq!(value_text(&chart, 7, 0), "absent");
    }
}
