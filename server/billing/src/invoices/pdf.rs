//! Invoices and statements as PDF files, with the texts of the pages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use berth_rest::Disconnect;
use berth_types::documents::{
    DocumentText, invoice_pdf_name, invoice_text, statement_pdf_name, statement_text,
};
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::portal::PortalSettings;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use super::Invoices;
use crate::pdf::{self, MAX_ROWS};
use berth_foundation::{Caller, Right};
use berth_store::{self as store, StoreError, Tx};

/// The files that the portal writes at the same time.
const CONCURRENT_FILES: usize = 2;
/// The requests that wait for a file before theirs.
const MAX_WAITING: usize = 8;
/// The files of one organization in progress: one is written, the others wait.
const MAX_ORG_FILES: usize = 3;
/// The longest wait for the files before.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The name of the setting with the operator's name.
const PORTAL_SETTINGS: &str = "portal";

/// A PDF file with its name for downloads.
pub struct PdfFile {
    pub name: String,
    pub bytes: Vec<u8>,
}

/// The right to write a file.
struct PdfPermit {
    _permit: OwnedSemaphorePermit,
    _turn: OwnedMutexGuard<()>,
}

/// The requests for files: some files at a time, one of them for each organization.
pub(super) struct PdfQueue {
    permits: Arc<Semaphore>,
    waiting: Semaphore,
    /// The turns of organizations with files in progress.
    turns: Mutex<HashMap<OrgId, Arc<tokio::sync::Mutex<()>>>>,
}

impl Default for PdfQueue {
    fn default() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(CONCURRENT_FILES)),
            waiting: Semaphore::new(MAX_WAITING),
            turns: Mutex::default(),
        }
    }
}

fn busy() -> Problem {
    let detail = "The portal writes other PDF files. Nothing was changed. Try again in a minute.";
    Problem::unavailable(detail, 60)
}

impl PdfQueue {
    /// The turn of an organization; `None` if it has too many files in progress.
    fn find_turn(&self, org: OrgId) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        // The map has one reference to each turn, and each file in progress another one.
        turns.retain(|_, turn| Arc::strong_count(turn) > 1);
        let turn = turns.entry(org).or_default();
        (Arc::strong_count(turn) <= MAX_ORG_FILES).then(|| turn.clone())
    }

    /// Waits for the right to write a file of an organization.
    ///
    /// # Errors
    /// Other files take too long, too many requests wait, or the sender disconnected.
    async fn wait(&self, org: OrgId, sender: &Disconnect) -> Result<PdfPermit, Problem> {
        let _waiting = self.waiting.try_acquire().map_err(|_| busy())?;
        let turn = self.find_turn(org).ok_or_else(busy)?;
        let permit = async {
            let turn = turn.lock_owned().await;
            let permit = self.permits.clone().acquire_owned().await.ok()?;
            Some(PdfPermit { _permit: permit, _turn: turn })
        };
        tokio::select! {
            () = sender.wait() => Err(busy()),
            permit = tokio::time::timeout(MAX_WAIT, permit) => permit.ok().flatten().ok_or_else(busy),
        }
    }
}

/// The input of a file.
struct Draft {
    name: String,
    document: DocumentText,
    issuer: String,
    created_at: Option<Timestamp>,
}

/// The operator's name on all pages.
async fn issuer(tx: &mut Tx<'_>) -> Result<String, StoreError> {
    let text = store::accounts::find_setting(tx, PORTAL_SETTINGS).await?;
    let settings: PortalSettings = text.map_or(Ok(PortalSettings::default()), |text| {
        serde_json::from_str(&text).map_err(|e| StoreError::corrupt("settings", PORTAL_SETTINGS, "value", e))
    })?;
    Ok(settings.name)
}

/// Writes a file on a thread for blocking work.
async fn write(permit: PdfPermit, draft: Draft) -> Result<PdfFile, Problem> {
    let Draft { name, document, issuer, created_at } = draft;
    let rows = document.row_count();
    if rows > MAX_ROWS {
        let detail = format!(
            "The document has {rows} lines, and a PDF file has at most {MAX_ROWS}. Nothing was changed. Read the \
             document as JSON, or print its page."
        );
        return Err(Problem::new(422, "document.too_long", "Too many lines for a PDF file", detail));
    }
    let work = move || {
        // A cancelled request does not free the permit before the end of the work.
        let _permit = permit;
        pdf::write(&document, &issuer, created_at)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(bytes)) => Ok(PdfFile { name, bytes }),
        Ok(Err(error)) => {
            tracing::error!(%error, "a PDF file was not written");
            Err(Problem::internal())
        }
        Err(_) => Err(Problem::internal()),
    }
}

