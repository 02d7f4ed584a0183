//! The judgement of windows: the row of a window and its credit are in one transaction.

use std::sync::Arc;

use berth_autoscaling::promise::{Judgement, PromiseWatch};
use berth_foundation::fault;
use berth_store::ledger::{PROMISE, Posting};
use berth_store::services::promise_evidence;
use berth_store::services::promises::{self as rows, StoredChoice, StoredWindow};
use berth_store::types::JsonColumn;
use berth_store::{self as store, StoreError};
use berth_types::ids::TransferId;
use berth_types::ledger::TransferKind;
use berth_types::time::Timestamp;
use futures::FutureExt;

use super::choice::due_at;
use super::terms::promise;
use super::{Promises, evidence};

/// Windows in one run.
const BATCH: i64 = 100;
/// Days of wakes and of the jobs of replicas. The longest window is a week.
const EVIDENCE_DAYS: i64 = 40;
/// Days of judged windows.
const WINDOW_DAYS: i64 = 400;
const DAY_S: i64 = 86_400;
/// A judgement with an error is tried again after this time in seconds.
const AGAIN_AFTER_S: i64 = 3_600;

/// A judged window with the posting of its credit.
struct Judged {
    choice: StoredChoice,
    /// The time of the next judgement.
    next_due: Timestamp,
    /// Credits for lost time that reduce the charges of the next window.
    carry_micros: i64,
    window: StoredWindow,
    credit: Option<Posting>,
}

/// The reason of a credit, for the statement.
fn memo(name: &str, judgement: &Judgement) -> String {
    let misses: Vec<String> = judgement.misses.iter().map(ToString::to_string).collect();
    format!("Credit for the missed promise {name} from {}: {}", judgement.since.minute(), misses.join("; "))
}

impl Promises {
    /// Judges the windows that are due. Returns true if more can be due. An error of one does not stop the others: it is
    /// tried again after an hour.
    ///
    /// # Errors
    /// The database cannot be read or written.
    pub async fn judge(&self) -> Result<bool, StoreError> {
        let now = self.context.now();
        let due = {
            let mut conn = self.context.db.read().await?;
            rows::list_due(&mut conn.tx(), now, BATCH).await?
        };
        for choice in &due {
            if let Err(error) = self.judge_window(choice, now).await {
                tracing::error!(service = %choice.service_id, %error, "a promise could not be judged");
                self.put_off(choice, now.plus_seconds(AGAIN_AFTER_S)).await?;
            }
        }
        Ok(!due.is_empty())
    }

    /// Puts off the judgement of a window with an error, so that the others come before it.
    async fn put_off(&self, choice: &StoredChoice, due_at: Timestamp) -> Result<(), StoreError> {
        let choice = Arc::new(choice.clone());
        let done = self.context.db.write(move |tx| {
            let choice = choice.clone();
            async move { rows::put_off(tx, &choice, due_at).await }.boxed()
        });
        done.await
    }

    /// Deletes the evidence and the windows that no judgement and no answer needs.
    ///
    /// # Errors
    /// The database could not be written.
    pub async fn forget_old(&self) -> Result<(), StoreError> {
        let now = self.context.now();
        let done = self.context.db.write(move |tx| {
            async move {
                promise_evidence::forget(tx, now.plus_seconds(-EVIDENCE_DAYS * DAY_S)).await?;
                rows::forget_windows(tx, now.plus_seconds(-WINDOW_DAYS * DAY_S)).await
            }
            .boxed()
        });
        done.await
    }

