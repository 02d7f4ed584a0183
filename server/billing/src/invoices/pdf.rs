//! Invoices and statements as PDF files, with the texts of the pages.

use std::time::Duration;

use berth_types::documents::{
    DocumentText, invoice_pdf_name, invoice_text, statement_pdf_name, statement_text,
};
use berth_types::ids::{InvoiceId, OrgId};
use berth_types::portal::PortalSettings;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use tokio::sync::OwnedSemaphorePermit;

use super::Invoices;
use crate::pdf::{self, MAX_ROWS};
use berth_foundation::{Caller, Right};
use berth_store::{self as store, StoreError, Tx};

/// The files that the portal writes at the same time.
pub(super) const CONCURRENT_FILES: usize = 2;
/// The longest wait for the files before.
const MAX_WAIT: Duration = Duration::from_secs(20);
/// The name of the setting with the operator's name.
const PORTAL_SETTINGS: &str = "portal";

/// A PDF file with its name for downloads.
pub struct PdfFile {
    pub name: String,
    pub bytes: Vec<u8>,
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
async fn write(permit: OwnedSemaphorePermit, draft: Draft) -> Result<PdfFile, Problem> {
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
    /// Waits for the right to write a file.
    ///
    /// # Errors
    /// Other files take too long.
    async fn pdf_permit(&self) -> Result<OwnedSemaphorePermit, Problem> {
        let permit = self.pdf_permits.clone().acquire_owned();
        match tokio::time::timeout(MAX_WAIT, permit).await {
            Ok(Ok(permit)) => Ok(permit),
            Ok(Err(_)) => Err(Problem::internal()),
            Err(_) => {
                let detail = "The portal writes other PDF files. Nothing was changed. Try again in a minute.";
                Err(Problem::unavailable(detail, 60))
            }
        }
    }

    /// An invoice as PDF. The same invoice in the same state has the same bytes.
    ///
    /// # Errors
    /// The invoice has more lines than a file ([`MAX_ROWS`]), or other files take too long.
    pub async fn invoice_pdf(&self, caller: &Caller, org: OrgId, id: InvoiceId) -> Result<PdfFile, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        // A waiting request has no document in memory.
        let permit = self.pdf_permit().await?;
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
    ) -> Result<PdfFile, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let permit = self.pdf_permit().await?;
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
