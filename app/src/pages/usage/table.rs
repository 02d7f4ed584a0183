//! Tables of the chart's numbers: totals by group, and daily usage.
//!
//! The tables and the chart use the same texts, so that they round alike.

use berth_types::money::money_text;
use berth_types::usage::{GroupBy, Usage, UsageRow};
use leptos::prelude::*;

use super::super::days::day_text;
use super::series::{Bands, Series};
use super::text::{device_hours, group_head, mode_text};

/// Returns the table of totals by group, with the colours of the chart.
pub fn totals(bands: &Bands, group: GroupBy) -> AnyView {
    let row = |(index, series): (usize, &Series)| {
        let class = format!("days__key {}", series.class(index));
        let label = series.label.clone();
        let cost = money_text(series.cost_micros, &bands.currency);
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
    let rows: Vec<AnyView> = usage.rows.iter().rev().map(|row| line(row, usage, group)).collect();
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
                            {money_text(usage.cost_micros, &usage.currency)}
                        </td>
                    </tr>
                </tfoot>
            </table>
        </div>
    }
    .into_any()
}

fn line(row: &UsageRow, usage: &Usage, group: GroupBy) -> AnyView {
    let key = (group != GroupBy::Day).then(|| {
        let text = if group == GroupBy::Mode { mode_text(&row.key) } else { row.key.as_str() };
        let text = text.to_owned();
        view! { <td role="cell" data-label=group_head(group)>{text}</td> }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{day_text(&row.day)}</th>
            {key}
            <td role="cell" class="num" data-label="Device-hours">{device_hours(row.device_ms)}</td>
            <td role="cell" class="num" data-label="Cost">{money_text(row.cost_micros, &usage.currency)}</td>
        </tr>
    }
    .into_any()
}
