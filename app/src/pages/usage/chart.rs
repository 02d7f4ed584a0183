//! Chart of the daily cost with stacked bars, one for each group.
//!
//! Without inline styles: positions are coordinates, colours are classes. The line above the chart shows the
//! values of one day, by pointer or arrow keys; the table below has all values.

use berth_types::money::{column_decimals, column_text, money_text};
use leptos::prelude::*;
use leptos::web_sys;

use super::super::days;
use super::series::{Bands, Series};
use crate::ui::step_by_key;

/// The width of a day in the drawing, with a margin of a tenth on either side.
const WIDE: usize = 10;
/// The maximum number of days with lines between the bars.
const FEW_DAYS: usize = 62;

/// Finds the day of a pointer event.
fn day_under(event: &web_sys::Event) -> Option<usize> {
    event_target::<web_sys::Element>(event).get_attribute("data-day")?.parse().ok()
}

/// The chart with the line of values.
#[component]
pub fn Chart(
    /// The groups with their daily cost.
    bands: Memo<Bands>,
) -> impl IntoView {
    let at = RwSignal::new(None::<usize>);
    let count = move || bands.with(|bands| bands.days.len());
    let last = move || untrack(count).saturating_sub(1);
    let over = move |event: leptos::ev::PointerEvent| {
        let found = day_under(&event);
        if at.get_untracked() != found {
            at.set(found);
        }
    };
    let walk = move |event: leptos::ev::KeyboardEvent| {
        let Some(next) = step_by_key(&event.key(), at.get_untracked(), last()) else { return };
        event.prevent_default();
        at.set(Some(next));
    };
    // The keyboard starts at the newest day.
    let focus_newest = move |_: leptos::ev::FocusEvent| {
        if at.get_untracked().is_none() {
            at.set(Some(last()));
        }
    };
    let value_text = move || match at.get() {
        Some(day) => bands.with(|bands| day_text(bands, day)),
        None => "No day selected.".to_owned(),
    };
    let position = move || at.get().map_or_else(count, |day| day.saturating_add(1)).to_string();
    view! {
        <section class="chart" aria-labelledby="cost-by-day">
            <div class="chart__head">
                <h2 class="chart__title" id="cost-by-day">"Daily cost"</h2>
                <p class="chart__values">{move || bands.with(|bands| values(bands, at.get()))}</p>
            </div>
            <div class="days">
                <div class="days__scale" aria-hidden="true">{move || bands.with(scale)}</div>
                <div
                    class="days__plot"
                    role="slider"
                    tabindex="0"
                    aria-label="Daily cost; arrow keys change the day"
                    aria-orientation="horizontal"
                    aria-valuemin="1"
                    aria-valuemax=move || count().to_string()
                    aria-valuenow=position
                    aria-valuetext=value_text
                    on:keydown=walk
                    on:focus=focus_newest
                    on:blur=move |_| at.set(None)
                    on:pointerover=over
                    on:pointerleave=move |_| at.set(None)
                >
                    {move || bands.with(|bands| bars(bands, at))}
                </div>
                <div class="days__dates" aria-hidden="true">{move || bands.with(dates)}</div>
            </div>
        </section>
    }
}

/// Returns a day with its cost as text.
fn day_text(bands: &Bands, day: usize) -> String {
    let Some(name) = bands.days.get(day) else { return String::new() };
    format!("{}: {}", days::day_text(name), money_text(bands.day_cost(day), &bands.currency))
}

/// Returns the line above the chart with the values of the selected day.
fn values(bands: &Bands, at: Option<usize>) -> AnyView {
    let Some(day) = at.filter(|day| *day < bands.days.len()) else {
        return view! { <span class="chart__time">"days in UTC"</span> }.into_any();
    };
    let text = day_text(bands, day);
    let several = bands.series.len() > 1;
    let group_value = |(index, series): (usize, &Series)| {
        let cost = series.by_day.get(day).copied().filter(|cost| several && *cost > 0)?;
        let class = format!("chart__value {}", series.class(index));
        let text = format!("{} {}", series.label, money_text(cost, &bands.currency));
        Some(view! { <span class=class><span class="days__key"></span>{text}</span> }.into_any())
    };
    let each: Vec<AnyView> = bands.series.iter().enumerate().filter_map(group_value).collect();
    view! { <span class="chart__value">{text}</span> {each} }.into_any()
}

fn scale(bands: &Bands) -> AnyView {
    let marks = [bands.top, bands.top / 2, 0];
    let decimals = column_decimals(marks);
    let marks = marks.map(|micros| {
        let text = column_text(micros, &bands.currency, decimals);
        view! { <span>{text}</span> }
    });
    marks.into_iter().collect_view().into_any()
}

/// Returns the labels of the first, the middle and the last day.
fn dates(bands: &Bands) -> AnyView {
    let last = bands.days.len().saturating_sub(1);
    let mut places = vec![0, last / 2, last];
    places.dedup();
    let names = places.into_iter().filter_map(|place| bands.days.get(place));
    names.map(|day| view! { <span>{days::short_day(day)}</span> }).collect_view().into_any()
}

fn bars(bands: &Bands, at: RwSignal<Option<usize>>) -> AnyView {
    let count = bands.days.len();
    let wide = count.saturating_mul(WIDE).to_string();
    let frame = format!("0 0 {wide} 1000");
    let class = if count > FEW_DAYS { "days__bars" } else { "days__bars days__bars--few" };
    let grid: Vec<AnyView> = ["0", "500", "1000"]
        .into_iter()
        .map(|y| view! { <line class="chart__grid" x1="0" x2=wide.clone() y1=y y2=y></line> }.into_any())
        .collect();
    let mut drawn: Vec<AnyView> = Vec::new();
    let mut hits: Vec<AnyView> = Vec::new();
    for day in 0..count {
        let left = day.saturating_mul(WIDE);
        let stack = bands.stack(day).into_iter().zip(&bands.series).enumerate();
        for (index, ((top, height), series)) in stack.filter(|(_, ((_, height), _))| *height > 0) {
            let class = format!("chart__bar {}", series.class(index));
            let (x, y, height) = ((left + 1).to_string(), top.to_string(), height.to_string());
            drawn.push(view! { <rect class=class x=x y=y width="8" height=height></rect> }.into_any());
        }
        // The pointer area has the full height.
        let (x, number) = (left.to_string(), day.to_string());
        hits.push(
            view! { <rect class="days__hit" data-day=number x=x y="0" width="10" height="1000"></rect> }
                .into_any(),
        );
    }
    let chosen = move || {
        at.get().filter(|day| *day < count).map(|day| {
            let x = day.saturating_mul(WIDE).to_string();
            view! { <rect class="days__at" x=x y="0" width="10" height="1000"></rect> }
        })
    };
    view! {
        <svg class=class viewBox=frame preserveAspectRatio="none" aria-hidden="true" focusable="false">
            {chosen}
            {grid}
            {drawn}
            {hits}
        </svg>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_is_shown_with_its_cost() {
        let series = Series {
            label: "Cost".to_owned(),
            rest: false,
            device_ms: 1,
            cost_micros: 3_200_000,
            by_day: vec![0, 3_200_000],
        };
        let days = vec!["2026-11-20".to_owned(), "2026-11-21".to_owned()];
        let bands = Bands { days, series: vec![series], top: 5_000_000, currency: "USD".to_owned() };
        assert_eq!(day_text(&bands, 1), "21 November 2026: $3.20");
        assert_eq!(day_text(&bands, 0), "20 November 2026: $0.00");
        assert_eq!(day_text(&bands, 2), "");
    }
}
