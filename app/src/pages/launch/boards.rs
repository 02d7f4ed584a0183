//! Choice of a board model as cards. The portal counts the free devices.

use berth_types::money::money_text;
use berth_types::offerings::Offering;
use leptos::prelude::*;

use super::super::text::{counted, free_devices_text, gib, number};
use super::offers::{cheapest_free, first_choice, models};
use crate::ui::*;

/// The cells of a bar for more than eight boards.
const MANY_CELLS: u32 = 10;

/// The price of a board model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ModelPrice {
    /// The price of a whole board an hour.
    Board(String),
    /// The lowest price of a slice an hour; whole boards have no price.
    Slice(String),
    /// No price at all.
    None,
}

/// The unchanging facts of a board model.
#[derive(Debug, Clone, PartialEq, Eq)]
struct BoardModel {
    name: String,
    /// The memory of its largest device in MiB.
    memory_mib: i64,
    simulated: bool,
    price: ModelPrice,
}

/// The free devices of a board model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct FreeDevices {
    /// Free whole boards, and all; absent without an offering of whole boards, or if all boards have slices only.
    boards: Option<(u32, u32)>,
    /// Free slices of the smallest profile, and the profile; absent without slices.
    slices: Option<(u32, String)>,
}

fn in_model<'a>(offerings: &'a [Offering], model: &'a str) -> impl Iterator<Item = &'a Offering> {
    offerings.iter().filter(move |offering| offering.gpu_model == model)
}

fn is_priced(offering: &Offering) -> bool {
    offering.price.version > 0
}

fn model_price(offerings: &[Offering], model: &str) -> ModelPrice {
    let text = |offering: &Offering| money_text(offering.price.per_hour_micros, &offering.price.currency);
    let priced = || in_model(offerings, model).filter(|offering| is_priced(offering));
    if let Some(board) = priced().find(|offering| offering.mig_profile.is_none()) {
        return ModelPrice::Board(text(board));
    }
    priced()
        .min_by_key(|offering| offering.price.per_hour_micros)
        .map_or(ModelPrice::None, |slice| ModelPrice::Slice(text(slice)))
}

/// Lists the board models in the order of the portal.
fn board_models(offerings: &[Offering]) -> Vec<BoardModel> {
    let describe = |name: String| BoardModel {
        memory_mib: in_model(offerings, &name).map(|offering| offering.memory_mib).max().unwrap_or_default(),
        simulated: in_model(offerings, &name).any(|offering| offering.simulated),
        price: model_price(offerings, &name),
        name: name.clone(),
    };
    models(offerings).into_iter().map(describe).collect()
}

fn free_devices(offerings: &[Offering], model: &str) -> FreeDevices {
    let board = in_model(offerings, model).find(|offering| offering.mig_profile.is_none());
    let slices = in_model(offerings, model)
        .filter_map(|offering| offering.mig_profile.as_ref().map(|profile| (offering, profile)));
    // Variants of a profile may be rarer than the profile.
    let smallest = slices.min_by_key(|(offering, _)| (offering.cells, std::cmp::Reverse(offering.available)));
    let has_slices = smallest.as_ref().is_some_and(|(offering, _)| offering.capacity > 0);
    let board = board.filter(|offering| offering.capacity > 0 || !has_slices);
    FreeDevices {
        boards: board.map(|offering| (offering.available, offering.capacity)),
        slices: smallest.map(|(offering, profile)| (offering.available, profile.clone())),
    }
}

/// Returns the text of the free devices.
fn free_text(free: &FreeDevices) -> String {
    let slices = free.slices.as_ref().map(|(count, profile)| (u64::from(*count), profile.as_str()));
    match free.boards {
        Some((_, 0)) => "no board in service".to_owned(),
        boards => free_devices_text(boards.map_or(0, |(free, _)| u64::from(free)), slices),
    }
}