    /// Judges the next window of a choice. The window in which the choice ended does not count.
    async fn judge_window(&self, choice: &StoredChoice, now: Timestamp) -> Result<(), StoreError> {
        let terms = promise(&choice.terms.0);
        let mut watch = PromiseWatch::stored(choice.next_window);
        let Some(window) = watch.due(&terms, now) else { return Ok(()) };
        let within = (terms.begin(window), terms.begin(window.saturating_add(1)));
        if choice.until_at.is_some_and(|until| until < within.1) {
            let (service, number) = (choice.service_id, choice.number);
            let done = self
                .context
                .db
                .write(move |tx| async move { rows::delete(tx, service, number).await }.boxed());
            return done.await;
        }
        // The window has ended and its evidence stays as it is. A read of the ledger within the write would conflict with
        // the charges of all jobs.
        let found = {
            let mut conn = self.context.db.read().await?;
            evidence::read(&mut conn.tx(), choice, &terms, within, now).await?
        };
        let Some(judgement) = watch.judge(&terms, window, &found.evidence, now) else { return Ok(()) };
        let credit = self.credit(choice, &judgement, now);
        let judged = Judged {
            choice: choice.clone(),
            next_due: due_at(&terms, watch.next()),
            carry_micros: found.carry_micros,
            window: StoredWindow {
                service_id: choice.service_id,
                begin_at: within.0,
                end_at: within.1,
                name: choice.name.clone(),
                evidence: JsonColumn(evidence::wire(&found.evidence)),
                misses: JsonColumn(judgement.misses.iter().map(ToString::to_string).collect()),
                credit_micros: credit.as_ref().map_or(0, |posting| posting.amount_micros),
                transfer_id: credit.as_ref().map(|posting| posting.id),
            },
            credit,
        };
        self.record(judged).await
    }

    /// The posting of the credit for a missed window. The begin of the window is its number, so the ledger refuses a second
    /// one.
    fn credit(&self, choice: &StoredChoice, judgement: &Judgement, now: Timestamp) -> Option<Posting> {
        let amount_micros = i64::try_from(judgement.credit_micros).ok().filter(|micros| *micros > 0)?;
        Some(Posting {
            id: self.context.new_id::<TransferId>(now),
            org: choice.org_id,
            kind: TransferKind::Credit,
            amount_micros,
            pending: None,
            source: PROMISE,
            source_id: choice.service_id.to_string(),
            seq: judgement.since.millis().div_euclid(1_000),
            memo: memo(&choice.name, judgement),
            at: now,
        })
    }

    /// Records a judged window and posts its credit, unless that happened before.
    async fn record(&self, judged: Judged) -> Result<(), StoreError> {
        let work = Arc::new(judged);
        let judged = work.clone();
        let done = self.context.db.write(move |tx| {
            let judged = work.clone();
            async move {
                if !rows::advance(tx, &judged.choice, (judged.next_due, judged.carry_micros)).await? {
                    return Ok(false);
                }
                rows::insert_window(tx, &judged.window).await?;
                fault::point("service.promise.recording");
                if let Some(posting) = &judged.credit {
                    store::ledger::post(tx, posting).await?;
                }
                Ok(true)
            }
            .boxed()
        });
        if done.await? {
            fault::point("service.promise.recorded");
            if let Some(posting) = &judged.credit {
                let (service, amount_micros) = (judged.window.service_id, posting.amount_micros);
                tracing::warn!(%service, amount_micros, memo = posting.memo, "a promise is missed");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use berth_autoscaling::promise::{Cases, Kind, Miss};

    use super::*;

    #[test]
    fn a_memo_names_the_promise_the_window_and_all_misses() {
        let miss = |kind: Kind, bad: u64| Miss { kind, cases: Cases { all: 9, bad }, good_ppm: 900_000 };
        let misses = vec![miss(Kind::Availability, 2), miss(Kind::Wake { within_ms: 70 }, 1)];
        let judgement = Judgement { since: Timestamp::from_micros(0), misses, credit_micros: 1 };
        assert_eq!(
            memo("gold", &judgement),
            "Credit for the missed promise gold from 1970-01-01 00:00 UTC: 2 of 9 requests failed; \
             90 % good ones are promised; 1 of 9 wakes took more than 70 ms; 90 % good ones are promised"
        );
    }
}
