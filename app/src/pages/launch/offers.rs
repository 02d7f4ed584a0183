//! List of the offerings of a board model as radio buttons. The portal counts the free devices.

use berth_types::money::money_text;
use berth_types::offerings::Offering;
use leptos::prelude::*;

use super::super::parts::FieldError;
use super::super::text::gib;
use crate::ui::*;

/// Returns the free offering with the lowest price.
pub fn cheapest_free(offerings: &[Offering]) -> Option<&Offering> {
    let free = offerings.iter().filter(|offering| offering.price.version > 0 && offering.available > 0);
    free.min_by_key(|offering| offering.price.per_hour_micros)
}

/// Returns the first choice: the offering with the lowest price of the free ones, otherwise of those with devices in
/// service, otherwise of all.
pub fn first_choice(offerings: &[Offering]) -> String {
    let is_priced = |offering: &&Offering| offering.price.version > 0;
    let price = |offering: &&Offering| offering.price.per_hour_micros;
    let in_service =
        || offerings.iter().filter(is_priced).filter(|offering| offering.capacity > 0).min_by_key(price);
    let any = || offerings.iter().filter(is_priced).min_by_key(price);
    cheapest_free(offerings)
        .or_else(in_service)
        .or_else(any)
        .map(|offering| offering.slug.clone())
        .unwrap_or_default()
}

/// Lists the board models in the order of the portal.
pub fn models(offerings: &[Offering]) -> Vec<String> {
    let mut models: Vec<String> = Vec::new();
    for offering in offerings {
        if !models.contains(&offering.gpu_model) {
            models.push(offering.gpu_model.clone());
        }
    }
    models
}

/// Returns the memory slices of an offering on its board.
pub fn offering_bar(offering: &Offering) -> AnyView {
    let tile = BarTile {
        start: 0,
        size: offering.cells,
        label: String::new(),
        meta: String::new(),
        hue: 1,
        pattern: "plain".to_owned(),
        own: true,
        foreign: false,
        level: 0,
        aria: String::new(),
    };
    let label = format!("{} of {} memory slices", offering.cells, offering.board_cells);
    let cells = offering.board_cells;
    view! {
        <BerthBar
            tiles=vec![tile]
            cells=cells
            size=BarSize::Inline
            label=label
        />
    }
    .into_any()
}

/// The radio buttons of the chosen board model.
#[component]
pub fn Offers(
    /// All offerings with their present free capacity.
    offerings: RwSignal<Vec<Offering>>,
    /// The slug of the chosen offering.
    chosen: RwSignal<String>,
    /// The board model of the chosen offering.
    model: Memo<Option<String>>,
    /// The error below the list.
    error: Signal<Option<String>>,
) -> impl IntoView {
    // Only the free capacity changes while the form is open.
    let listed = offerings.get_untracked();
    let groups: Vec<AnyView> = models(&listed)
        .into_iter()
        .map(|one| {
            let lines: Vec<AnyView> = listed
                .iter()
                .filter(|offering| offering.gpu_model == one)
                .map(|offering| line(offering, offerings, chosen))
                .collect();
            let is_other = move || model.with(|model| model.as_ref() != Some(&one));
            view! { <div class="offers" hidden=is_other>{lines}</div> }.into_any()
        })
        .collect();
    view! {
        <div class="stack" role="radiogroup" aria-label="Offering" aria-describedby="offering-error">{groups}</div>
        <FieldError id="offering-error" error=error/>
    }
}

fn line(offering: &Offering, offerings: RwSignal<Vec<Offering>>, chosen: RwSignal<String>) -> AnyView {
    let slug = offering.slug.clone();
    let name = offering.mig_profile.clone().unwrap_or_else(|| "Whole board".to_owned());
    let priced = offering.price.version > 0;
    let price = if priced {
        let text = money_text(offering.price.per_hour_micros, &offering.price.currency);
        view! { {text}<span class="unit">"/h"</span> }.into_any()
    } else {
        view! { "no price" }.into_any()
    };
    let simulated =
        offering.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let available = {
        let slug = slug.clone();
        Memo::new(move |_| {
            offerings.with(|all| {
                all.iter()
                    .find(|offering| offering.slug == slug)
                    .map_or((0, 0), |offering| (offering.available, offering.capacity))
            })
        })
    };
    let free = move || match available.get() {
        (0, 0) => "no matching board".to_owned(),
        (0, capacity) => format!("0 of {capacity} free"),
        (free, capacity) => format!("{free} of {capacity} free"),
    };
    let free_class = move || match available.get() {
        (0, _) => "offer__free offer__free--none",
        _ => "offer__free",
    };
    let initial = chosen.with_untracked(|chosen| *chosen == slug);
    let is_chosen = {
        let slug = slug.clone();
        move || chosen.with(|chosen| *chosen == slug)
    };
    let pick = {
        let slug = slug.clone();
        move |_: leptos::ev::Event| chosen.set(slug.clone())
    };
    let memory = gib(offering.memory_mib);
    let value = slug.clone();
    view! {
        <label class="offer">
            <input
                type="radio"
                name="offering"
                value=value
                disabled={!priced}
                checked=initial
                prop:checked=is_chosen
                on:change=pick
            />
            <span class="offer__name">{name}{simulated}<span class="offer__slug">{slug}</span></span>
            {offering_bar(offering)}
            <span class="offer__memory">{memory}" "<span class="unit">"GiB"</span></span>
            <span class="offer__price">{price}</span>
            <span class=free_class>{free}</span>
        </label>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(slug: &str, available: u32, (per_hour_micros, version): (i64, i64)) -> Offering {
        serde_json::from_value(serde_json::json!({
            "id": "off_00000000000000000000000001", "slug": slug, "gpu_model": "H100-80GB", "mig_profile": null,
            "memory_mib": 1, "cells": 1, "board_cells": 8, "simulated": true, "available": available, "capacity": 1,
            "price": {"nano_per_second": 1, "per_hour_micros": per_hour_micros, "currency": "USD", "version": version},
        }))
        .unwrap()
    }

    #[test]
    fn the_first_choice_is_free_and_cheap() {
        let all = [
            offering("taken", 0, (1, 1)),
            offering("dear", 4, (900, 1)),
            offering("cheap", 1, (300, 1)),
            offering("unpriced", 1, (0, 0)),
        ];
        assert_eq!(first_choice(&all), "cheap");
        assert_eq!(first_choice(all.get(..1).unwrap()), "taken");
        assert_eq!(first_choice(all.get(3..).unwrap()), "");
        // Without a free device the offering with devices in service, otherwise the lowest price.
        let out_of_service =
            |slug: &str, price: i64| Offering { capacity: 0, ..offering(slug, 0, (price, 1)) };
        let none_free =
            [out_of_service("out", 100), offering("busy", 0, (500, 1)), offering("dear", 0, (900, 1))];
        assert_eq!(first_choice(&none_free), "busy");
        assert_eq!(first_choice(&[out_of_service("whole", 600), out_of_service("slice", 150)]), "slice");
    }
}
