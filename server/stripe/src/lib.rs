//! A client of Stripe: four calls, and the check of webhook signatures.
//!
//! The libraries of async-stripe make the requests and check the signatures. Answers are read by the few fields
//! that Berth uses, so a newer API version of Stripe loses no payment. Each call has an id of Berth as its
//! idempotency key, so a call without an answer can be repeated. This crate must not decide the state of a
//! payment.

use std::collections::HashMap;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use stripe_billing::billing_portal_session::CreateBillingPortalSession;
use stripe_checkout::checkout_session::{
    CreateCheckoutSession, CreateCheckoutSessionLineItems, CreateCheckoutSessionLineItemsPriceData,
    CreateCheckoutSessionPaymentIntentData, CreateCheckoutSessionPaymentIntentDataSetupFutureUsage,
    ProductData,
};
use stripe_client_core::StripeRequest;
use stripe_core::customer::CreateCustomer;
use stripe_core::payment_intent::{CreatePaymentIntent, CreatePaymentIntentOffSession};
use stripe_shared::CheckoutSessionMode;
use stripe_webhook::{Webhook, WebhookError};

const TIMEOUT: Duration = Duration::from_secs(20);

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

fn metadata(name: &str, value: &str) -> HashMap<String, String> {
    HashMap::from([(name.to_owned(), value.to_owned())])
}

/// The type of a currency; Stripe refuses an unknown one.
fn currency(code: &str) -> stripe_types::Currency {
    let code = code.to_lowercase();
    code.parse().unwrap_or(stripe_types::Currency::Unknown(code))
}

