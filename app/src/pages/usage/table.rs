//! Tables of the chart's numbers: totals by group, and daily usage.
//!
//! The amounts of a table are exact, so that they add up to the total.

use berth_types::money::{column_decimals, column_text};
use berth_types::usage::{GroupBy, Usage, UsageRow};
use leptos::prelude::*;

use super::super::days::day_text;
use super::series::{Bands, Series, key_label};
use super::text::{device_hours, group_head};

/// Returns the table of totals by group, with the colours of the chart.
pub fn totals(bands: &Bands, group: GroupBy) -> AnyView {
    let decimals = column_decimals(bands.series.iter().map(|series| series.cost_micros));
    let row = |(index, series): (usize, &Series)| {
        let class = format!("days__key {}", series.class(index));
        let label = series.label.clone();
        let cost = column_text(series.cost_micros, &bands.currency, decimals);
        view! {
            <tr role="row">
                <th role="rowheader" scope="row"><span class=class aria-hidden="true"></span>" "{label}</th>
                <td role="cell" class="num" data-label="Device-hours">{device_hours(series.device_ms)}</td>
                <td role="cell" class="num" data-label="Cost">{cost}</td>
            </tr>
        }
        .into_any()
    };
    let rows: Vec<AnyView> = bands.series.iter().enumerate().map(row).collect();
    view! {
        <div class="table-wrap">
            <table class="table table--compact" role="table">
                <caption class="visually-hidden">"Totals"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">{group_head(group)}</th>
                        <th role="columnheader" scope="col" class="num">"Device-hours"</th>
                        <th role="columnheader" scope="col" class="num">"Cost"</th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// Returns the table with one row per day and group, newest day first.
pub fn by_day(usage: &Usage, group: GroupBy) -> AnyView {
    let grouped = group != GroupBy::Day;
    let head = grouped.then(|| view! { <th role="columnheader" scope="col">{group_head(group)}</th> });
    let decimals = column_decimals(usage.rows.iter().map(|row| row.cost_micros).chain([usage.cost_micros]));
    let text = |micros: i64| column_text(micros, &usage.currency, decimals);
    let rows: Vec<AnyView> =
        usage.rows.iter().rev().map(|row| line(row, text(row.cost_micros), group)).collect();
    let blank = grouped.then(|| view! { <td role="cell"></td> });
    view! {
        <div class="table-wrap table-wrap--tall" tabindex="0" role="region" aria-label="Daily usage">
            <table class="table table--compact" role="table">
                <caption class="visually-hidden">"Daily usage"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Day"</th>
                        {head}
                        <th role="columnheader" scope="col" class="num">"Device-hours"</th>
                        <th role="columnheader" scope="col" class="num">"Cost"</th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
                <tfoot role="rowgroup">
                    <tr role="row">
                        <th role="rowheader" scope="row">"Total"</th>
                        {blank}
                        <td role="cell" class="num" data-label="Device-hours">{device_hours(usage.device_ms)}</td>
                        <td role="cell" class="num" data-label="Cost">
                            {text(usage.cost_micros)}
                        </td>
                    </tr>
                </tfoot>
            </table>
        </div>
    }
    .into_any()
}

fn line(row: &UsageRow, cost: String, group: GroupBy) -> AnyView {
    let key = (group != GroupBy::Day).then(|| {
        let text = key_label(&row.key, group);
        view! { <td role="cell" data-label=group_head(group)>{text}</td> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{day_text(&row.day)}</th>
            {key}
            <td role="cell" class="num" data-label="Device-hours">{device_hours(row.device_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{cost}</td>
        </tr>
    }
    .into_any()
}
