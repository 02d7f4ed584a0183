//! A client of Stripe's API: four calls, and the check of webhook signatures.
//!
//! The client is written by hand, because requests have few form fields and answers few used fields. Each
//! call has an id of Berth as its idempotency key, so a call without an answer can be repeated. This module
//! must not decide the state of a payment.

use std::time::Duration;

use hmac::{Hmac, Mac};
use serde::Deserialize;
use sha2::Sha256;

use berth_foundation::delivery::client;

const TIMEOUT: Duration = Duration::from_secs(20);
/// The permitted age of a signature in seconds, in both directions, as Stripe recommends.
const TOLERANCE_S: i64 = 300;

/// A client with the API key and the webhook secrets, which no method returns.
pub struct Stripe {
    client: reqwest::Client,
    base: String,
    key: String,
    secrets: Vec<String>,
}

impl std::fmt::Debug for Stripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stripe").field("base", &self.base).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StripeError {
    /// Stripe refused the request, with its reason. A repetition has the same result.
    Refused(String),
    /// The outcome is unknown. The caller repeats the request with the same idempotency key.
    Unknown(String),
}

#[derive(Debug, Clone, Deserialize)]
pub struct Customer {
    pub id: String,
}

#[derive(Debug, Clone, Deserialize)]
pub struct StripeSession {
    pub id: String,
    #[serde(default)]
    pub url: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct PaymentIntent {
    pub id: String,
    pub status: String,
}

#[derive(Deserialize)]
struct ErrorAnswer {
    error: ErrorObject,
}

#[derive(Deserialize)]
struct ErrorObject {
    #[serde(default)]
    message: String,
}

/// Form fields.
type Fields = Vec<(String, String)>;

fn fields(pairs: &[(&str, String)]) -> Fields {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
}

impl Stripe {
    /// `secrets` are the secrets of the webhook, newest first. A replacement of the secret needs several.
    /// `None` if the HTTP client cannot be built.
    pub fn new(base: &str, key: &str, secrets: &[String]) -> Option<Self> {
        Some(Self {
            client: client(false)?,
            base: base.trim_end_matches('/').to_owned(),
            key: key.to_owned(),
            secrets: secrets.to_vec(),
        })
    }

    async fn post<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        fields: &Fields,
        key: &str,
    ) -> Result<T, StripeError> {
        let sent = self
            .client
            .post(format!("{}{path}", self.base))
            .bearer_auth(&self.key)
            .header("idempotency-key", key)
            .timeout(TIMEOUT)
            .form(fields)
            .send()
            .await;
        let unknown = |why: &str| StripeError::Unknown(why.to_owned());
        let answer = sent.map_err(|e| {
            unknown(if e.is_timeout() { "Stripe did not answer in time" } else { "Stripe is out of reach" })
        })?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|_| unknown("Stripe's answer ended early"))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|_| unknown("Stripe's answer cannot be read"));
        }
        // An error of Stripe, a rate limit, or another request with the same key: the caller repeats later.
        if status.is_server_error() || matches!(status.as_u16(), 409 | 429) {
            return Err(unknown("Stripe cannot do it now"));
        }
        let message = serde_json::from_slice::<ErrorAnswer>(&body).map(|r| r.error.message);
        Err(StripeError::Refused(message.unwrap_or_else(|_| format!("Stripe answered {}", status.as_u16()))))
    }

    pub async fn create_customer(&self, org: &str, name: &str) -> Result<Customer, StripeError> {
        let form = fields(&[("name", name.to_owned()), ("metadata[org]", org.to_owned())]);
        self.post("/v1/customers", &form, &format!("customer-{org}")).await
    }

    /// Creates a page at Stripe for one payment by a person.
    pub async fn create_checkout(&self, checkout: &Checkout<'_>) -> Result<StripeSession, StripeError> {
        let mut form = fields(&[
            ("mode", "payment".to_owned()),
            ("customer", checkout.customer.to_owned()),
            ("client_reference_id", checkout.payment.to_owned()),
            ("line_items[0][quantity]", "1".to_owned()),
            ("line_items[0][price_data][currency]", checkout.currency.to_lowercase()),
            ("line_items[0][price_data][unit_amount]", checkout.minor_units.to_string()),
            ("line_items[0][price_data][product_data][name]", checkout.item_name.to_owned()),
            ("payment_intent_data[metadata][payment]", checkout.payment.to_owned()),
            ("metadata[payment]", checkout.payment.to_owned()),
            ("success_url", checkout.success_url.clone()),
            ("cancel_url", checkout.cancel_url.clone()),
        ]);
        if checkout.save_card {
            form.push(("payment_intent_data[setup_future_usage]".to_owned(), "off_session".to_owned()));
        }
        self.post("/v1/checkout/sessions", &form, checkout.payment).await
    }

    /// Charges a saved card without its owner present.
    pub async fn charge_saved(
        &self,
        payment: &str,
        (customer, method): (&str, &str),
        (minor_units, currency): (i64, &str),
    ) -> Result<PaymentIntent, StripeError> {
        let form = fields(&[
            ("amount", minor_units.to_string()),
            ("currency", currency.to_lowercase()),
            ("customer", customer.to_owned()),
            ("payment_method", method.to_owned()),
            ("off_session", "true".to_owned()),
            ("confirm", "true".to_owned()),
            ("metadata[payment]", payment.to_owned()),
        ]);
        self.post("/v1/payment_intents", &form, payment).await
    }

    /// Creates a page at Stripe with the receipts and cards of a customer.
    pub async fn create_portal(
        &self,
        customer: &str,
        return_url: &str,
        key: &str,
    ) -> Result<StripeSession, StripeError> {
        let form = fields(&[("customer", customer.to_owned()), ("return_url", return_url.to_owned())]);
        self.post("/v1/billing_portal/sessions", &form, key).await
    }

    /// Returns true if one of the secrets signed this body within the last five minutes (`TOLERANCE_S`).
    pub fn verify(&self, header: &str, body: &[u8], now_s: i64) -> bool {
        let mut at = None;
        let mut signatures = Vec::new();
        for part in header.split(',') {
            match part.trim().split_once('=') {
                Some(("t", t)) => at = t.parse::<i64>().ok(),
                Some(("v1", v1)) => signatures.extend(parse_hex(v1)),
                _ => {}
            }
        }
        let Some(at) = at.filter(|at| now_s.abs_diff(*at) <= TOLERANCE_S.unsigned_abs()) else {
            return false;
        };
        self.secrets.iter().any(|secret| {
            signatures.iter().any(|signature| {
                let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(secret.as_bytes()) else { return false };
                mac.update(format!("{at}.").as_bytes());
                mac.update(body);
                // This comparison takes constant time.
                mac.verify_slice(signature).is_ok()
            })
        })
    }
}

