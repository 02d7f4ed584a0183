//! A new price as it is typed, and what a preview of it says.
//!
//! Pure; must not decide what a price may be: only what is no amount or no time is refused here, under
//! the pointers that the portal uses.

use berth_types::money::{money_text, parse_amount_micros};
use berth_types::offerings::{NewPrice, Offering, PricePreview};
use berth_types::problems::FieldError;

use super::super::super::days::moment;
use super::super::super::words::{counted, signed_money, typed_amount};

/// A price as it is typed; what is empty is left to the portal.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Draft {
    /// An hour, on demand.
    pub on_demand: String,
    /// An hour, while reserved.
    pub reserved: String,
    /// An hour, for preemptible jobs.
    pub preemptible: String,
    /// From when on, by clocks in UTC.
    pub from: String,
}

/// What is typed, unless that is nothing.
fn some(text: &str) -> Option<&str> {
    Some(text.trim()).filter(|text| !text.is_empty())
}

impl Draft {
    /// The price that an offering has, for changing it.
    pub fn of(offering: &Offering) -> Self {
        let price = &offering.price;
        let other = |micros: Option<i64>| micros.map(typed_amount).unwrap_or_default();
        Self {
            on_demand: if price.version > 0 { typed_amount(price.per_hour_micros) } else { String::new() },
            reserved: other(price.reserved_per_hour_micros),
            preemptible: other(price.preemptible_per_hour_micros),
            from: String::new(),
        }
    }

    /// The price, or what keeps this from being one.
    pub fn request(&self, offering: &str) -> Result<NewPrice, Vec<FieldError>> {
        let mut errors = Vec::new();
        let mut amount = |pointer: &str, text: &str| {
            let read = parse_amount_micros(text);
            if read.is_none() {
                let detail = "Give an amount such as 2.41, with six decimals at most.";
                errors.push(FieldError::new(pointer, detail));
            }
            read
        };
        let per_hour_micros = amount("/per_hour_micros", &self.on_demand);
        let reserved = some(&self.reserved).map(|text| amount("/reserved_per_hour_micros", text));
        let preemptible = some(&self.preemptible).map(|text| amount("/preemptible_per_hour_micros", text));
        let from = some(&self.from).map(moment);
        if from == Some(None) {
            errors.push(FieldError::new("/effective_from", "Give a day and a time, or neither."));
        }
        match per_hour_micros {
            Some(per_hour_micros) if errors.is_empty() => Ok(NewPrice {
                offering: offering.to_owned(),
                per_hour_micros,
                reserved_per_hour_micros: reserved.flatten(),
                preemptible_per_hour_micros: preemptible.flatten(),
                effective_from: from.flatten(),
            }),
            _ => Err(errors),
        }
    }
}

/// What the last thirty days would have cost.
pub fn preview_text(preview: &PricePreview) -> String {
    let Ok(jobs) = usize::try_from(preview.jobs) else { return String::new() };
    if jobs == 0 {
        return "In the last 30 days no job was charged for it: there is nothing to compare with.".to_owned();
    }
    let text = |micros: i64| money_text(micros, &preview.currency);
    let more = preview.would_micros.saturating_sub(preview.charged_micros);
    let was = if jobs == 1 { "was" } else { "were" };
    format!(
        "In the last 30 days {} {was} charged {} for it. At these prices it would have been {} ({}).",
        counted(jobs, "job", "jobs"),
        text(preview.charged_micros),
        text(preview.would_micros),
        signed_money(more, &preview.currency)
    )
}

/// From when on it holds, after it was set.
pub fn set_text(input: &NewPrice) -> String {
    match input.effective_from {
        Some(from) => format!("The price of {} is set; it holds from {}.", input.offering, from.minute()),
        None => format!("The price of {} is set; it holds from now on.", input.offering),
    }
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
    fn a_price_is_typed_as_it_is_and_becomes_itself() {
        let draft = Draft::of(&offering(3, Some(1_200_000)));
        assert_eq!((draft.on_demand.as_str(), draft.preemptible.as_str()), ("2.41", "1.20"));
        let price = draft.request("h100-80gb").unwrap();
        assert_eq!((price.per_hour_micros, price.reserved_per_hour_micros), (2_410_000, None));
        assert_eq!((price.preemptible_per_hour_micros, price.effective_from), (Some(1_200_000), None));
        assert_eq!(set_text(&price), "The price of h100-80gb is set; it holds from now on.");
        assert_eq!(Draft::of(&offering(0, None)), Draft::default());
    }

    #[test]
    fn every_fault_is_told_at_its_place() {
        let later =
            Draft { from: "2026-12-01T00:00".to_owned(), on_demand: "2".to_owned(), ..Draft::default() };
        let price = later.request("o").unwrap();
        assert_eq!(set_text(&price), "The price of o is set; it holds from 2026-12-01 00:00 UTC.");
        let bad = Draft {
            on_demand: String::new(),
            reserved: "half".to_owned(),
            preemptible: "0.0000001".to_owned(),
            from: "soon".to_owned(),
        };
        let at: Vec<String> = bad.request("o").unwrap_err().into_iter().map(|error| error.pointer).collect();
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
    fn a_preview_compares() {
        let of = |jobs: i64, charged: i64, would: i64| {
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
            of(2, 31_200_000, 28_100_000),
            "In the last 30 days 2 jobs were charged $31.20 for it. At these prices it would have been $28.10 (−$3.10)."
        );
        assert!(of(0, 0, 0).starts_with("In the last 30 days no job was charged"));
    }
}
