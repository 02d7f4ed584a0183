//! Payments in words.
//!
//! Pure text; must not guess what became of a payment of which nobody has heard.

use berth_types::money::money_text;
use berth_types::payments::{AutoRecharge, Payment, PaymentState};

/// How somebody came back from Stripe's page. What was paid is not known from that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Back {
    /// They paid there.
    Paid,
    /// They left it without paying.
    Cancelled,
}

impl Back {
    /// From the address that Stripe leads back to.
    pub fn read(name: &str) -> Option<Self> {
        match name {
            "done" => Some(Self::Paid),
            "cancelled" => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// A notice at the top of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Told {
    /// Which of the banners it is.
    pub tone: &'static str,
    /// What happened.
    pub title: &'static str,
    /// What it means, and what comes next.
    pub text: String,
}

/// The payment that was begun last by a person.
pub fn newest(payments: &[Payment]) -> Option<&Payment> {
    payments.iter().find(|payment| payment.kind == "checkout")
}

/// What somebody reads who came back; `payments` are newest first.
pub fn told(back: Back, payments: &[Payment]) -> Told {
    if back == Back::Cancelled {
        return Told {
            tone: "info",
            title: "Nothing was charged",
            text: "You left Stripe's page without paying. Begin again whenever you like.".to_owned(),
        };
    }
    match newest(payments) {
        Some(payment) if payment.state == PaymentState::Paid => {
            let amount = money_text(payment.amount_micros, &payment.currency);
            Told {
                tone: "good",
                title: "Your payment has arrived",
                text: format!("Stripe says that {amount} were paid. It stands in the ledger below."),
            }
        }
        Some(payment) if payment.state == PaymentState::Failed => Told {
            tone: "warn",
            title: "The payment did not go through",
            text: format!("{} Nothing was added to the balance.", payment.failure).trim_start().to_owned(),
        },
        _ => Told {
            tone: "info",
            title: "Your payment is on its way",
            text: "The balance follows when Stripe has said that it was paid, mostly within a minute. This page looks by itself; you need not pay again.".to_owned(),
        },
    }
}

/// How a payment was begun.
pub fn kind_words(kind: &str) -> String {
    match kind {
        "checkout" => "By card".to_owned(),
        "recharge" => "Automatic recharge".to_owned(),
        other => other.to_owned(),
    }
}

/// When the saved card is charged by itself, in one sentence.
pub fn rule_words(rule: &AutoRecharge, card_saved: bool, currency: &str) -> String {
    if !card_saved {
        return "No card is saved yet. Add credit once and keep the card; then it can be charged by itself."
            .to_owned();
    }
    if rule.amount_micros <= 0 {
        return "Off: the saved card is not charged by itself.".to_owned();
    }
    let often = match rule.most_a_day {
        1 => "once a day at most".to_owned(),
        most => format!("{most} times a day at most"),
    };
    format!(
        "On: when less than {} is available, {} is charged to the saved card, {often}.",
        money_text(rule.below_micros, currency),
        money_text(rule.amount_micros, currency)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payment(kind: &str, state: PaymentState) -> Payment {
        Payment {
            id: format!("pay_{:0>26}", 1).parse().unwrap(),
            kind: kind.to_owned(),
            state,
            amount_micros: 25_000_000,
            currency: "USD".to_owned(),
            created_at: berth_types::time::Timestamp::from_micros(0),
            created_by: "Grace Holm".to_owned(),
            done_at: None,
            failure: String::new(),
        }
    }

    #[test]
    fn who_comes_back_reads_what_is_known() {
        let paid =
            |state| told(Back::Paid, &[payment("recharge", PaymentState::Paid), payment("checkout", state)]);
        assert_eq!(paid(PaymentState::Open).title, "Your payment is on its way");
        assert_eq!(paid(PaymentState::Failed).title, "The payment did not go through");
        let arrived = paid(PaymentState::Paid);
        assert_eq!((arrived.tone, arrived.title), ("good", "Your payment has arrived"));
        assert!(arrived.text.contains("$25.00"), "{}", arrived.text);
        assert_eq!(told(Back::Paid, &[]).title, "Your payment is on its way");
        assert_eq!(told(Back::Cancelled, &[]).title, "Nothing was charged");
    }

    #[test]
    fn the_way_back_is_read_from_the_address() {
        assert_eq!(Back::read("done"), Some(Back::Paid));
        assert_eq!(Back::read("cancelled"), Some(Back::Cancelled));
        assert_eq!(Back::read("<b>"), None);
    }

    #[test]
    fn a_rule_reads_as_a_sentence() {
        let mut rule = AutoRecharge { below_micros: 10_000_000, amount_micros: 50_000_000, most_a_day: 1 };
        assert_eq!(
            rule_words(&rule, true, "USD"),
            "On: when less than $10.00 is available, $50.00 is charged to the saved card, once a day at most."
        );
        rule.most_a_day = 3;
        assert!(rule_words(&rule, true, "USD").ends_with("3 times a day at most."));
        assert!(rule_words(&rule, false, "USD").starts_with("No card is saved yet."));
        assert!(rule_words(&AutoRecharge::default(), true, "USD").starts_with("Off:"));
        assert_eq!((kind_words("checkout").as_str(), kind_words("later").as_str()), ("By card", "later"));
    }
}