impl Invoices {
    /// An invoice as PDF. The same invoice in the same state has the same bytes.
    ///
    /// # Errors
    /// The invoice has more lines than a file ([`MAX_ROWS`]), other files take too long, or the sender disconnected.
    pub async fn invoice_pdf(
        &self,
        caller: &Caller,
        org: OrgId,
        id: InvoiceId,
        sender: &Disconnect,
    ) -> Result<PdfFile, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        // A waiting request has no document in memory.
        let permit = self.pdf_queue.wait(org, sender).await?;
        let invoice = self.get_invoice(caller, org, id).await?;
        let (issuer, voided) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let voided = match invoice.corrects {
                Some(voided) => store::invoices::find_any(&mut tx, voided).await?,
                None => None,
            };
            (issuer(&mut tx).await?, voided)
        };
        let mut document = invoice_text(&invoice);
        document.notes.extend(voided.map(|voided| format!("Voids Invoice {}.", voided.number)));
        let name = invoice_pdf_name(&invoice);
        write(permit, Draft { name, document, issuer, created_at: Some(invoice.issued_at) }).await
    }

    /// The statement of a month as PDF, as [`Invoices::statement`] has it.
    ///
    /// # Errors
    /// The errors of the statement and of [`Invoices::invoice_pdf`].
    pub async fn statement_pdf(
        &self,
        caller: &Caller,
        org: OrgId,
        month: Option<&str>,
        sender: &Disconnect,
    ) -> Result<PdfFile, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let permit = self.pdf_queue.wait(org, sender).await?;
        let statement = self.statement(caller, org, month).await?;
        let (issuer, buyer) = {
            let mut conn = self.context.db.read().await?;
            let mut tx = conn.tx();
            let buyer = store::accounts::find_org(&mut tx, org).await?;
            (issuer(&mut tx).await?, buyer.map(|org| org.name).unwrap_or_default())
        };
        let name = statement_pdf_name(&statement);
        let document = statement_text(&statement, buyer);
        // A statement has no date of issue.
        write(permit, Draft { name, document, issuer, created_at: None }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn org(number: u32) -> OrgId {
        format!("org_{number:026}").parse().unwrap()
    }

    #[tokio::test]
    async fn one_organization_writes_one_file_at_a_time() {
        let (queue, sender) = (PdfQueue::default(), Disconnect::default());
        let first = queue.wait(org(1), &sender).await.ok().unwrap();
        let mut second = Box::pin(queue.wait(org(1), &sender));
        let mut third = Box::pin(queue.wait(org(1), &sender));
        assert!(futures::poll!(&mut second).is_pending() && futures::poll!(&mut third).is_pending());
        assert_eq!(queue.wait(org(1), &sender).await.err().unwrap().status, 503);
        assert!(queue.wait(org(2), &sender).await.is_ok());
        drop(first);
        assert!(second.await.is_ok());
        assert!(third.await.is_ok());
        assert!(queue.wait(org(1), &sender).await.is_ok());
    }

    #[tokio::test]
    async fn requests_for_files_wait_in_a_bounded_number() {
        let (queue, sender) = (PdfQueue::default(), Disconnect::default());
        let first = queue.wait(org(1), &sender).await.ok().unwrap();
        let second = queue.wait(org(2), &sender).await.ok().unwrap();
        let others = (3..).take(MAX_WAITING).map(|n| Box::pin(queue.wait(org(n), &sender)));
        let mut waiting: Vec<_> = others.collect();
        for one in &mut waiting {
            assert!(futures::poll!(one).is_pending());
        }
        assert_eq!(queue.wait(org(99), &sender).await.err().unwrap().status, 503);
        drop((first, second));
        for one in waiting {
            assert!(one.await.is_ok());
        }
    }

    #[tokio::test]
    async fn a_request_of_a_disconnected_sender_leaves_the_queue() {
        let (queue, sender) = (PdfQueue::default(), Disconnect::default());
        let first = queue.wait(org(1), &sender).await.ok().unwrap();
        let gone = Disconnect::default();
        let guard = gone.guard();
        let mut abandoned = Box::pin(queue.wait(org(1), &gone));
        assert!(futures::poll!(&mut abandoned).is_pending());
        drop(guard);
        assert!(abandoned.await.is_err());
        drop(first);
    }
}
