//! Idempotency keys: the same request again takes effect once, whatever became of the first one's answer.
//!
//! A key is claimed in the transaction of what it asks for, so what was done and the knowledge that it was
//! done are never apart; the answer is kept afterwards. Who asks again gets the kept answer. Where the
//! portal died between the two, the method runs again and is told by [`Caller::done_before`] what it made
//! the first time. A refusal keeps nothing: it changed nothing, and may be none the next time.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use berth_store::accounts::Replay;
use berth_store::{self as store, StoreError, Tx};

use crate::callers::{Caller, Once, Right};

use crate::context::Context;

/// Kept answers are forgotten after so long.
const KEPT_S: i64 = 48 * 3_600;
/// The status of a key that is claimed and has no answer yet.
const CLAIMED: u16 = 0;
/// The status of a key whose answer had a secret, which is nowhere kept.
const SHOWN: u16 = 409;

/// On whose side a key counts: it is unique there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Org(OrgId),
    Operator,
}

/// The keys whose requests are under way.
#[derive(Debug, Default)]
struct InFlight(Mutex<HashSet<(String, String)>>);

/// A request under way; it is over when this is dropped.
pub struct UnderWay {
    all: Arc<InFlight>,
    own: (String, String),
}

impl InFlight {
    /// `None`: a request with this key is under way.
    fn enter(self: &Arc<Self>, scope: &str, key: &str) -> Option<UnderWay> {
        let own = (scope.to_owned(), key.to_owned());
        let new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(own.clone());
        new.then(|| UnderWay { all: self.clone(), own })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.own);
    }
}

/// What is to be done about a request with a key.
pub enum Begun {
    /// It is to be done; the answer goes to [`Idempotency::keep_answer`].
    Now(Once, UnderWay),
    /// It was done, and answered so.
    Answered { status: u16, body: String },
}

/// Claims a request's key in the transaction of what it asks for; `made` is what [`Caller::done_before`]
/// says when it is asked again and the answer was lost.
pub async fn claim(
    tx: &mut Tx<'_>,
    once: Option<&Once>,
    made: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(once) = once else { return Ok(()) };
    let request_hash = once.request_hash.clone();
    let claimed = Replay { request_hash, status: CLAIMED, answer: made.to_owned() };
    // Another portal is at the same request: whoever asks again learns what it made.
    match store::accounts::insert_idempotency(tx, &once.scope, &once.key, &claimed, now).await? {
        true => Ok(()),
        false => Err(StoreError::Stale),
    }
}

fn other_request() -> Problem {
    Problem::new(
        422,
        "idempotency.other_request",
        "The key belongs to another request",
        "This Idempotency-Key was used with a different body. Use a new key for a new request.",
    )
}

fn under_way() -> Problem {
    let detail =
        "A request with this Idempotency-Key is not answered yet. Ask again in a moment, with the same key.";
    let problem = Problem::conflict("idempotency.in_flight", "The same request is under way", detail);
    Problem { retry_after_s: Some(1), ..problem }
}

/// What was made under this key showed its secret once, and it is kept nowhere.
pub fn shown_once() -> Problem {
    let detail = "A request with this Idempotency-Key made it already, and its secret is shown only once. If that answer never reached you, remove what was made and make another with a new key.";
    Problem::conflict("idempotency.shown_once", "It was made and shown once", detail)
}

/// Whether an answer has a secret in it.
fn has_secret(body: &str) -> bool {
    #[derive(Deserialize)]
    struct Shown {
        secret: Option<IgnoredAny>,
    }
    serde_json::from_str::<Shown>(body).is_ok_and(|shown| shown.secret.is_some())
}

/// The idempotency keys of requests.
#[derive(Clone)]
pub struct Idempotency {
    context: Context,
    in_flight: Arc<InFlight>,
}

impl Idempotency {
    pub fn new(context: Context) -> Self {
        Self { context, in_flight: Arc::default() }
    }

    /// Looks up the key of a request. `request_hash` is of all that makes it this request: caller, method,
    /// address and body.
    pub async fn begin(
        &self,
        caller: &Caller,
        side: Side,
        key: String,
        request_hash: String,
    ) -> Result<Begun, Problem> {
        // Whoever has left an organization is not told again what it was told there.
        let scope = match side {
            Side::Org(org) => {
                self.context.authorise(caller, org, Right::Look).await?;
                org.to_string()
            }
            Side::Operator => {
                self.context.authorise_operator(caller)?;
                "operator".to_owned()
            }
        };
        let guard = self.in_flight.enter(&scope, &key).ok_or_else(under_way)?;
        let mut conn = self.context.db.read().await?;
        let known = store::accounts::find_idempotency(&mut conn.tx(), &scope, &key).await?;
        drop(conn);
        match known {
            Some(replay) if replay.request_hash != request_hash => Err(other_request()),
            Some(Replay { status: SHOWN, .. }) => Err(shown_once()),
            Some(Replay { status, answer, .. }) if status != CLAIMED => {
                Ok(Begun::Answered { status, body: answer })
            }
            claimed => {
                let made = claimed.map(|replay| replay.answer);
                Ok(Begun::Now(Once { scope, key, request_hash, made }, guard))
            }
        }
    }

    /// Keeps the answer of a request that took effect.
    pub async fn keep_answer(&self, once: Once, status: u16, body: &str) {
        let now = self.context.now();
        let (status, answer) =
            if has_secret(body) { (SHOWN, String::new()) } else { (status, body.to_owned()) };
        let Once { scope, key, request_hash, .. } = once;
        let replay = Arc::new(Replay { request_hash, status, answer });
        let kept = self.context.db.write(move |tx| {
            let (scope, key, replay) = (scope.clone(), key.clone(), replay.clone());
            async move { store::accounts::put_answer(tx, &scope, &key, &replay, now).await }.boxed()
        });
        if let Err(error) = kept.await {
            // What was done is claimed with it, so asking again does not do it twice.
            tracing::error!(%error, "an answer could not be kept under its key");
        }
    }

    /// Forgets answers that nobody can ask for any more.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let until = self.context.now().plus_seconds(-KEPT_S);
        self.context
            .db
            .write(move |tx| async move { store::accounts::forget_answers(tx, until).await }.boxed())
            .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_seen_in_answers() {
        assert!(has_secret(r#"{"id":"tok_1","secret":"s"}"#));
        for plain in [r#"{"secret":null}"#, r#"{"id":"a"}"#, "", "null"] {
            assert!(!has_secret(plain), "{plain}");
        }
    }

    #[test]
    fn a_key_is_under_way_once_and_again_when_it_is_over() {
        let all = Arc::new(InFlight::default());
        let first = all.enter("org", "k").unwrap();
        assert!(all.enter("org", "k").is_none() && all.enter("other", "k").is_some());
        drop(first);
        assert!(all.enter("org", "k").is_some());
    }
}
