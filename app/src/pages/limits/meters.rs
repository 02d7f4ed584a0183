//! Table of limits and their use, with a meter for each limit. The portal counts the use.

use berth_types::quotas::Quota;
use leptos::prelude::*;

use super::kinds::LimitKind;
use super::lines::{Line, lines};
use super::numbers::milli_text;

/// The used thousandths at which a meter warns.
const WARN_MILLI: i64 = 900;

/// Returns the table of all limits of an organization.
pub fn table(quota: &Quota, currency: &str) -> AnyView {
    let rows: Vec<AnyView> =
        lines(&quota.limits, &quota.used).iter().map(|line| row(line, currency)).collect();
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Limits and their use"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Limit"</th>
                        <th role="columnheader" scope="col" class="num">"Used"</th>
                        <th role="columnheader" scope="col" class="num">"Maximum"</th>
                        <th role="columnheader" scope="col" class="num">"Remaining"</th>
                        <th role="columnheader" scope="col"><span class="visually-hidden">"Share used"</span></th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
        {scheduling(quota)}
    }
    .into_any()
}

fn row(line: &Line, currency: &str) -> AnyView {
    let label = line.label.clone();
    let hint = line.hint;
    let used = line.used_text(currency);
    let maximum = match line.maximum_text(currency) {
        Some(maximum) => maximum.into_any(),
        None => view! { <span class="quiet">"no limit"</span> }.into_any(),
    };
    // Empty cells leave no gap on a phone.
    let rest = match line.remaining_text(currency) {
        Some(rest) => view! { <td role="cell" class="num" data-label="Remaining">{rest}</td> }.into_any(),
        None => view! { <td role="cell" class="num"></td> }.into_any(),
    };
    let level = match line.used_milli() {
        Some(milli) => {
            view! { <td role="cell" data-label="Share used">{meter(&line.label, milli)}</td> }.into_any()
        }
        None => view! { <td role="cell"></td> }.into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{label}<span class="table__sub">{hint}</span></th>
            <td role="cell" class="num" data-label="Used">{used}</td>
            <td role="cell" class="num" data-label="Maximum">{maximum}</td>
            {rest}
            {level}
        </tr>
    }
    .into_any()
}

/// The used part as a bar.
fn meter(label: &str, milli: i64) -> AnyView {
    let class = if milli >= WARN_MILLI { "meter meter--warn" } else { "meter" };
    let name = format!("{label}: {} % used", milli / 10);
    view! { <progress class=class value=milli.to_string() max="1000" aria-label=name></progress> }.into_any()
}

/// Guaranteed capacity and weight, which have no use and no meter.
fn scheduling(quota: &Quota) -> Option<AnyView> {
    let guaranteed = LimitKind::GuaranteedBoards.value(&quota.limits).map(|milli| {
        let text = format!(
            "Guaranteed capacity: {} boards. Scheduled first among jobs of the same priority, until it is reached.",
            milli_text(milli)
        );
        view! { <p class="quiet">{text}</p> }
    });
    let weight = LimitKind::Weight.value(&quota.limits).map(|milli| {
        let text = format!("Fair-share weight: {}. The default is 1.", milli_text(milli));
        view! { <p class="quiet">{text}</p> }
    });
    let some = guaranteed.is_some() || weight.is_some();
    some.then(|| view! { {guaranteed} {weight} }.into_any())
}
