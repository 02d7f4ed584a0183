//! Parsing of a new price, and texts of its preview.
//!
//! Pure. Only the syntax is checked, with the pointers of the portal; the portal checks the values.

use berth_types::money::{money_text, parse_amount_micros};
use berth_types::offerings::{NewPrice, Offering, PricePreview, PriceVersion};
use berth_types::problems::FieldError;

use super::super::super::text::{counted, signed_money, typed_amount};
use crate::ui::Zone;

/// The input of a new price. An empty field has the default of the portal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// The price per hour on demand.
    pub on_demand: String,
    /// The price per hour for reservations.
    pub reserved: String,
    /// The price per hour for preemptible jobs.
    pub preemptible: String,
    /// The effective time in the zone of the pages.
    pub from: String,
}

/// Returns trimmed input; `None` without input.
fn non_empty(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

impl Draft {
    /// Returns the current price of an offering as input.
    pub fn from_offering(offering: &Offering) -> Self {
        let price = &offering.price;
        let other = |micros: Option<i64>| micros.map(typed_amount).unwrap_or_default();
        Self {
            on_demand: if price.version > 0 { typed_amount(price.per_hour_micros) } else { String::new() },
            reserved: other(price.reserved_per_hour_micros),
            preemptible: other(price.preemptible_per_hour_micros),
            from: String::new(),
        }
    }

    /// Parses the input.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn request(&self, offering: &str, zone: Zone) -> Result<NewPrice, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut amount = |pointer: &str, text: &str| {
            let parsed = parse_amount_micros(text);
            if parsed.is_none() {
                let detail = "Enter an amount, such as 2.41, with at most six decimals.";
                errors.push(FieldError::new(pointer, detail));
            }
            parsed
        };
        let per_hour_micros = amount("/per_hour_micros", &self.on_demand);
        let reserved = non_empty(&self.reserved).map(|text| amount("/reserved_per_hour_micros", text));
        let preemptible =
            non_empty(&self.preemptible).map(|text| amount("/preemptible_per_hour_micros", text));
        let from = non_empty(&self.from).map(|text| zone.instant(text));
        if let Some(Err(error)) = from {
            errors.push(FieldError::new("/effective_from", format!("{} Empty: at once.", error.text())));
        }
        match per_hour_micros {
            Some(per_hour_micros) if errors.is_empty() => Ok(NewPrice {
                offering: offering.to_owned(),
                per_hour_micros,
                reserved_per_hour_micros: reserved.flatten(),
                preemptible_per_hour_micros: preemptible.flatten(),
                effective_from: from.and_then(Result::ok),
            }),
            _ => Err(errors),
        }
    }
}

/// Returns the cost of the last 30 days with the present and the new prices.
pub fn preview_text(preview: &PricePreview) -> String {
    let Ok(jobs) = usize::try_from(preview.jobs) else { return String::new() };
    if jobs == 0 {
        return "In the last 30 days, no job was charged for this offering; there is no comparison."
            .to_owned();
    }
    let text = |micros: i64| money_text(micros, &preview.currency);
    let more = preview.would_micros.saturating_sub(preview.charged_micros);
    let was = if jobs == 1 { "was" } else { "were" };
    format!(
        "In the last 30 days, {} {was} charged {} for this offering. With the new prices: {} ({}).",
        counted(jobs, "job", "jobs"),
        text(preview.charged_micros),
        text(preview.would_micros),
        signed_money(more, &preview.currency)
    )
}

/// Returns the status after a new price.
pub fn status_text(input: &NewPrice, zone: Zone) -> String {
    match input.effective_from {
        Some(from) => format!("Price of {} set, effective from {}.", input.offering, zone.minute(from)),
        None => format!("Price of {} set, effective at once.", input.offering),
    }
}

/// Returns the price on demand, and the other ones that are different: `$2.41/h, $2.00/h reserved`.
pub fn planned_text(price: &PriceVersion) -> String {
    let hourly = |micros: i64| format!("{}/h", money_text(micros, &price.currency));
    let other = |micros: Option<i64>, mode: &str| micros.map(|micros| format!("{} {mode}", hourly(micros)));
    let reserved = other(price.reserved_per_hour_micros, "reserved");
    let preemptible = other(price.preemptible_per_hour_micros, "preemptible");
    let all = [Some(hourly(price.per_hour_micros)), reserved, preemptible];
    all.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offering(version: i64, preemptible: Option<i64>) -> Offering {
        serde_json::from_value(serde_json::json!({
            "id": "off_00000000000000000000000001", "slug": "h100-80gb", "gpu_model": "H100", "memory_mib": 1,
            "cells": 8, "board_cells": 8, "simulated": false, "available": 1, "capacity": 1,
            "price": {
                "nano_per_second": 1, "per_hour_micros": 2_410_000, "currency": "USD", "version": version,
                "preemptible_per_hour_micros": preemptible,
            },
        }))
        .unwrap()
    }

    #[test]
    fn a_price_survives_input_and_parsing() {
        let draft = Draft::from_offering(&offering(3, Some(1_200_000)));
        assert_eq!((draft.on_demand.as_str(), draft.preemptible.as_str()), ("2.41", "1.20"));
        let price = draft.request("h100-80gb", Zone::Utc).unwrap();
        assert_eq!((price.per_hour_micros, price.reserved_per_hour_micros), (2_410_000, None));
        assert_eq!((price.preemptible_per_hour_micros, price.effective_from), (Some(1_200_000), None));
        assert_eq!(status_text(&price, Zone::Utc), "Price of h100-80gb set, effective at once.");
        assert_eq!(Draft::from_offering(&offering(0, None)), Draft::default());
    }

    #[test]
    fn each_invalid_field_has_an_error() {
        let later =
            Draft { from: "2026-12-01T00:00".to_owned(), on_demand: "2".to_owned(), ..Draft::default() };
        let price = later.request("o", Zone::Utc).unwrap();
        assert_eq!(status_text(&price, Zone::Utc), "Price of o set, effective from 2026-12-01 00:00 UTC.");
        let invalid = Draft {
            on_demand: String::new(),
            reserved: "half".to_owned(),
            preemptible: "0.0000001".to_owned(),
            from: "soon".to_owned(),
        };
        let at: Vec<String> =
            invalid.request("o", Zone::Utc).unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(
            at,
            [
                "/per_hour_micros",
                "/reserved_per_hour_micros",
                "/preemptible_per_hour_micros",
                "/effective_from"
            ]
        );
    }

    #[test]
    fn a_planned_price_names_its_other_modes() {
        let price = serde_json::from_value(serde_json::json!({
            "offering": "a30", "version": 2, "nano_per_second": 1, "per_hour_micros": 2_410_000, "currency": "USD",
            "preemptible_per_hour_micros": 1_200_000, "effective_from": "2026-12-01T00:00:00Z", "set_by": "ada",
        }));
        assert_eq!(planned_text(&price.unwrap()), "$2.41/h, $1.20/h preemptible");
    }

    #[test]
    fn a_preview_compares_the_costs() {
        let text = |jobs: i64, charged: i64, would: i64| {
            preview_text(&PricePreview {
                offering: "o".to_owned(),
                since: "2026-10-22T00:00:00Z".parse().unwrap(),
                jobs,
                charged_micros: charged,
                would_micros: would,
                currency: "USD".to_owned(),
            })
        };
        assert_eq!(
            text(2, 31_200_000, 28_100_000),
            "In the last 30 days, 2 jobs were charged $31.20 for this offering. With the new prices: $28.10 (−$3.10)."
        );
        assert!(text(0, 0, 0).starts_with("In the last 30 days, no job was charged"));
    }
}
