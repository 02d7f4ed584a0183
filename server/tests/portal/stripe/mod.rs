//! A stand-in for Stripe that keeps state: customers, checkout pages, saved cards, refunds, disputes. It
//! keeps idempotency keys as Stripe does, signs its events as Stripe does, and can be slow, down, or
//! answer after the caller has given up.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use axum::Json;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use axum::routing::post;
use berth_foundation::delivery::sign;
use serde_json::{Value, json};

pub const KEY: &str = "sk_test_standin";
pub const SECRET: &str = "whsec_standin";

/// What happens to the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mood {
    Well,
    /// 503, and nothing is done.
    Down,
    /// It is done, and the answer is lost.
    Forgetful,
    /// 402: the card is declined.
    Declining,
}

#[derive(Default)]
struct Ledger {
    mood: Vec<Mood>,
    /// Answers by idempotency key.
    answers: HashMap<String, Value>,
    /// Checkout pages and payment intents, by id.
    sessions: HashMap<String, Value>,
    intents: HashMap<String, Value>,
    events: u64,
    requests: Vec<String>,
}

#[derive(Clone, Default)]
pub struct FakeStripe(Arc<Mutex<Ledger>>);

type Form2 = Form<HashMap<String, String>>;

impl FakeStripe {
    pub async fn open() -> (Self, String) {
        let stripe = Self::default();
        let app = axum::Router::new()
            .route("/v1/customers", post(customers))
            .route("/v1/checkout/sessions", post(sessions))
            .route("/v1/payment_intents", post(intents))
            .route("/v1/{*other}", post(other))
            .with_state(stripe.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, app).await });
        (stripe, url)
    }

    /// The next requests go so, one after the other; then all is well.
    pub fn be(&self, moods: &[Mood]) {
        self.0.lock().unwrap().mood = moods.iter().rev().copied().collect();
    }

    pub fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().requests.clone()
    }

    /// How many cards were really charged.
    pub fn charged(&self) -> usize {
        let ledger = self.0.lock().unwrap();
        ledger.intents.values().filter(|i| i["status"] == "succeeded").count()
    }

    /// A person pays on a checkout page: the intent that comes of it.
    pub fn pay(&self, url: &str) -> Value {
        let mut ledger = self.0.lock().unwrap();
        let id = url.rsplit('/').next().unwrap().to_owned();
        let session = ledger.sessions.get(&id).unwrap().clone();
        let intent = json!({
            "id": format!("pi_{id}"), "object": "payment_intent", "status": "succeeded", "amount": session["amount_total"],
            "metadata": session["metadata"], "payment_method": "pm_card", "setup_future_usage": session["setup"],
        });
        ledger.intents.insert(intent["id"].as_str().unwrap().to_owned(), intent.clone());
        let paid = ledger.sessions.get_mut(&id).unwrap();
        paid["payment_status"] = json!("paid");
        paid["payment_intent"] = intent["id"].clone();
        intent
    }

    pub fn session(&self, url: &str) -> Value {
        self.0.lock().unwrap().sessions[url.rsplit('/').next().unwrap()].clone()
    }

    /// An event as Stripe would send it: its body, and the header that signs it.
    pub fn event(&self, kind: &str, object: &Value, at_s: i64) -> (String, String) {
        let mut ledger = self.0.lock().unwrap();
        ledger.events += 1;
        let body = json!({
            "id": format!("evt_{}", ledger.events), "object": "event", "type": kind, "created": at_s,
            "data": {"object": object},
        });
        let body = body.to_string();
        let header = format!("t={at_s},v1={}", sign(SECRET, at_s, &body));
        (body, header)
    }

    /// Does a request as the present mood has it. The answer is what was answered to this key before.
    async fn act(
        &self,
        what: &str,
        headers: &HeaderMap,
        make: impl FnOnce(&mut Ledger) -> Value,
    ) -> axum::response::Response {
        let refuse = |status: u16, message: &str| {
            (StatusCode::from_u16(status).unwrap(), Json(json!({"error": {"message": message}})))
                .into_response()
        };
        if headers["authorization"] != format!("Bearer {KEY}").as_str() {
            return refuse(401, "No such key");
        }
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let (mood, answer) = {
            let mut ledger = self.0.lock().unwrap();
            ledger.requests.push(what.to_owned());
            let mood = ledger.mood.pop().unwrap_or(Mood::Well);
            let answer = match mood {
                Mood::Down | Mood::Declining => Value::Null,
                _ => match ledger.answers.get(&key) {
                    Some(known) => known.clone(),
                    None => {
                        let new = make(&mut ledger);
                        ledger.answers.insert(key, new.clone());
                        new
                    }
                },
            };
            (mood, answer)
        };
        match mood {
            Mood::Well => Json(answer).into_response(),
            Mood::Down => refuse(503, "We are sorry"),
            // What a caller sees whose connection broke before the answer came.
            Mood::Forgetful => refuse(500, "lost"),
            Mood::Declining => refuse(402, "Your card was declined."),
        }
    }
}

async fn customers(
    State(stripe): State<FakeStripe>,
    headers: HeaderMap,
    Form(form): Form2,
) -> axum::response::Response {
    stripe.act("customers", &headers, |_| json!({"id": format!("cus_{}", form["metadata[org]"])})).await
}

async fn sessions(
    State(stripe): State<FakeStripe>,
    headers: HeaderMap,
    Form(form): Form2,
) -> axum::response::Response {
    stripe
        .act("sessions", &headers, |ledger| {
            let id = format!("cs_{}", ledger.sessions.len() + 1);
            let session = json!({
                "id": id, "object": "checkout.session", "url": format!("https://pay.example.org/{id}"),
                "amount_total": form["line_items[0][price_data][unit_amount]"].parse::<i64>().unwrap(),
                "currency": form["line_items[0][price_data][currency]"], "payment_status": "unpaid",
                "metadata": {"payment": form["metadata[payment]"]}, "customer": form["customer"],
                "setup": form.get("payment_intent_data[setup_future_usage]"),
            });
            ledger.sessions.insert(id, session.clone());
            session
        })
        .await
}

async fn intents(
    State(stripe): State<FakeStripe>,
    headers: HeaderMap,
    Form(form): Form2,
) -> axum::response::Response {
    stripe
        .act("intents", &headers, |ledger| {
            let id = format!("pi_saved_{}", ledger.intents.len() + 1);
            let intent = json!({
                "id": id, "object": "payment_intent", "status": "succeeded", "amount": form["amount"].parse::<i64>().unwrap(),
                "metadata": {"payment": form["metadata[payment]"]}, "payment_method": form["payment_method"],
            });
            ledger.intents.insert(id, intent.clone());
            intent
        })
        .await
}

async fn other(
    State(stripe): State<FakeStripe>,
    Path(path): Path<String>,
    headers: HeaderMap,
) -> axum::response::Response {
    stripe
        .act(&path, &headers, |_| json!({"id": "x", "url": format!("https://pay.example.org/{path}")}))
        .await
}
