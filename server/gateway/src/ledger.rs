//! The ledger: holds of worst cases in memory, and use with its charges, in the journal before its effect.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use berth_autoscaling::credit::{Ask, Entry, HoldAnswer, Payer, ToGateway, ToPortal};
use berth_serving::refusals::{Lack, Refusal};
use berth_types::ids::ServiceId;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::books::{Books, Failed, FaultKind, LEAST_BLOCK, Outgoing, Record, Used};
use crate::clock::{now_ms, wall};
use crate::journal::Journal;

/// Requests that wait for a block.
const MAX_WAITING: usize = 10_000;
/// The longest wait for a block, and for the return of the portal: no request waits after so long an absence.
const CREDIT_WAIT: Duration = Duration::from_secs(10);
/// The Retry-After of a refusal for want of credit, in seconds.
const RETRY_AFTER_S: u64 = 2;
/// Milliseconds between two attempts to write a journal on a full disk.
const REPAIR_MS: u64 = 1_000;

/// A request that waits for a block.
struct Waiting {
    request: u64,
    payer: Payer,
    worst: u64,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

struct Inner {
    books: Books,
    journal: Journal,
    waiting: Vec<Waiting>,
    requests: u64,
    /// No attempt to write before this time.
    repair_at_ms: u64,
    /// The first failure to reach the portal since its last answer.
    absent_since: Option<Instant>,
}

/// The books with their journal.
pub struct Ledger {
    inner: Mutex<Inner>,
    /// A block is asked for, and a request waits for it or soon does.
    asked: Notify,
}

/// The worst case of one request. Its drop returns it.
pub struct Hold {
    ledger: Arc<Ledger>,
    request: u64,
    is_open: bool,
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_open {
            self.ledger.release(self.request);
        }
    }
}

impl Inner {
    /// Stores records, and applies those that are not about credit: a borrower has applied its own.
    fn store(&mut self, records: Vec<Record>) -> io::Result<()> {
        let stored = self.write(&records);
        for record in records.into_iter().filter(|record| !matches!(record, Record::Credit(_))) {
            self.books.apply(record);
        }
        stored
    }

    fn write(&mut self, records: &[Record]) -> io::Result<()> {
        // Without records too, a broken journal lacks the facts of the next message.
        if records.is_empty() && !self.journal.is_long() {
            return Ok(());
        }
        if !self.journal.is_long() {
            return self.journal.append(records);
        }
        if now_ms() < self.repair_at_ms {
            return Err(io::Error::other("the journal is not writable"));
        }
        // The whole books have the records about credit already.
        let others: Vec<Record> =
            records.iter().filter(|record| !matches!(record, Record::Credit(_))).cloned().collect();
        let written = self.journal.rewrite(&self.books).and_then(|()| self.journal.append(&others));
        if let Err(error) = &written {
            self.repair_at_ms = now_ms().saturating_add(REPAIR_MS);
            tracing::error!(%error, "the journal cannot be written; requests with a price are refused");
        }
        written
    }

    /// Stores what the borrower has changed. Returns true with an ask for a large block, which has no time for the next
    /// round.
    fn store_credit(&mut self) -> io::Result<bool> {
        let entries = self.books.borrower().map(|borrower| borrower.new_entries()).unwrap_or_default();
        let is_large = |ask: &Ask| ask.wish > ask.least.saturating_mul(LEAST_BLOCK.into());
        let is_urgent = entries.iter().any(|entry| matches!(entry, Entry::Asked(ask) if is_large(ask)));
        self.store(entries.into_iter().map(Record::Credit).collect()).map(|()| is_urgent)
    }

    /// Tries the waiting requests of a payer again: a message about its block changes no answer for others. Returns those
    /// that wait no longer.
    fn retry_waiting(&mut self, payer: Payer) -> Vec<(Waiting, HoldAnswer)> {
        let Some(borrower) = self.books.borrower() else { return Vec::new() };
        let now = wall();
        let mut ready = Vec::new();
        let is_own = |waiting: &mut Waiting| waiting.payer == payer;
        let own: Vec<Waiting> = self.waiting.extract_if(.., is_own).collect();
        for waiting in own {
            match borrower.hold(waiting.request, waiting.payer, waiting.worst, now) {
                HoldAnswer::Waits => self.waiting.push(waiting),
                answer => ready.push((waiting, answer)),
            }
        }
        ready
    }
}