/// The input of a checkout page.
#[derive(Debug)]
pub struct Checkout<'a> {
    pub payment: &'a str,
    pub customer: &'a str,
    pub item_name: &'a str,
    pub minor_units: i64,
    pub currency: &'a str,
    pub save_card: bool,
    pub success_url: String,
    pub cancel_url: String,
}

fn parse_hex(text: &str) -> Option<Vec<u8>> {
    if !text.is_ascii() || !text.len().is_multiple_of(2) {
        return None;
    }
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(text.get(i..i + 2)?, 16).ok()).collect()
}

/// Micros in the smallest unit of a currency, such as a cent or a yen.
///
/// Source: Stripe's list of zero-decimal and three-decimal currencies.
pub fn minor_unit_micros(currency: &str) -> i64 {
    match currency.to_ascii_uppercase().as_str() {
        "BIF" | "CLP" | "DJF" | "GNF" | "JPY" | "KMF" | "KRW" | "MGA" | "PYG" | "RWF" | "VND" | "VUV"
        | "XAF" | "XOF" | "XPF" => 1_000_000,
        "BHD" | "JOD" | "KWD" | "OMR" | "TND" => 1_000,
        _ => 10_000,
    }
}

/// The step of payable amounts in micros.
///
/// Stripe counts some currencies in hundredths but takes whole units only. An amount of a currency with three
/// decimals must end in the digit 0.
pub fn payable_step_micros(currency: &str) -> i64 {
    match currency.to_ascii_uppercase().as_str() {
        "UGX" | "ISK" => 1_000_000,
        _ => minor_unit_micros(currency).max(10_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_foundation::delivery::sign;

    #[test]
    fn only_fresh_signatures_of_a_known_secret_count() {
        let stripe = Stripe::new("http://x", "sk_test", &["new".to_owned(), "old".to_owned()]).unwrap();
        let body = r#"{"id":"evt_1"}"#;
        let header = |secret: &str, at: i64| format!("t={at},v1={},v0=ff", sign(secret, at, body));
        for secret in ["new", "old"] {
            assert!(stripe.verify(&header(secret, 1_000), body.as_bytes(), 1_300), "{secret}");
        }
        assert!(!stripe.verify(&header("new", 1_000), body.as_bytes(), 1_301), "too old");
        assert!(!stripe.verify(&header("new", 1_000), body.as_bytes(), 699), "from the future");
        assert!(!stripe.verify(&header("other", 1_000), body.as_bytes(), 1_000));
        assert!(!stripe.verify(&header("new", 1_000), br#"{"id":"evt_2"}"#, 1_000), "one byte is another");
        let two = format!("t=1000,v1={},v1={}", sign("other", 1_000, body), sign("old", 1_000, body));
        assert!(stripe.verify(&two, body.as_bytes(), 1_000), "while Stripe rolls its secret over");
        for bad in ["", "t=,v1=", "t=x,v1=00", "v1=00", "t=1000", "t=1000,v1=zz", "t=1000,v1=é"] {
            assert!(!stripe.verify(bad, body.as_bytes(), 1_000), "{bad}");
        }
        assert!(!format!("{stripe:?}").contains("sk_test"));
    }

    #[test]
    fn currencies_have_their_own_smallest_unit() {
        assert_eq!(
            (minor_unit_micros("usd"), minor_unit_micros("JPY"), minor_unit_micros("KWD")),
            (10_000, 1_000_000, 1_000)
        );
        assert_eq!((minor_unit_micros("UGX"), payable_step_micros("UGX")), (10_000, 1_000_000));
        assert_eq!((payable_step_micros("KWD"), payable_step_micros("EUR")), (10_000, 10_000));
    }
}
