//! What is used of each limit, as a table with a meter in every line that has a limit.
//!
//! Must not add anything up: what counts is the portal's word.

use berth_types::quotas::Quota;
use leptos::prelude::*;

use super::kinds::Kind;
use super::lines::{Line, lines};
use super::numbers::milli_text;

/// From so many thousandths of a limit on, its meter warns.
const NEARLY: i64 = 900;

/// Every limit of an organization with what is used and left of it.
pub fn table(quota: &Quota, currency: &str) -> AnyView {
    let rows: Vec<AnyView> =
        lines(&quota.limits, &quota.used).iter().map(|line| row(line, currency)).collect();
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Limits and what is used of them"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Limit"</th>
                        <th role="columnheader" scope="col" class="num">"Used"</th>
                        <th role="columnheader" scope="col" class="num">"Of"</th>
                        <th role="columnheader" scope="col" class="num">"Left"</th>
                        <th role="columnheader" scope="col"><span class="visually-hidden">"Level"</span></th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
        {standing(quota)}
    }
    .into_any()
}

fn row(line: &Line, currency: &str) -> AnyView {
    let label = line.label.clone();
    let hint = line.hint;
    let used = line.used_text(currency);
    let most = match line.most_text(currency) {
        Some(most) => most.into_any(),
        None => view! { <span class="quiet">"no limit"</span> }.into_any(),
    };
    // Without a limit the cells are truly empty, and leave no gap on a phone.
    let left = match line.left_text(currency) {
        Some(left) => view! { <td role="cell" class="num" data-label="Left">{left}</td> }.into_any(),
        None => view! { <td role="cell" class="num"></td> }.into_any(),
    };
    let level = match line.fullness() {
        Some(milli) => {
            view! { <td role="cell" data-label="Level">{meter(&line.label, milli)}</td> }.into_any()
        }
        None => view! { <td role="cell"></td> }.into_any(),
    };
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{label}<span class="table__sub">{hint}</span></th>
            <td role="cell" class="num" data-label="Used">{used}</td>
            <td role="cell" class="num" data-label="Of">{most}</td>
            {left}
            {level}
        </tr>
    }
    .into_any()
}

/// The level as a bar; the figures beside it say the same.
fn meter(label: &str, milli: i64) -> AnyView {
    let class = if milli >= NEARLY { "meter meter--warn" } else { "meter" };
    let name = format!("{label}: {} % used", milli / 10);
    view! { <progress class=class value=milli.to_string() max="1000" aria-label=name></progress> }.into_any()
}

/// What puts the organization before others: nothing counts against it, so it has no meter.
fn standing(quota: &Quota) -> Option<AnyView> {
    let guaranteed = Kind::GuaranteedBoards.of(&quota.limits).map(|milli| {
        let text = format!(
            "Guaranteed: {} boards. While less than that is held, jobs come before all others of their priority.",
            milli_text(milli)
        );
        view! { <p class="quiet">{text}</p> }
    });
    let weight = Kind::Weight.of(&quota.limits).map(|milli| {
        let text = format!("Weight for fair share: {}. Without one it is 1.", milli_text(milli));
        view! { <p class="quiet">{text}</p> }
    });
    let some = guaranteed.is_some() || weight.is_some();
    some.then(|| view! { {guaranteed} {weight} }.into_any())
}