/// Returns the cells of a bar of boards, and the occupied ones. A free board is always visible.
fn bar_cells(free: u32, all: u32) -> (u32, u32) {
    let taken = all.saturating_sub(free);
    if all <= 8 {
        return (all, taken);
    }
    let scaled = taken.saturating_mul(MANY_CELLS).div_ceil(all);
    (MANY_CELLS, if free > 0 { scaled.min(MANY_CELLS - 1) } else { MANY_CELLS })
}

/// The bar of a model's boards: one cell for each board, or ten cells for all.
fn boards_bar((free, all): (u32, u32)) -> AnyView {
    let (cells, taken) = bar_cells(free, all);
    let tile = BarTile {
        start: 0,
        size: taken,
        label: String::new(),
        meta: String::new(),
        hue: 0,
        pattern: String::new(),
        own: false,
        foreign: true,
        level: 0,
        aria: String::new(),
    };
    let tiles = if taken > 0 { vec![tile] } else { Vec::new() };
    // Boards that are out of service are drawn as one hatched cell.
    let every = counted(usize::try_from(all).unwrap_or(usize::MAX), "board", "boards");
    let label = format!("{} of {every} taken", number(u64::from(all.saturating_sub(free))));
    view! {
        <BerthBar
            tiles=tiles
            cells=cells.max(1)
            quarantined={all == 0}
            size=BarSize::Inline
            label=label
        />
    }
    .into_any()
}

/// Returns the offering of a model that is nearest to the present choice: a whole board after a whole board, a
/// slice after a slice of this profile, otherwise the first choice of the model. An offering without devices comes
/// last, because no job with it starts.
fn choose_in_model(offerings: &[Offering], model: &str, present: &str) -> String {
    let kind = offerings.iter().find(|offering| offering.slug == present).map(|one| &one.mig_profile);
    let priced: Vec<Offering> = in_model(offerings, model).filter(|one| is_priced(one)).cloned().collect();
    let in_service: Vec<Offering> = priced.iter().filter(|one| one.capacity > 0).cloned().collect();
    let choices = if in_service.is_empty() { priced } else { in_service };
    match choices.iter().find(|one| kind == Some(&one.mig_profile)) {
        Some(offering) => offering.slug.clone(),
        None => first_choice(&choices),
    }
}

/// Returns the sentence about the lowest price of the free devices.
fn hint(offerings: &[Offering], chosen: &str) -> String {
    let is_known = offerings.iter().any(|offering| offering.slug == chosen);
    if !is_known && !chosen.is_empty() {
        return format!("{chosen} is not on sale. Choose a board model.");
    }
    match cheapest_free(offerings) {
        None => "No device is free now. A job would wait.".to_owned(),
        Some(cheapest) if cheapest.slug == chosen => {
            format!("{chosen} is chosen: it has the lowest price of the devices that are free now.")
        }
        Some(cheapest) => {
            let price = money_text(cheapest.price.per_hour_micros, &cheapest.price.currency);
            format!("The lowest price of the devices that are free now: {}, {price}/h.", cheapest.slug)
        }
    }
}

/// Returns the board model of the chosen offering; `None` for an unknown offering.
pub fn chosen_model(offerings: RwSignal<Vec<Offering>>, chosen: RwSignal<String>) -> Memo<Option<String>> {
    Memo::new(move |_| {
        let slug = chosen.get();
        offerings.with(|all| all.iter().find(|one| one.slug == slug).map(|one| one.gpu_model.clone()))
    })
}

/// The cards of the board models.
#[component]
pub fn BoardCards(
    /// All offerings with their present free capacity.
    offerings: RwSignal<Vec<Offering>>,
    /// The slug of the chosen offering.
    chosen: RwSignal<String>,
    /// The board model of the chosen offering.
    model: Memo<Option<String>>,
) -> impl IntoView {
    // Only the free capacity changes while the form is open.
    let models = offerings.with_untracked(|all| board_models(all));
    let cards: Vec<AnyView> = models.into_iter().map(|one| card(one, (offerings, chosen), model)).collect();
    let text = Memo::new(move |_| {
        let slug = chosen.get();
        offerings.with(|all| hint(all, &slug))
    });
    view! {
        <div class="models" role="radiogroup" aria-label="Board model" aria-describedby="model-hint">
            {cards}
        </div>
        <p class="field__hint" id="model-hint">{move || text.get()}</p>
    }
}

