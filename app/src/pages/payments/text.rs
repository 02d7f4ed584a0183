//! Texts of payments.
//!
//! Pure. A payment without a confirmation of Stripe counts as pending.

use berth_types::money::money_text;
use berth_types::payments::{AutoRecharge, Payment, PaymentState};

/// The way back from Stripe's payment page. It does not prove a payment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckoutReturn {
    /// After the payment.
    Paid,
    /// Without a payment.
    Cancelled,
}

impl CheckoutReturn {
    /// Parses the query parameter of Stripe's return address.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "done" => Some(Self::Paid),
            "cancelled" => Some(Self::Cancelled),
            _ => None,
        }
    }
}

/// The text of the banner at the top of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnNotice {
    /// The suffix of the banner's class.
    pub tone: &'static str,
    /// The result of the payment.
    pub title: &'static str,
    /// The consequence and the next step.
    pub text: String,
}

/// Finds the latest card payment that a user started; `payments` are newest first.
pub fn latest_checkout(payments: &[Payment]) -> Option<&Payment> {
    payments.iter().find(|payment| payment.kind == "checkout")
}

/// Returns the notice after the return from Stripe; `payments` are newest first.
pub fn return_notice(from: CheckoutReturn, payments: &[Payment]) -> ReturnNotice {
    if from == CheckoutReturn::Cancelled {
        return ReturnNotice {
            tone: "info",
            title: "Payment cancelled",
            text: "You left the payment page of Stripe without a payment. Nothing was charged.".to_owned(),
        };
    }
    match latest_checkout(payments) {
        Some(payment) if payment.state == PaymentState::Paid => {
            let amount = money_text(payment.amount_micros, &payment.currency);
            ReturnNotice {
                tone: "good",
                title: "Payment received",
                text: format!("Stripe confirmed the payment of {amount}. The ledger below has the entry."),
            }
        }
        Some(payment) if payment.state == PaymentState::Failed => ReturnNotice {
            tone: "warn",
            title: "Payment failed",
            text: format!("{} Your balance did not change.", payment.failure).trim_start().to_owned(),
        },
        _ => ReturnNotice {
            tone: "info",
            title: "Payment pending",
            text: "Stripe has not confirmed the payment yet; this usually takes less than a minute. This page updates itself. Do not pay again.".to_owned(),
        },
    }
}

/// Returns the method of a payment as text; unknown kinds stay unchanged.
pub fn kind_text(kind: &str) -> String {
    match kind {
        "checkout" => "Card payment".to_owned(),
        "recharge" => "Automatic recharge".to_owned(),
        other => other.to_owned(),
    }
}

/// Returns the rule of the automatic recharge as a sentence.
pub fn rule_text(rule: &AutoRecharge, card_saved: bool, currency: &str) -> String {
    if !card_saved {
        return "No saved card. To save a card, add credit and select \"Save card\".".to_owned();
    }
    if rule.amount_micros <= 0 {
        return "Off: the saved card is not charged automatically.".to_owned();
    }
    let limit = match rule.most_a_day {
        1 => "at most once a day (UTC)".to_owned(),
        most => format!("at most {most} times a day (UTC)"),
    };
    format!(
        "On: when less than {} is available, {} is charged to the saved card, {limit}.",
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
    fn the_notice_follows_the_state_of_the_payment() {
        let paid = |state| {
            let payments = [payment("recharge", PaymentState::Paid), payment("checkout", state)];
            return_notice(CheckoutReturn::Paid, &payments)
        };
        assert_eq!(paid(PaymentState::Open).title, "Payment pending");
        assert_eq!(paid(PaymentState::Failed).title, "Payment failed");
        let received = paid(PaymentState::Paid);
        assert_eq!((received.tone, received.title), ("good", "Payment received"));
        assert!(received.text.contains("$25.00"), "{}", received.text);
        assert_eq!(return_notice(CheckoutReturn::Paid, &[]).title, "Payment pending");
        assert_eq!(return_notice(CheckoutReturn::Cancelled, &[]).title, "Payment cancelled");
    }

    #[test]
    fn the_return_is_parsed_from_the_address() {
        assert_eq!(CheckoutReturn::parse("done"), Some(CheckoutReturn::Paid));
        assert_eq!(CheckoutReturn::parse("cancelled"), Some(CheckoutReturn::Cancelled));
        assert_eq!(CheckoutReturn::parse("<b>"), None);
    }

    #[test]
    fn a_rule_is_a_sentence() {
        let mut rule = AutoRecharge { below_micros: 10_000_000, amount_micros: 50_000_000, most_a_day: 1 };
        assert_eq!(
            rule_text(&rule, true, "USD"),
            "On: when less than $10.00 is available, $50.00 is charged to the saved card, at most once a day (UTC)."
        );
        rule.most_a_day = 3;
        assert!(rule_text(&rule, true, "USD").ends_with("at most 3 times a day (UTC)."));
        assert!(rule_text(&rule, false, "USD").starts_with("No saved card."));
        assert!(rule_text(&AutoRecharge::default(), true, "USD").starts_with("Off:"));
        assert_eq!((kind_text("checkout").as_str(), kind_text("later").as_str()), ("Card payment", "later"));
    }
}
