//! The use of a service: the last day, and each hour of it.

use berth_service_types::services::{ServiceHour, TokenPrice};
use berth_types::money::money_text;
use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::super::limits::replace;
use super::super::parts::{interval, now_ms};
use super::super::text::number;
use super::state::LiveService;
use super::text::{latency_text, tokens};
use crate::session::use_session;
use crate::ui::*;

/// The hours of the chart.
const HOURS: i64 = 24;
/// The height of the chart in its own units.
const HIGH: u64 = 1_000;
const HOUR_MS: i64 = 3_600_000;

/// A bar of the chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bar {
    /// The place from the left, 0 to 23.
    slot: i64,
    /// The height of all requests.
    all: u64,
    /// The height of those that failed.
    errors: u64,
}

/// Returns the begin of the last hour of the chart: the present one, unless the clock of the portal is ahead.
fn last_hour(hours: &[ServiceHour], present_ms: i64) -> i64 {
    hours.iter().map(|hour| hour.at.millis()).fold(present_ms, i64::max)
}

/// Returns the most requests of an hour, and the bars of the hours with requests. The last hour is at the right.
fn bars(hours: &[ServiceHour], last_ms: i64) -> (u64, Vec<Bar>) {
    let top = hours.iter().map(|hour| hour.used.requests).max().unwrap_or(0);
    // An hour with few requests is still visible.
    let height = |count: u64| match count.saturating_mul(HIGH).checked_div(top) {
        Some(height) if count > 0 => height.max(10),
        _ => 0,
    };
    let bar = |hour: &ServiceHour| {
        let slot = HOURS - 1 - last_ms.saturating_sub(hour.at.millis()) / HOUR_MS;
        (slot >= 0).then(|| Bar { slot, all: height(hour.used.requests), errors: height(hour.used.errors) })
    };
    (top, hours.iter().filter_map(bar).filter(|bar| bar.all > 0).collect())
}

/// Returns the price of tokens as text.
fn price_text(price: TokenPrice, currency: &str) -> String {
    if price == TokenPrice::default() {
        return "Tokens are free.".to_owned();
    }
    let TokenPrice { prompt_micros_per_million, completion_micros_per_million } = price;
    let [prompt, completion] =
        [prompt_micros_per_million, completion_micros_per_million].map(|micros| money_text(micros, currency));
    format!("{prompt} for a million prompt tokens, {completion} for a million completion tokens")
}

/// The section of the figures.
#[component]
pub fn Figures(live: LiveService) -> impl IntoView {
    let currency = StoredValue::new(use_session().me.currency);
    let day = Memo::new(move |_| live.service.with(|service| service.last_day));
    let price = Memo::new(move |_| {
        let price = live.service.with(|service| service.token_price);
        currency.with_value(|currency| price_text(price, currency))
    });
    let stats = move || {
        let used = day.get();
        let cost = currency.with_value(|currency| money_text(used.token_micros, currency));
        let split =
            format!("{} prompt, {} completion", number(used.prompt_tokens), number(used.completion_tokens));
        view! {
            <dl class="stats">
                <div class="stat">
                    <dt class="stat__label">"Requests"</dt>
                    <dd class="stat__value">{number(used.requests)}</dd>
                    <dd class="stat__note">"in the last 24 hours"</dd>
                </div>
                <div class="stat">
                    <dt class="stat__label">"Errors"</dt>
                    <dd class="stat__value">{number(used.errors)}</dd>
                    <dd class="stat__note">"faults and missing answers"</dd>
                </div>
                <div class="stat">
                    <dt class="stat__label">"Tokens"</dt>
                    <dd class="stat__value">{number(tokens(&used))}</dd>
                    <dd class="stat__note">{split}</dd>
                </div>
                <div class="stat">
                    <dt class="stat__label">"Cost of tokens"</dt>
                    <dd class="stat__value">{cost}</dd>
                    <dd class="stat__note">{move || price.get()}</dd>
                </div>
            </dl>
        }
    };
    let quiet = |text: &'static str| view! { <p class="quiet">{text}</p> }.into_any();
    let none = Memo::new(move |_| {
        live.hours.with(|hours| hours.as_ref().map(|all| all.iter().all(|hour| hour.used.requests == 0)))
    });
    // The portal draws without a clock: until hydration the last hour with requests is at the right.
    let present = RwSignal::new(0);
    Effect::new(move || {
        let tick = move || replace(present, now_ms().div_euclid(HOUR_MS).saturating_mul(HOUR_MS));
        tick();
        interval(60_000, tick);
    });
    view! {
        <section class="section">
            <div class="section__head"><h2>"Requests"</h2></div>
            {stats}
            {move || match none.get() {
                None => quiet("The figures by hour did not load. The page requests them again."),
                Some(true) => quiet("No requests in the last 24 hours."),
                Some(false) => live.hours.with(|hours| {
                    let hours = hours.as_deref().unwrap_or_default();
                    view! {
                        {chart(hours, present.get())}
                        <details class="more">
                            <summary>"Requests by hour"</summary>
                            {table(hours)}
                        </details>
                    }
                        .into_any()
                }),
            }}
        </section>
    }
}

