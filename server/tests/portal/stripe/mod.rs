//! A fake Stripe with state: customers, checkout pages, saved cards, refunds and disputes. It handles
//! idempotency keys and signs events like Stripe, and it can be down, decline a card, or lose an answer.

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

/// The behaviour for the next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StripeBehaviour {
    Normal,
    /// Status 503 without an effect.
    Down,
    /// Effect without an answer.
    LostAnswer,
    /// Status 402: a declined card.
    CardDeclined,
}

#[derive(Default)]
struct StripeState {
    behaviour: Vec<StripeBehaviour>,
    /// Answers by idempotency key.
    answers: HashMap<String, Value>,
    /// Checkout pages by id.
    sessions: HashMap<String, Value>,
    intents: HashMap<String, Value>,
    events: u64,
    requests: Vec<String>,
}

#[derive(Clone, Default)]
pub struct FakeStripe(Arc<Mutex<StripeState>>);

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

    /// Sets the behaviour of the next requests in order; later requests succeed.
    pub fn set_behaviour(&self, behaviours: &[StripeBehaviour]) {
        self.0.lock().unwrap().behaviour = behaviours.iter().rev().copied().collect();
    }

    pub fn requests(&self) -> Vec<String> {
        self.0.lock().unwrap().requests.clone()
    }

    /// Returns the number of successful charges.
    pub fn charged(&self) -> usize {
        let state = self.0.lock().unwrap();
        state.intents.values().filter(|i| i["status"] == "succeeded").count()
    }

    /// Pays on a checkout page; returns the payment intent.
    pub fn pay(&self, url: &str) -> Value {
        let mut state = self.0.lock().unwrap();
        let id = url.rsplit('/').next().unwrap().to_owned();
        let session = state.sessions.get(&id).unwrap().clone();
        let intent = json!({
            "id": format!("pi_{id}"), "object": "payment_intent", "status": "succeeded", "amount": session["amount_total"],
            "metadata": session["metadata"], "payment_method": "pm_card", "setup_future_usage": session["setup"],
        });
        state.intents.insert(intent["id"].as_str().unwrap().to_owned(), intent.clone());
        let paid = state.sessions.get_mut(&id).unwrap();
        paid["payment_status"] = json!("paid");
        paid["payment_intent"] = intent["id"].clone();
        intent
    }

    pub fn session(&self, url: &str) -> Value {
        self.0.lock().unwrap().sessions[url.rsplit('/').next().unwrap()].clone()
    }

    /// Creates an event; returns its body and its signature header.
    pub fn event(&self, kind: &str, object: &Value, at_s: i64) -> (String, String) {
        let mut state = self.0.lock().unwrap();
        state.events += 1;
        let body = json!({
            "id": format!("evt_{}", state.events), "object": "event", "type": kind, "created": at_s,
            "data": {"object": object},
        });
        let body = body.to_string();
        let header = format!("t={at_s},v1={}", sign(SECRET, at_s, &body));
        (body, header)
    }

    /// Handles a request by the present behaviour. A repeated key gets its first answer.
    async fn act(
        &self,
        route: &str,
        headers: &HeaderMap,
        make: impl FnOnce(&mut StripeState) -> Value,
    ) -> axum::response::Response {
        let refuse = |status: u16, message: &str| {
            (StatusCode::from_u16(status).unwrap(), Json(json!({"error": {"message": message}})))
                .into_response()
        };
        if headers["authorization"] != format!("Bearer {KEY}").as_str() {
            return refuse(401, "No such key");
        }
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        let (behaviour, answer) = {
            let mut state = self.0.lock().unwrap();
            state.requests.push(route.to_owned());
            let behaviour = state.behaviour.pop().unwrap_or(StripeBehaviour::Normal);
            let answer = match behaviour {
                StripeBehaviour::Down | StripeBehaviour::CardDeclined => Value::Null,
                _ => match state.answers.get(&key) {
                    Some(known) => known.clone(),
                    None => {
                        let new = make(&mut state);
                        state.answers.insert(key, new.clone());
                        new
                    }
                },
            };
            (behaviour, answer)
        };
        match behaviour {
            StripeBehaviour::Normal => Json(answer).into_response(),
            StripeBehaviour::Down => refuse(503, "We are sorry"),
            // The caller gets no usable answer, like after a broken connection.
            StripeBehaviour::LostAnswer => refuse(500, "lost"),
            StripeBehaviour::CardDeclined => refuse(402, "Your card was declined."),
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
        .act("sessions", &headers, |state| {
            let id = format!("cs_{}", state.sessions.len() + 1);
            let session = json!({
                "id": id, "object": "checkout.session", "url": format!("https://pay.example.org/{id}"),
                "amount_total": form["line_items[0][price_data][unit_amount]"].parse::<i64>().unwrap(),
                "currency": form["line_items[0][price_data][currency]"], "payment_status": "unpaid",
                "metadata": {"payment": form["metadata[payment]"]}, "customer": form["customer"],
                "setup": form.get("payment_intent_data[setup_future_usage]"),
            });
            state.sessions.insert(id, session.clone());
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
        .act("intents", &headers, |state| {
            let id = format!("pi_saved_{}", state.intents.len() + 1);
            let intent = json!({
                "id": id, "object": "payment_intent", "status": "succeeded", "amount": form["amount"].parse::<i64>().unwrap(),
                "metadata": {"payment": form["metadata[payment]"]}, "payment_method": form["payment_method"],
            });
            state.intents.insert(id, intent.clone());
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
