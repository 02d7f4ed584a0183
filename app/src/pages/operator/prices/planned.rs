//! The next planned price of an offering, with the link to its price history.

use berth_types::ids::OfferingId;
use leptos::prelude::*;

use super::PricesState;
use super::draft::planned_text;
use crate::ui::*;

/// The next planned price of an offering; nothing without one.
#[component]
pub fn PlannedNote(state: PricesState, id: OfferingId, slug: String) -> impl IntoView {
    let label = format!("Price history of {slug}");
    move || {
        let (label, href) = (label.clone(), format!("#{id}"));
        state.planned.with(|all| {
            let mut planned = all.iter().filter(|price| price.offering == slug);
            let next = planned.next()?;
            let further = planned.count();
            let more = (further > 0).then(|| format!(", {further} more later"));
            Some(view! {
                <span class="table__sub">
                    "Planned: " {planned_text(next)} " from " <When at=next.effective_from/> {more} ". "
                    <a href=href aria-label=label on:click=move |_| state.opened.set(Some(id))>"Price history"</a>
                </span>
            })
        })
    }
}
