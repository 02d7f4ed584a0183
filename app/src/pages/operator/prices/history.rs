//! Every version of a price: what it was, from when on, and who set it.
//!
//! Must not fetch what nobody opened: there are as many histories as offerings.

use berth_types::Page as Rows;
use berth_types::offerings::{Offering, PriceVersion};
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem};
use super::super::super::words::price_text;
use super::{Desk, hourly};
use crate::api;
use crate::ui::*;

/// The history of one offering's price, behind a line that opens it.
#[component]
pub fn History(
    /// What the page acts on.
    desk: Desk,
    /// Whose price.
    offering: Offering,
) -> impl IntoView {
    let call = Call::idle();
    let versions = RwSignal::new(None::<Vec<PriceVersion>>);
    let slug = offering.slug.clone();
    let look = {
        let slug = slug.clone();
        move || {
            call.run(api::money::price_versions(&slug), move |page: Rows<PriceVersion>| {
                versions.set(Some(page.items));
            });
        }
    };
    let open = {
        let look = look.clone();
        move |_: leptos::ev::MouseEvent| {
            if versions.with_untracked(Option::is_none) {
                look();
            }
        }
    };
    // It may have been opened before the page came alive.
    let part = NodeRef::<leptos::html::Details>::new();
    let at_first = look.clone();
    Effect::new(move || {
        if part.get().is_some_and(|part| part.open()) {
            at_first();
        }
    });
    // A version that was set just now belongs to what is open already.
    let of_change = slug.clone();
    Effect::new(move || {
        if desk.touched.get().as_deref() == Some(of_change.as_str())
            && versions.with_untracked(Option::is_some)
        {
            look();
        }
    });
    let now = {
        let slug = slug.clone();
        Memo::new(move |_| {
            desk.offerings.with(|all| {
                all.iter().find(|known| known.slug == slug).map_or(0, |known| known.price.version)
            })
        })
    };
    let rows = move || {
        let now = now.get();
        versions.with(|versions| match versions {
            None => view! { <p class="quiet">"Fetching its versions."</p> }.into_any(),
            Some(versions) if versions.is_empty() => {
                view! { <p class="quiet">"No price was set yet."</p> }.into_any()
            }
            Some(versions) => table(versions, now),
        })
    };
    view! {
        <details class="more" node_ref=part>
            <summary on:click=open><span class="mono">{slug}</span></summary>
            <CallProblem call=call beside_fields=&[]/>
            {rows}
        </details>
    }
}

fn table(versions: &[PriceVersion], now: i64) -> AnyView {
    let rows: Vec<AnyView> = versions.iter().map(|version| row(version, now)).collect();
    table_of(
        "Versions of the price, newest first",
        &[
            ("Version", ""),
            ("On demand", "num"),
            ("Reserved", "num"),
            ("Preemptible", "num"),
            ("From", "nowrap"),
            ("Set by", ""),
        ],
        rows,
    )
}

fn row(version: &PriceVersion, now: i64) -> AnyView {
    let in_force =
        (version.version == now).then(|| view! { " " <span class="tag tag--accent">"in force"</span> });
    let text = price_text(version.per_hour_micros, &version.currency);
    let by = version.set_by.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{version.version}{in_force}</th>
            <td role="cell" class="num" data-label="On demand">{text}<span class="unit">"/h"</span></td>
            <td role="cell" class="num" data-label="Reserved">
                {hourly(version.reserved_per_hour_micros, &version.currency)}
            </td>
            <td role="cell" class="num" data-label="Preemptible">
                {hourly(version.preemptible_per_hour_micros, &version.currency)}
            </td>
            <td role="cell" class="nowrap" data-label="From"><When at=version.effective_from/></td>
            <td role="cell" data-label="Set by">{by}</td>
        </tr>
    }
    .into_any()
}