fn price_view(price: ModelPrice) -> AnyView {
    match price {
        ModelPrice::Board(text) => view! { {text}<span class="unit">"/h"</span> }.into_any(),
        ModelPrice::Slice(text) => view! { "slices from "{text}<span class="unit">"/h"</span> }.into_any(),
        ModelPrice::None => view! { "no price" }.into_any(),
    }
}

fn card(
    one: BoardModel,
    (offerings, chosen): (RwSignal<Vec<Offering>>, RwSignal<String>),
    model: Memo<Option<String>>,
) -> AnyView {
    let BoardModel { name, memory_mib, simulated, price } = one;
    let disabled = price == ModelPrice::None;
    let free = {
        let name = name.clone();
        Memo::new(move |_| offerings.with(|all| free_devices(all, &name)))
    };
    let free_text = move || free.with(free_text);
    let free_class = move || match free.with(|free| free.boards) {
        Some((0, _)) => "model__free model__free--none",
        _ => "model__free",
    };
    let initial = model.with_untracked(|model| model.as_ref() == Some(&name));
    let is_chosen = {
        let name = name.clone();
        move || model.with(|model| model.as_ref() == Some(&name))
    };
    let pick = {
        let name = name.clone();
        move |_: leptos::ev::Event| {
            let present = chosen.get_untracked();
            let slug = offerings.with_untracked(|all| choose_in_model(all, &name, &present));
            chosen.set(slug);
        }
    };
    let simulated = simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let value = name.clone();
    view! {
        <label class="model">
            <input
                type="radio"
                name="model"
                value=value
                disabled=disabled
                checked=initial
                prop:checked=is_chosen
                on:change=pick
            />
            <span class="model__name">{name}{simulated}</span>
            <span class="model__memory">{gib(memory_mib)}" "<span class="unit">"GiB"</span></span>
            <span class="model__price">{price_view(price)}</span>
            // A bar with other cells is drawn anew.
            <span class="model__bar">
                <For each=move || free.with(|free| free.boards) key=|boards| *boards let:boards>
                    {boards_bar(boards)}
                </For>
            </span>
            <span class=free_class>{free_text}</span>
        </label>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(
        (model, profile): (&str, Option<&str>),
        (cells, available, capacity): (u32, u32, u32),
        (per_hour_micros, version): (i64, i64),
    ) -> Offering {
        let slug = match profile {
            Some(profile) => format!("{}.{profile}", model.to_lowercase()),
            None => model.to_lowercase(),
        };
        serde_json::from_value(serde_json::json!({
            "id": "off_00000000000000000000000001", "slug": slug, "gpu_model": model, "mig_profile": profile,
            "memory_mib": i64::from(cells) * 10_240, "cells": cells, "board_cells": 8, "simulated": false,
            "available": available, "capacity": capacity,
            "price": {"nano_per_second": 1, "per_hour_micros": per_hour_micros, "currency": "USD", "version": version},
        }))
        .unwrap()
    }

    /// Two models with boards and slices, one with slices of a price only, and one without a price.
    fn offerings() -> Vec<Offering> {
        vec![
            offering(("A30", None), (8, 1, 1), (600_000, 1)),
            offering(("A30", Some("1g.6gb")), (2, 4, 4), (150_000, 1)),
            offering(("H100", None), (8, 1, 2), (3_000_000, 1)),
            offering(("H100", Some("2g.20gb")), (2, 4, 6), (800_000, 1)),
            offering(("H100", Some("1g.10gb")), (1, 9, 14), (400_000, 1)),
            offering(("H100", Some("1g.10gb+me")), (1, 2, 2), (400_000, 1)),
            offering(("H200", None), (8, 0, 12), (0, 0)),
            offering(("H200", Some("1g.18gb")), (1, 1, 84), (500_000, 1)),
            offering(("L40", None), (8, 0, 0), (0, 0)),
        ]
    }

    #[test]
    fn a_card_has_the_price_of_its_board_or_of_its_slices() {
        let models = board_models(&offerings());
        let facts: Vec<(&str, i64, ModelPrice)> =
            models.iter().map(|one| (one.name.as_str(), one.memory_mib, one.price.clone())).collect();
        let text = |micros: i64| money_text(micros, "USD");
        let wanted = [
            ("A30", 81_920, ModelPrice::Board(text(600_000))),
            ("H100", 81_920, ModelPrice::Board(text(3_000_000))),
            ("H200", 81_920, ModelPrice::Slice(text(500_000))),
            ("L40", 81_920, ModelPrice::None),
        ];
        assert_eq!(facts, wanted);
    }

    #[test]
    fn free_devices_are_boards_and_slices_of_the_smallest_profile() {
        let text = |model: &str| free_text(&free_devices(&offerings(), model));
        assert_eq!(text("H100"), "1 board free, or 9 slices of 1g.10gb");
        assert_eq!(text("H200"), "no board free, 1 slice of 1g.18gb");
        assert_eq!(text("L40"), "no board in service");
        assert_eq!(text("B200"), "no board free");
        let sliced = [
            offering(("A30", None), (8, 0, 0), (1, 1)),
            offering(("A30", Some("1g.6gb")), (2, 3, 4), (1, 1)),
        ];
        let sliced = free_devices(&sliced, "A30");
        assert_eq!((sliced.boards, free_text(&sliced).as_str()), (None, "no board free, 3 slices of 1g.6gb"));
    }

    #[test]
    fn a_bar_shows_each_free_board_up_to_eight_and_a_part_of_more() {
        for (boards, cells) in [
            ((0, 0), (0, 0)),
            ((1, 1), (1, 0)),
            ((3, 8), (8, 5)),
            ((12, 12), (10, 0)),
            ((1, 100), (10, 9)),
            ((0, 100), (10, 10)),
            ((99, 100), (10, 1)),
        ] {
            assert_eq!(bar_cells(boards.0, boards.1), cells, "{boards:?}");
        }
    }

    #[test]
    fn another_card_keeps_the_kind_of_device() {
        let all = offerings();
        for (model, present, wanted) in [
            ("H100", "a30", "h100"),
            ("A30", "h100", "a30"),
            ("H100", "a30.1g.6gb", "h100.1g.10gb"),
            // Whole boards have no price.
            ("H200", "h100", "h200.1g.18gb"),
            ("H100", "unknown", "h100.1g.10gb"),
            ("L40", "h100", ""),
        ] {
            assert_eq!(choose_in_model(&all, model, present), wanted, "{model} after {present}");
        }
        // All boards are in MIG mode, and all slices are in use.
        let sliced = [
            offering(("H100", None), (8, 1, 1), (3_000_000, 1)),
            offering(("A30", None), (8, 0, 0), (600_000, 1)),
            offering(("A30", Some("1g.6gb")), (2, 0, 4), (150_000, 1)),
        ];
        assert_eq!(choose_in_model(&sliced, "A30", "h100"), "a30.1g.6gb");
        let none = [offering(("A30", None), (8, 0, 0), (600_000, 1))];
        assert_eq!(choose_in_model(&none, "A30", "h100"), "a30", "no board is in service");
    }

    #[test]
    fn the_hint_names_the_cheapest_free_device() {
        let all = offerings();
        assert!(hint(&all, "a30.1g.6gb").starts_with("a30.1g.6gb is chosen: "));
        assert!(hint(&all, "h100").contains("free now: a30.1g.6gb, "), "{}", hint(&all, "h100"));
        assert_eq!(hint(&all, "b200"), "b200 is not on sale. Choose a board model.");
        assert!(hint(all.get(8..).unwrap(), "l40").starts_with("No device is free now."));
    }
}