impl Stripe {
    /// Names the settings of another form than those of Stripe. Another server with its API can have them.
    pub fn unusual_settings(base: &str, key: &str, secrets: &[String]) -> Vec<&'static str> {
        let is_url = base.starts_with("https://") || base.starts_with("http://");
        let is_key = key.starts_with("sk_") || key.starts_with("rk_");
        let are_secrets = secrets.iter().all(|secret| secret.starts_with("whsec_"));
        let checks = [
            (is_url, "--stripe-url is no https:// or http:// address, so no payment can begin"),
            (is_key, "--stripe-key does not begin with sk_ or rk_ like a secret key of Stripe"),
            (
                are_secrets,
                "--stripe-webhook-secrets has a secret that does not begin with whsec_ like the signing secrets of Stripe",
            ),
        ];
        checks.into_iter().filter(|(is_usual, _)| !is_usual).map(|(_, text)| text).collect()
    }

    /// `secrets` are the secrets of the webhook, newest first. A replacement of the secret needs several.
    pub fn new(client: reqwest::Client, base: &str, key: &str, secrets: &[String]) -> Self {
        Self {
            client,
            base: base.trim_end_matches('/').to_owned(),
            key: key.to_owned(),
            secrets: secrets.to_vec(),
        }
    }

    /// Sends a request. `key` is its idempotency key.
    async fn send<T: DeserializeOwned>(
        &self,
        request: &impl StripeRequest,
        key: &str,
    ) -> Result<T, StripeError> {
        let request = request.build();
        let sent = self
            .client
            .post(format!("{}/v1{}", self.base, request.path))
            .bearer_auth(&self.key)
            .header("idempotency-key", key)
            .header("content-type", "application/x-www-form-urlencoded")
            .timeout(TIMEOUT)
            .body(request.body.unwrap_or_default())
            .send()
            .await;
        let unknown = |why: &str| StripeError::Unknown(why.to_owned());
        let answer = sent.map_err(|e| {
            unknown(if e.is_timeout() { "Stripe did not answer in time" } else { "Stripe is unreachable" })
        })?;
        let status = answer.status();
        let body = answer.bytes().await.map_err(|_| unknown("the answer of Stripe ended early"))?;
        if status.is_success() {
            return serde_json::from_slice(&body)
                .map_err(|_| unknown("the answer of Stripe is not readable"));
        }
        // An error of Stripe, a rate limit, or another request with the same key: the caller repeats later.
        if status.is_server_error() || matches!(status.as_u16(), 409 | 429) {
            return Err(unknown("Stripe is temporarily unavailable"));
        }
        let message = serde_json::from_slice::<ErrorAnswer>(&body).map(|r| r.error.message);
        Err(StripeError::Refused(message.unwrap_or_else(|_| format!("Stripe answered {}", status.as_u16()))))
    }

    /// Creates the customer of an organization.
    ///
    /// # Errors
    ///
    /// Stripe refused, or the outcome is unknown; the same for the other calls.
    pub async fn create_customer(&self, org: &str, name: &str) -> Result<Customer, StripeError> {
        let request = CreateCustomer::new().name(name).metadata(metadata("org", org));
        self.send(&request, &format!("customer-{org}")).await
    }

    /// Creates a page at Stripe for one payment by a person.
    ///
    /// # Errors
    ///
    /// See [`Stripe::create_customer`].
    pub async fn create_checkout(&self, checkout: &Checkout<'_>) -> Result<StripeSession, StripeError> {
        self.send(&checkout.request(), checkout.payment).await
    }

    /// Charges a saved card without its owner present.
    ///
    /// # Errors
    ///
    /// See [`Stripe::create_customer`].
    pub async fn charge_saved(
        &self,
        payment: &str,
        (customer, method): (&str, &str),
        (minor_units, code): (i64, &str),
    ) -> Result<PaymentIntent, StripeError> {
        let request = CreatePaymentIntent::new(minor_units, currency(code))
            .customer(customer)
            .payment_method(method)
            .off_session(CreatePaymentIntentOffSession::Bool(true))
            .confirm(true)
            .metadata(metadata("payment", payment));
        self.send(&request, payment).await
    }

    /// Creates a page at Stripe with the receipts and cards of a customer.
    ///
    /// # Errors
    ///
    /// See [`Stripe::create_customer`].
    pub async fn create_portal(
        &self,
        customer: &str,
        return_url: &str,
        key: &str,
    ) -> Result<StripeSession, StripeError> {
        let request = CreateBillingPortalSession::new().customer(customer).return_url(return_url);
        self.send(&request, key).await
    }

    /// Returns true if one of the secrets signed this body within the last five minutes, or will within five.
    pub fn verify(&self, header: &str, body: &str, now_s: i64) -> bool {
        self.secrets.iter().any(|secret| {
            let event = Webhook::construct_event_with_timestamp(body, header, secret, now_s);
            // The library reads the event after the check of the signature. An event that it cannot read is signed.
            matches!(event, Ok(_) | Err(WebhookError::BadParse(_)))
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

impl Checkout<'_> {
    fn request(&self) -> CreateCheckoutSession {
        let mut price = CreateCheckoutSessionLineItemsPriceData::new(currency(self.currency));
        price.unit_amount = Some(self.minor_units);
        price.product_data = Some(ProductData::new(self.item_name));
        let mut item = CreateCheckoutSessionLineItems::new();
        item.quantity = Some(1);
        item.price_data = Some(price);
        let mut intent = CreateCheckoutSessionPaymentIntentData::new();
        intent.metadata = Some(metadata("payment", self.payment));
        intent.setup_future_usage =
            self.save_card.then_some(CreateCheckoutSessionPaymentIntentDataSetupFutureUsage::OffSession);
        CreateCheckoutSession::new()
            .mode(CheckoutSessionMode::Payment)
            .customer(self.customer)
            .client_reference_id(self.payment)
            .line_items(vec![item])
            .payment_intent_data(intent)
            .metadata(metadata("payment", self.payment))
            .success_url(self.success_url.as_str())
            .cancel_url(self.cancel_url.as_str())
    }
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
    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRunner};

    use super::*;

    fn stripe() -> Stripe {
        // A second test may have installed it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Stripe::new(reqwest::Client::new(), "http://x", "sk_test", &["new".to_owned(), "old".to_owned()])
    }

    #[test]
    fn settings_of_another_form_are_named() {
        let unusual = |base: &str, key: &str, secrets: &[&str]| {
            let secrets: Vec<String> = secrets.iter().map(|&secret| secret.to_owned()).collect();
            let found = Stripe::unusual_settings(base, key, &secrets);
            found.into_iter().filter_map(|text| text.split(' ').next()).collect::<Vec<_>>()
        };
        let good = ("https://api.stripe.com", "sk_live_1", "whsec_1");
        assert!(unusual(good.0, good.1, &[good.2, good.2]).is_empty());
        assert!(unusual("http://127.0.0.1:12111", "rk_test_1", &[]).is_empty());
        assert_eq!(unusual("ftp://x", good.1, &[good.2]), ["--stripe-url"]);
        assert_eq!(unusual(good.0, "pk_live_1", &[good.2]), ["--stripe-key"]);
        assert_eq!(unusual(good.0, good.1, &[good.2, "foo"]), ["--stripe-webhook-secrets"]);
    }

    #[test]
    fn only_fresh_signatures_of_a_known_secret_count() {
        let stripe = stripe();
        let body = r#"{"id":"evt_1"}"#;
        let header = |secret: &str, at: i64| Webhook::generate_test_header(body, secret, Some(at));
        for secret in ["new", "old"] {
            assert!(stripe.verify(&header(secret, 1_000), body, 1_300), "{secret}");
        }
        assert!(!stripe.verify(&header("new", 1_000), body, 1_301), "too old");
        assert!(!stripe.verify(&header("new", 1_000), body, 699), "from the future");
        assert!(!stripe.verify(&header("other", 1_000), body, 1_000));
        assert!(!stripe.verify(&header("new", 1_000), r#"{"id":"evt_2"}"#, 1_000), "one byte is another");
        let old = header("old", 1_000);
        let two = format!("{},{}", header("other", 1_000), old.split_once(',').unwrap().1);
        assert!(stripe.verify(&two, body, 1_000), "while Stripe replaces its secret");
        for bad in ["", "t=,v1=", "t=x,v1=00", "v1=00", "t=1000", "t=1000,v1=zz", "t=1000,v1=\u{e9}"] {
            assert!(!stripe.verify(bad, body, 1_000), "{bad}");
        }
        assert!(!format!("{stripe:?}").contains("sk_test"));
    }

    #[test]
    fn no_signature_without_a_secret_counts() {
        let stripe = stripe();
        let piece = prop_oneof![
            prop::sample::select(vec![
                "t=",
                "v1=",
                "v0=",
                ",",
                "=",
                "1000",
                "-9223372036854775808",
                "00",
                " "
            ])
            .prop_map(|piece| piece.to_owned()),
            "[0-9a-f]{64}",
            "(?s).{0,8}",
        ];
        let header = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
        let body = prop_oneof![Just(r#"{"id":"evt_1"}"#.to_owned()), "(?s).{0,40}"];
        let mut runner = TestRunner::new(Config::with_cases(1_000));
        let ran = runner.run(&(header, body, any::<i64>()), |(header, body, now_s)| {
            prop_assert!(!stripe.verify(&header, &body, now_s));
            Ok(())
        });
        assert_eq!(ran, Ok(()));
    }

    #[test]
    fn a_checkout_has_these_fields() {
        let checkout = Checkout {
            payment: "pay_1",
            customer: "cus_1",
            item_name: "Credit; more & more",
            minor_units: 2_500,
            currency: "USD",
            save_card: true,
            success_url: "https://berth.test/ok".to_owned(),
            cancel_url: "https://berth.test/no".to_owned(),
        };
        let request = checkout.request().build();
        assert_eq!(request.path, "/checkout/sessions");
        let body = request.body.unwrap();
        assert!(!body.contains([';', ':', '/', ' ']), "{body}");
        let url = reqwest::Url::parse(&format!("http://x/?{body}")).unwrap();
        let mut fields: Vec<String> =
            url.query_pairs().map(|(name, value)| format!("{name}={value}")).collect();
        fields.sort_unstable();
        assert_eq!(
            fields,
            [
                "cancel_url=https://berth.test/no",
                "client_reference_id=pay_1",
                "customer=cus_1",
                "line_items[0][price_data][currency]=usd",
                "line_items[0][price_data][product_data][name]=Credit; more & more",
                "line_items[0][price_data][unit_amount]=2500",
                "line_items[0][quantity]=1",
                "metadata[payment]=pay_1",
                "mode=payment",
                "payment_intent_data[metadata][payment]=pay_1",
                "payment_intent_data[setup_future_usage]=off_session",
                "success_url=https://berth.test/ok",
            ]
        );
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
