//! Idempotency keys: a repeated request with the same key takes effect once, even if the first answer was
//! lost.
//!
//! A request claims its key in the transaction of its own write, so the write and the claim are committed
//! together. The portal stores the answer after the commit, and a repeated request gets the stored answer. If
//! the portal stopped between the commit and the storage of the answer, the method runs again and finds the
//! first object in [`Caller::already_created`]. A refusal is not stored: it changed nothing, and the next
//! request may succeed.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use berth_types::ids::OrgId;
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;
use serde::Deserialize;
use serde::de::IgnoredAny;

use berth_store::accounts::Replay;
use berth_store::{self as store, StoreError, Tx};

use crate::callers::{Caller, IdempotencyKey, Right};

use crate::context::Context;

/// Seconds for which answers are stored.
const RETENTION_S: i64 = 48 * 3_600;
/// The status of a claimed key without an answer.
const CLAIMED: u16 = 0;
/// The status of a key whose answer had a secret. The portal does not store such an answer.
const SECRET_SHOWN: u16 = 409;
/// The scope of the keys of operators in the database.
const OPERATOR_SCOPE: &str = "operator";

/// The scope of a key. A key is unique in its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyScope {
    Org(OrgId),
    Operator,
}

/// The keys of the requests in progress.
#[derive(Debug, Default)]
struct InFlight(Mutex<HashSet<(String, String)>>);

/// Marks a request as in progress until the guard is dropped.
pub struct InFlightGuard {
    all: Arc<InFlight>,
    /// Scope and key.
    own: (String, String),
}

impl InFlight {
    /// Returns `None` if a request with this key is in progress.
    fn enter(self: &Arc<Self>, scope: &str, key: &str) -> Option<InFlightGuard> {
        let own = (scope.to_owned(), key.to_owned());
        let new = self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(own.clone());
        new.then(|| InFlightGuard { all: self.clone(), own })
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.all.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.own);
    }
}

/// The result of the lookup of a request's key.
pub enum KeyLookup {
    /// No answer is stored: run the request and pass the answer to [`Idempotency::keep_answer`].
    New(IdempotencyKey, InFlightGuard),
    /// The request has run already, with this answer.
    Answered { status: u16, body: String },
}

/// Claims the key of a request in the transaction of the request's write. `created` names the new object:
/// [`Caller::already_created`] returns it for a repeated request after a lost answer.
///
/// # Errors
/// `Stale` if another request has claimed the key.
pub async fn claim(
    tx: &mut Tx<'_>,
    key: Option<&IdempotencyKey>,
    created: &str,
    now: Timestamp,
) -> Result<(), StoreError> {
    let Some(IdempotencyKey { scope, key, request_hash, .. }) = key else { return Ok(()) };
    let claimed = Replay { request_hash: request_hash.clone(), status: CLAIMED, answer: created.to_owned() };
    // Another portal may run the same request. A repeated request then finds the object of that portal.
    match store::accounts::insert_idempotency(tx, scope, key, &claimed, now).await? {
        true => Ok(()),
        false => Err(StoreError::Stale),
    }
}

fn other_request() -> Problem {
    Problem::new(
        422,
        "idempotency.other_request",
        "Idempotency key in use",
        "This Idempotency-Key was used with a different body. Use a new key for a new request.",
    )
}

fn in_flight() -> Problem {
    let detail = "The first request with this Idempotency-Key has no answer yet. Repeat it in a moment with the same key.";
    let problem = Problem::conflict("idempotency.in_flight", "Request in progress", detail);
    Problem { retry_after_s: Some(1), ..problem }
}

/// The refusal for a repeated request whose first answer had a secret. The portal does not store such an
/// answer.
pub fn shown_once() -> Problem {
    let detail = "The request with this Idempotency-Key succeeded, and its secret is shown only once. Without that answer, remove the created object and create another with a new key.";
    Problem::conflict("idempotency.shown_once", "Secret already shown", detail)
}