fn chart(hours: &[ServiceHour], present_ms: i64) -> AnyView {
    let last_ms = last_hour(hours, present_ms);
    let (top, bars) = bars(hours, last_ms);
    let begin = |ms: i64| Timestamp::from_micros(ms.saturating_mul(1_000));
    let first = begin(last_ms.saturating_sub((HOURS - 1) * HOUR_MS));
    let one = |bar: &Bar| {
        let x = bar.slot.saturating_mul(10).saturating_add(1).to_string();
        let y = |height: u64| HIGH.saturating_sub(height).to_string();
        let all = view! {
            <rect class="chart__bar series-1" x=x.clone() y=y(bar.all) width="8" height=bar.all.to_string()></rect>
        };
        let errors = (bar.errors > 0).then(|| {
            view! {
                <rect class="chart__bar chart__bar--bad" x=x y=y(bar.errors) width="8" height=bar.errors.to_string()></rect>
            }
        });
        view! { {all} {errors} }.into_any()
    };
    let drawn: Vec<AnyView> = bars.iter().map(one).collect();
    let values = format!("at most {} an hour", number(top));
    view! {
        <section class="chart" aria-labelledby="requests-by-hour">
            <div class="chart__head">
                <h3 class="chart__title" id="requests-by-hour">"Requests by hour"</h3>
                <p class="chart__values"><span class="chart__time">{values}</span></p>
            </div>
            <div class="days">
                <div class="days__scale" aria-hidden="true">
                    <span>{number(top)}</span><span>"0"</span>
                </div>
                // The table has the same figures as text.
                <div class="days__plot days__plot--still" aria-hidden="true">
                    <svg
                        class="days__bars days__bars--few"
                        viewBox="0 0 240 1000"
                        preserveAspectRatio="none"
                        focusable="false"
                    >
                        <line class="chart__grid" x1="0" x2="240" y1="0" y2="0"></line>
                        <line class="chart__grid" x1="0" x2="240" y1="1000" y2="1000"></line>
                        {drawn}
                    </svg>
                </div>
                <div class="days__dates" aria-hidden="true"><When at=first/><When at=begin(last_ms)/></div>
            </div>
        </section>
    }
    .into_any()
}

fn table(hours: &[ServiceHour]) -> AnyView {
    let mut used: Vec<&ServiceHour> = hours.iter().filter(|hour| hour.used.requests > 0).collect();
    used.sort_unstable_by_key(|hour| std::cmp::Reverse(hour.at));
    table_of(
        "Requests by hour, newest first",
        &[
            ("Hour", ""),
            ("Requests", "num"),
            ("Errors", "num"),
            ("Tokens", "num"),
            ("First byte, median", "num"),
            ("First byte, 99th percentile", "num"),
        ],
        used.into_iter().map(row).collect(),
    )
}

/// Returns the 99th percentile of the time to the first byte. An hour with a median has one: without a number it is above
/// all bounds.
fn slowest_text(median_ms: Option<u64>, p99_ms: Option<u64>) -> String {
    if median_ms.is_some() && p99_ms.is_none() { "over 120 s".to_owned() } else { latency_text(p99_ms) }
}

fn row(hour: &ServiceHour) -> AnyView {
    let slowest = slowest_text(hour.first_byte_p50_ms, hour.first_byte_p99_ms);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><When at=hour.at/></th>
            <td role="cell" class="num" data-label="Requests">{number(hour.used.requests)}</td>
            <td role="cell" class="num" data-label="Errors">{number(hour.used.errors)}</td>
            <td role="cell" class="num" data-label="Tokens">{number(tokens(&hour.used))}</td>
            <td role="cell" class="num" data-label="First byte, median">{latency_text(hour.first_byte_p50_ms)}</td>
            <td role="cell" class="num" data-label="First byte, 99th percentile">{slowest}</td>
        </tr>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_service_types::services::ServiceUse;

    fn hour(number: i64, requests: u64, errors: u64) -> ServiceHour {
        ServiceHour {
            at: Timestamp::from_micros(number * HOUR_MS * 1_000),
            used: ServiceUse { requests, errors, ..ServiceUse::default() },
            first_byte_p50_ms: None,
            first_byte_p99_ms: None,
        }
    }

    #[test]
    fn a_price_of_tokens_has_both_parts() {
        assert_eq!(price_text(TokenPrice::default(), "USD"), "Tokens are free.");
        let price = TokenPrice { prompt_micros_per_million: 150_000, completion_micros_per_million: 600_000 };
        assert_eq!(
            price_text(price, "USD"),
            "$0.15 for a million prompt tokens, $0.60 for a million completion tokens"
        );
    }

    #[test]
    fn a_first_byte_above_all_bounds_has_a_text() {
        let texts = [(None, None), (Some(10), None), (Some(10), Some(2_000))];
        assert_eq!(texts.map(|(median, p99)| slowest_text(median, p99)), ["–", "over 120 s", "2.0 s"]);
    }

    #[test]
    fn the_present_hour_is_at_the_right_and_gaps_stay() {
        let bars = |hours: &[ServiceHour], now: i64| bars(hours, last_hour(hours, now * HOUR_MS));
        let bar = |slot: i64, all: u64, errors: u64| Bar { slot, all, errors };
        assert_eq!(bars(&[], 7), (0, Vec::new()));
        assert_eq!(bars(&[hour(7, 0, 0)], 7), (0, Vec::new()));
        let hours = [hour(100, 100, 50), hour(99, 0, 0), hour(97, 25, 0), hour(77, 1, 0), hour(76, 9, 0)];
        // Before hydration, and with a clock behind that of the portal.
        for now in [0, 99, 100] {
            assert_eq!(bars(&hours, now), (100, vec![bar(23, 1_000, 500), bar(20, 250, 0), bar(0, 10, 0)]));
        }
        assert_eq!(bars(&hours, 111).1, [bar(12, 1_000, 500), bar(9, 250, 0)]);
    }
}
