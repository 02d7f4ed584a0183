//! Mails of accounts. They are sent after the answers to their requests, so that no answer shows by its time whether
//! an address has an account.
//!
//! The database does not store these mails, since their links have secrets. A mail is lost if the portal stops before
//! its hand-over; its receiver asks for another one.

use std::sync::Arc;

use berth_foundation::RequestSource;
use berth_foundation::delivery::Transport;
use berth_types::problems::Problem;
use futures::StreamExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Mails with links that wait or are sent. The place of a mail is free after its hand-over.
const MAX_LINKS: u32 = 48;
/// Notices that wait or are sent. Strangers request links, but cause no notices.
const MAX_NOTICES: u32 = 16;
/// Mails that are sent at the same time.
const MAX_CONCURRENT: usize = 4;
/// The seconds before the next request when all places are taken.
const RETRY_S: u64 = 10;

/// A mail of the portal.
pub struct Mail {
    pub to: String,
    pub subject: &'static str,
    pub text: String,
}

/// A place in the queue of mails.
pub struct MailPlace(OwnedSemaphorePermit);

/// A bounded queue of mails.
#[derive(Clone)]
pub struct Mails {
    transport: Arc<Transport>,
    /// Places for waiting and sent mails with links.
    links: Arc<Semaphore>,
    /// Places for waiting and sent notices.
    notices: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

/// A semaphore with this number of permits.
fn semaphore(permits: u32) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(usize::try_from(permits).unwrap_or(MAX_CONCURRENT)))
}

impl Mails {
    pub fn new(transport: Arc<Transport>) -> Self {
        Self {
            transport,
            links: semaphore(MAX_LINKS),
            notices: semaphore(MAX_NOTICES),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    /// Reserves the place of a mail with a link. Reserved before the link is counted, so that a full queue uses up no
    /// link of an address.
    ///
    /// # Errors
    /// 503 if all places are taken.
    pub fn reserve(&self) -> Result<MailPlace, Problem> {
        self.links.clone().try_acquire_owned().map(MailPlace).map_err(|_| {
            Problem::unavailable(
                "Too many mails wait at this moment. No mail was sent. Try again in a few seconds.",
                RETRY_S,
            )
        })
    }

    /// Starts `work`, which decides about a mail with a link, and sends this mail. It returns before the work begins.
    pub fn start(&self, place: MailPlace, work: impl Future<Output = Option<Mail>> + Send + 'static) {
        let (transport, permits) = (self.transport.clone(), self.permits.clone());
        // The audit events of the work name the sender of the request.
        let source = RequestSource::present();
        tokio::spawn(async move {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await;
            if let Some(mail) = source.scope(work).await
                && let Err(error) = transport.send_mail(&mail.to, mail.subject, mail.text).await
            {
                tracing::warn!(
                    subject = mail.subject,
                    why = error.reason,
                    "a mail of an account was not sent"
                );
            }
            drop((permit, place.0));
        });
    }

    /// Starts `work`, which decides about a notice, and sends it. Without a free place the log has a warning.
    pub fn start_notice(&self, work: impl Future<Output = Option<Mail>> + Send + 'static) {
        match self.notices.clone().try_acquire_owned() {
            Ok(place) => self.start(MailPlace(place), work),
            Err(_) => tracing::warn!("too many mails wait: a notice of an account was not mailed"),
        }
    }

    /// Sends mails without links at once. The log names those that fail.
    pub async fn send_all(&self, mails: Vec<Mail>) {
        let transport = &self.transport;
        futures::stream::iter(mails)
            .for_each_concurrent(MAX_CONCURRENT, |mail| async move {
                if let Err(error) = transport.send_mail(&mail.to, mail.subject, mail.text).await {
                    tracing::warn!(subject = mail.subject, why = error.reason, "a mail was not sent");
                }
            })
            .await;
    }

    /// Waits until all started mails are sent or have failed.
    pub async fn finished(&self) {
        // The semaphores are never closed.
        let _ = self.links.acquire_many(MAX_LINKS).await;
        let _ = self.notices.acquire_many(MAX_NOTICES).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mails() -> Mails {
        Mails::new(Arc::new(Transport::for_operator()))
    }

    #[tokio::test]
    async fn the_queue_of_mails_is_bounded() {
        let mails = mails();
        let (release, gate) = tokio::sync::watch::channel(());
        for _ in 0..MAX_LINKS {
            let mut gate = gate.clone();
            let work = async move {
                let _ = gate.changed().await;
                None
            };
            mails.start(mails.reserve().unwrap(), work);
        }
        assert_eq!(mails.reserve().map(drop).unwrap_err().status, 503);
        // A notice has a place of its own.
        let (done, wait) = tokio::sync::oneshot::channel();
        let notice = async move {
            let _ = done.send(());
            None
        };
        mails.start_notice(notice);
        drop(release);
        mails.finished().await;
        assert!(wait.await.is_ok());
        assert!(mails.reserve().is_ok());
    }

    #[tokio::test]
    async fn a_request_does_not_wait_for_its_mail() {
        let mails = mails();
        let (done, mut wait) = tokio::sync::oneshot::channel();
        let work = async move {
            let _ = done.send(());
            None
        };
        mails.start(mails.reserve().unwrap(), work);
        assert!(wait.try_recv().is_err(), "the work has not begun");
        mails.finished().await;
        assert!(wait.try_recv().is_ok());
    }
}