/// True if an answer contains a secret.
fn has_secret(body: &str) -> bool {
    #[derive(Deserialize)]
    struct SecretField {
        secret: Option<IgnoredAny>,
    }
    serde_json::from_str::<SecretField>(body).is_ok_and(|answer| answer.secret.is_some())
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

    /// Looks up the key of a request. `request_hash` covers caller, method, address and body.
    ///
    /// # Errors
    /// 404 if the caller has lost the access to the scope. 409 if a request with the key is in progress, or
    /// if its answer had a secret. 422 if the key belongs to another request.
    pub async fn begin(
        &self,
        caller: &Caller,
        scope: KeyScope,
        key: String,
        request_hash: String,
    ) -> Result<KeyLookup, Problem> {
        // A former member must not get the stored answers of the organization.
        let scope = match scope {
            KeyScope::Org(org) => match self.context.authorise(caller, org, Right::View).await {
                Ok(_) => org.to_string(),
                // An operator enters jobs of organizations without a membership.
                Err(problem)
                    if problem.status < 500 && caller.has_operator_right(OperatorRight::EnterJobs) =>
                {
                    OPERATOR_SCOPE.to_owned()
                }
                Err(problem) => return Err(problem),
            },
            KeyScope::Operator => {
                self.context.authorise_operator(caller, OperatorRight::View).await?;
                OPERATOR_SCOPE.to_owned()
            }
        };
        let guard = self.in_flight.enter(&scope, &key).ok_or_else(in_flight)?;
        let mut conn = self.context.db.read().await?;
        let stored = store::accounts::find_idempotency(&mut conn.tx(), &scope, &key).await?;
        drop(conn);
        match stored {
            Some(replay) if replay.request_hash != request_hash => Err(other_request()),
            Some(Replay { status: SECRET_SHOWN, .. }) => Err(shown_once()),
            Some(Replay { status, answer, .. }) if status != CLAIMED => {
                Ok(KeyLookup::Answered { status, body: answer })
            }
            claimed => {
                let created = claimed.map(|replay| replay.answer);
                Ok(KeyLookup::New(IdempotencyKey { scope, key, request_hash, created }, guard))
            }
        }
    }

    /// Stores the answer of a successful request.
    pub async fn keep_answer(&self, key: IdempotencyKey, status: u16, body: &str) {
        let now = self.context.now();
        let (status, answer) =
            if has_secret(body) { (SECRET_SHOWN, String::new()) } else { (status, body.to_owned()) };
        let IdempotencyKey { scope, key, request_hash, .. } = key;
        let replay = Arc::new(Replay { request_hash, status, answer });
        let stored = self.context.db.write(move |tx| {
            let (scope, key, replay) = (scope.clone(), key.clone(), replay.clone());
            async move { store::accounts::put_answer(tx, &scope, &key, &replay, now).await }.boxed()
        });
        if let Err(error) = stored.await {
            // The key is claimed already, so a repeated request does not take effect twice.
            tracing::error!(%error, "an answer cannot be stored under its idempotency key");
        }
    }

    /// Deletes stored answers after the end of their retention.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let until = self.context.now().plus_seconds(-RETENTION_S);
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
    fn answers_with_a_secret_are_recognised() {
        assert!(has_secret(r#"{"id":"tok_1","secret":"s"}"#));
        for plain in [r#"{"secret":null}"#, r#"{"id":"a"}"#, "", "null"] {
            assert!(!has_secret(plain), "{plain}");
        }
    }

    #[test]
    fn a_key_is_in_flight_for_one_request_at_a_time() {
        let all = Arc::new(InFlight::default());
        let first = all.enter("org", "k").unwrap();
        assert!(all.enter("org", "k").is_none() && all.enter("other", "k").is_some());
        drop(first);
        assert!(all.enter("org", "k").is_some());
    }
}
