//! History of an offering's price: each version with its effective time and user. It loads on opening.

use berth_types::Page as Rows;
use berth_types::money::money_text;
use berth_types::offerings::{Offering, PriceVersion};
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::load_more::{LoadMore, append};
use super::super::super::parts::{Call, CallProblem};
use super::super::waiting::EffectTime;
use super::{PricesState, hourly, may};
use crate::api;
use crate::ui::*;

/// The closed history of an offering's price.
#[component]
pub fn History(
    /// The signals of the page.
    state: PricesState,
    /// The offering.
    offering: Offering,
) -> impl IntoView {
    let call = Call::idle();
    let more = Call::idle();
    let versions = RwSignal::new(None::<Vec<PriceVersion>>);
    let cursor = RwSignal::new(None::<String>);
    let slug = offering.slug.clone();
    let load = {
        let slug = slug.clone();
        move || {
            call.run(api::money::price_versions(&slug, None), move |page: Rows<PriceVersion>| {
                versions.set(Some(page.items));
                cursor.set(page.next_cursor);
            });
        }
    };
    let load_more = {
        let slug = slug.clone();
        move |()| {
            let from = cursor.get_untracked();
            let next = api::money::price_versions(&slug, from.clone());
            more.run(next, move |page: Rows<PriceVersion>| {
                // The page does not follow on a list that was replaced meanwhile.
                if cursor.try_get_untracked() != Some(from) {
                    return;
                }
                versions.update(|versions| {
                    append(versions.get_or_insert_default(), page.items, |one| one.version);
                });
                cursor.set(page.next_cursor);
            });
        }
    };
    let open = {
        let load = load.clone();
        move |_: leptos::ev::MouseEvent| {
            if versions.with_untracked(Option::is_none) {
                load();
            }
        }
    };
    // The history may be open before hydration.
    let details = NodeRef::<leptos::html::Details>::new();
    let load_first = load.clone();
    Effect::new(move || {
        if details.get().is_some_and(|details| details.open()) {
            load_first();
        }
    });
    // A link in the table of current prices opens the history.
    let summary = NodeRef::<leptos::html::Summary>::new();
    Effect::new(move || {
        if state.opened.get() == Some(offering.id)
            && let Some((details, summary)) = details.get_untracked().zip(summary.get_untracked())
        {
            // The focus scrolls the history into view.
            let _ = summary.focus();
            if !details.open() {
                summary.click();
            }
        }
    });
    // An open history shows a new version at once.
    let own_slug = slug.clone();
    Effect::new(move || {
        if state.changed.get().as_deref() == Some(own_slug.as_str())
            && versions.with_untracked(Option::is_some)
        {
            load();
        }
    });
    let current = {
        let slug = slug.clone();
        Memo::new(move |_| {
            state.offerings.with(|all| {
                all.iter().find(|known| known.slug == slug).map_or(0, |known| known.price.version)
            })
        })
    };
    let rows = move || {
        let current = current.get();
        versions.with(|versions| match versions {
            None => view! { <p class="quiet">"Loading versions…"</p> }.into_any(),
            Some(versions) if versions.is_empty() => {
                view! { <p class="quiet">"No prices yet."</p> }.into_any()
            }
            Some(versions) => table(versions, current, state),
        })
    };
    view! {
        <details class="more" id=offering.id.to_string() node_ref=details>
            <summary on:click=open node_ref=summary><span class="mono">{slug}</span></summary>
            <CallProblem call=call beside_fields=&[]/>
            {rows}
            <LoadMore cursor=cursor call=more load=Callback::new(load_more)/>
        </details>
    }
}

fn table(versions: &[PriceVersion], current: i64, state: PricesState) -> AnyView {
    let rows: Vec<AnyView> =
        versions.iter().map(|version| row(version, tag(version, versions, current), state)).collect();
    table_of(
        "Versions of the price, newest first",
        &[
            ("Version", ""),
            ("On demand", "num"),
            ("Reserved", "num"),
            ("Preemptible", "num"),
            ("Effective from", "nowrap"),
            ("Set by", ""),
            ACTIONS,
        ],
        rows,
    )
}