/// The refusal of a request without a hold.
const fn refusal(answer: HoldAnswer) -> Result<(), Refusal> {
    match answer {
        HoldAnswer::Held => Ok(()),
        HoldAnswer::Exhausted => Err(Refusal::OverBudget),
        HoldAnswer::Waits => Err(no_credit()),
        HoldAnswer::Full => Err(Refusal::Gateway { lack: Lack::Room, retry_after_s: RETRY_AFTER_S }),
    }
}

const fn no_credit() -> Refusal {
    Refusal::Gateway { lack: Lack::Credit, retry_after_s: RETRY_AFTER_S }
}

impl Ledger {
    /// Opens the ledger of a directory.
    ///
    /// # Errors
    /// The directory is not writable.
    pub fn open(dir: &Path) -> Result<Arc<Self>, String> {
        let now = u64::try_from(wall().millis()).unwrap_or_default();
        let (journal, books) = Journal::open(dir, now)?;
        let inner =
            Inner { books, journal, waiting: Vec::new(), requests: 0, repair_at_ms: 0, absent_since: None };
        Ok(Arc::new(Self { inner: Mutex::new(inner), asked: Notify::new() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the credit of the gateway with this number, if another one had it before. Requests that wait under the
    /// former number are refused.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn open_credit(&self, gateway: u64) -> io::Result<()> {
        let mut inner = self.lock();
        let Inner { books, journal, waiting, .. } = &mut *inner;
        if !books.open_credit(gateway) {
            return Ok(());
        }
        // Their asks ended with the former number. A closed channel is a refusal at once.
        waiting.clear();
        journal.rewrite(books)
    }

    /// Records whether the last messages reached the portal.
    pub fn set_reached(&self, is_reached: bool) {
        let mut inner = self.lock();
        inner.absent_since =
            if is_reached { None } else { inner.absent_since.or_else(|| Some(Instant::now())) };
    }

    /// The time for which a request waits for a block now.
    fn credit_wait(&self) -> Duration {
        let absent = self.lock().absent_since.map_or(Duration::ZERO, |since| since.elapsed());
        CREDIT_WAIT.saturating_sub(absent)
    }

    /// Holds the worst case of a request, in nano-units.
    ///
    /// # Errors
    /// The budget has no room, or the portal lends nothing at the moment.
    pub async fn hold(self: &Arc<Self>, payer: Payer, worst: u64) -> Result<Hold, Refusal> {
        let (hold, waits) = self.begin(payer, worst)?;
        let Some(waits) = waits else { return Ok(hold) };
        self.asked.notify_one();
        match tokio::time::timeout(self.credit_wait(), waits).await {
            Ok(Ok(answer)) => answer.map(|()| hold),
            Ok(Err(_)) | Err(_) => Err(no_credit()),
        }
    }

    /// Tries to hold at once. The receiver gets the answer for a request that waits.
    fn begin(
        self: &Arc<Self>,
        payer: Payer,
        worst: u64,
    ) -> Result<(Hold, Option<oneshot::Receiver<Result<(), Refusal>>>), Refusal> {
        let mut inner = self.lock();
        let request = inner.requests;
        inner.requests += 1;
        let borrower = inner.books.borrower().ok_or(no_credit())?;
        let answer = borrower.hold(request, payer, worst, wall());
        let stored = inner.store_credit();
        if stored.as_ref().is_ok_and(|is_urgent| *is_urgent) {
            self.asked.notify_one();
        }
        if answer == HoldAnswer::Waits && stored.is_ok() && inner.waiting.len() < MAX_WAITING {
            let (send, receive) = oneshot::channel();
            inner.waiting.push(Waiting { request, payer, worst, answer: send });
            return Ok((Hold { ledger: self.clone(), request, is_open: true }, Some(receive)));
        }
        if stored.is_err() {
            // The charge of the request would not be in the journal either.
            if let Some(borrower) = inner.books.borrower() {
                borrower.settle(request, 0);
            }
            return Err(no_credit());
        }
        refusal(answer)?;
        Ok((Hold { ledger: self.clone(), request, is_open: true }, None))
    }

    /// Returns a hold without a charge.
    fn release(&self, request: u64) {
        let mut inner = self.lock();
        inner.waiting.retain(|waiting| waiting.request != request);
        if let Some(borrower) = inner.books.borrower() {
            borrower.settle(request, 0);
        }
    }

    /// Records the use of a request, and settles its hold by the charge.
    pub fn settle(&self, hold: Option<Hold>, used: Used) {
        let mut inner = self.lock();
        let mut used = used;
        if let Some(mut hold) = hold {
            hold.is_open = false;
            let settled =
                inner.books.borrower().and_then(|borrower| borrower.settle(hold.request, used.token_nanos));
            used.token_nanos = settled.map_or(0, |settled| settled.nanos);
        }
        let entries = inner.books.borrower().map(|borrower| borrower.new_entries()).unwrap_or_default();
        let records = entries.into_iter().map(Record::Credit).chain([Record::Used(used)]).collect();
        // The error is in the log; the use is in memory still.
        let _ = inner.store(records);
    }

    /// Records that a request of a service failed without a fault of its caller.
    pub fn count_fault(&self, service: ServiceId, kind: FaultKind) {
        // The error is in the log; the count is in memory still.
        let _ = self.lock().store(vec![Record::Failed(Failed { service, kind })]);
    }

    /// Waits for an ask that has no time for the next round.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// True while a request waits for a block.
    pub fn is_awaited(&self) -> bool {
        !self.lock().waiting.is_empty()
    }

    /// True with a block of credit, or an ask for one.
    pub fn has_blocks(&self) -> bool {
        self.lock().books.borrower().is_some_and(|borrower| borrower.has_blocks())
    }

    /// The messages for the portal. They are in the journal, not yet on the disk.
    pub fn messages(&self) -> Vec<ToPortal> {
        let mut inner = self.lock();
        let messages = inner.books.borrower().map(|borrower| borrower.messages(wall())).unwrap_or_default();
        if inner.store_credit().is_ok() { messages } else { Vec::new() }
    }

    /// Applies messages of the portal. The waiting requests of its payer are tried again after each of them. Returns true
    /// if one ends a block, which is news for the portal.
    pub fn receive(&self, messages: &[ToGateway]) -> bool {
        let mut inner = self.lock();
        let mut ready = Vec::new();
        let mut has_news = false;
        for message in messages {
            let now = wall();
            let mut payer = None;
            if let Some(borrower) = inner.books.borrower() {
                // A refused ask is forgotten with its payer.
                payer = borrower.payer(message.block());
                has_news |= borrower.receive(message, now);
            }
            if let Some(payer) = payer.filter(|_| !matches!(message, ToGateway::Noted(_))) {
                ready.extend(inner.retry_waiting(payer));
            }
        }
        let stored = inner.store_credit();
        if stored.as_ref().is_ok_and(|is_urgent| *is_urgent) {
            self.asked.notify_one();
        }
        let mut left = Vec::new();
        for (waiting, answer) in ready {
            let answer = if stored.is_ok() { refusal(answer) } else { Err(no_credit()) };
            if waiting.answer.send(answer).is_err() {
                left.push(waiting.request);
            }
        }
        drop(inner);
        // A caller that left at this moment has returned nothing yet.
        for request in left {
            self.release(request);
        }
        has_news
    }

    /// The report on its way to the portal, or the next one. It is in the journal, not yet on the disk.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn report(&self) -> io::Result<Outgoing> {
        let mut inner = self.lock();
        let is_due = inner.books.outgoing().is_none();
        let next = if is_due { vec![inner.books.next_report()] } else { Vec::new() };
        inner.store(next)?;
        let outgoing = inner.books.outgoing().cloned();
        outgoing.ok_or_else(|| io::Error::other("there is no report"))
    }

    /// The portal has counted the report on its way.
    pub fn counted(&self) {
        // Without the record the report is sent once more after the next start, and changes nothing.
        let _ = self.lock().store(vec![Record::Counted]);
    }

    /// Waits until all records are on the disk.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn sync(&self) -> io::Result<()> {
        let file = self.lock().journal.disk();
        tokio::task::spawn_blocking(move || file.sync_data()).await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests;