/// The tag of a version: the current or a planned one, or one that never begins. Without a current one all are planned.
fn tag(version: &PriceVersion, all: &[PriceVersion], current: i64) -> Option<&'static str> {
    if version.withdrawn_at.is_some() {
        return Some("withdrawn");
    }
    if version.version == current {
        return Some("current");
    }
    let present = all.iter().find(|one| one.version == current);
    if present.map_or(current > 0, |present| version.effective_from <= present.effective_from) {
        return None;
    }
    let has_start = |one: &&PriceVersion| one.effective_from == version.effective_from;
    let mut of_start = all.iter().filter(has_start).filter(|one| one.withdrawn_at.is_none());
    let is_replaced = of_start.any(|one| one.version > version.version);
    Some(if is_replaced { "replaced" } else { "planned" })
}

fn row(version: &PriceVersion, tag: Option<&'static str>, state: PricesState) -> AnyView {
    let button = (tag == Some("planned") && may(OperatorRight::ManageMoney)).then(|| {
        let label = format!("Withdraw version {} of {}", version.version, version.offering);
        state.withdrawing.button(version.clone(), "Withdraw", label, state.ready)
    });
    let class = if tag == Some("current") { "tag tag--accent" } else { "tag" };
    let tag = tag.map(|tag| view! { " " <span class=class>{tag}</span> });
    let text = money_text(version.per_hour_micros, &version.currency);
    let user = version.set_by.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{version.version}{tag}</th>
            <td role="cell" class="num" data-label="On demand">{text}<span class="unit">"/h"</span></td>
            <td role="cell" class="num" data-label="Reserved">
                {hourly(version.reserved_per_hour_micros, &version.currency)}
            </td>
            <td role="cell" class="num" data-label="Preemptible">
                {hourly(version.preemptible_per_hour_micros, &version.currency)}
            </td>
            <td role="cell" class="nowrap" data-label="Effective from"><When at=version.effective_from/></td>
            <td role="cell" data-label="Set by">{user}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

/// The question before the withdrawal of a planned price.
#[component]
pub fn WithdrawDialog(state: PricesState) -> impl IntoView {
    let (call, target) = (Call::idle(), state.withdrawing);
    let withdraw = move |()| {
        let Some(price) = target.one.get_untracked() else { return };
        let status = format!("Planned price of {} withdrawn.", price.offering);
        call.run(api::money::withdraw_price(&price), move |outcome| {
            state.show(outcome, status);
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="withdraw-price"
            title=target.title("Withdraw the planned price of", "offering", |price| price.offering.as_str())
            open=target.open
            call=call
            keep="Keep price"
            verb="Withdraw price"
            confirm=Callback::new(withdraw)
        >
            <p>"The price never begins. The prices before and after it stay."</p>
            <EffectTime waits=state.second_operator at_once="The withdrawal is final."/>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_current_planned_or_replaced() {
        let version = |(version, day): (i64, u32)| -> PriceVersion {
            serde_json::from_value(serde_json::json!({
                "offering": "a30", "version": version, "nano_per_second": 1, "per_hour_micros": 4, "currency": "USD",
                "effective_from": format!("2026-11-{day}T00:00:00Z"), "set_by": "ada@example.org",
            }))
            .unwrap()
        };
        let all = [(7, 28), (6, 28), (5, 30), (4, 29), (3, 29), (2, 27)].map(version);
        let tags = all.each_ref().map(|one| tag(one, &all, 7));
        let planned = Some("planned");
        assert_eq!(tags, [Some("current"), None, planned, planned, Some("replaced"), None]);
        assert_eq!(tag(&all[2], &all[2..], 7), None, "the current version is on a further page");
        assert_eq!(tag(&all[5], &all[5..], 0), planned, "no price is in effect yet");
        let mut all = all;
        all[3].withdrawn_at = Some(all[3].effective_from);
        let tags = all.each_ref().map(|one| tag(one, &all, 7));
        assert_eq!(tags[3..5], [Some("withdrawn"), planned], "the replaced one begins in its place");
    }
}
