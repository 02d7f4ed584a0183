//! Mails of accounts. They are sent after the answers to their requests, so that no answer shows by its time whether
//! an address has an account.
//!
//! The database does not store these mails, since their links have secrets. A mail is lost if the portal stops before
//! its hand-over; its receiver asks for another one.

use std::sync::Arc;

use berth_foundation::delivery::Transport;
use berth_types::problems::Problem;
use tokio::sync::Semaphore;

/// Mails that wait or are sent. The place of a mail is free after its hand-over.
const MAX_MAILS: u32 = 64;
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

/// A bounded queue of mails.
#[derive(Clone)]
pub struct Mails {
    transport: Arc<Transport>,
    /// Places for waiting and sent mails.
    places: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

impl Mails {
    pub fn new(transport: Arc<Transport>) -> Self {
        let places = usize::try_from(MAX_MAILS).unwrap_or(MAX_CONCURRENT);
        Self {
            transport,
            places: Arc::new(Semaphore::new(places)),
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT)),
        }
    }

    /// Starts `work`, which decides about a mail, and sends this mail. It returns before the work begins.
    ///
    /// # Errors
    /// 503 if all places are taken. The work is dropped.
    pub fn start(&self, work: impl Future<Output = Option<Mail>> + Send + 'static) -> Result<(), Problem> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return Err(Problem::unavailable(
                "Too many mails wait at this moment. No mail was sent. Try again in a few seconds.",
                RETRY_S,
            ));
        };
        let (transport, permits) = (self.transport.clone(), self.permits.clone());
        tokio::spawn(async move {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await;
            if let Some(mail) = work.await
                && let Err(error) = transport.send_mail(&mail.to, mail.subject, mail.text).await
            {
                tracing::warn!(
                    subject = mail.subject,
                    why = error.reason,
                    "a mail of an account was not sent"
                );
            }
            drop((permit, place));
        });
        Ok(())
    }

    /// Waits until all started mails are sent or have failed.
    pub async fn finished(&self) {
        // The semaphore is never closed.
        let _ = self.places.acquire_many(MAX_MAILS).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mails() -> Mails {
        Mails::new(Arc::new(Transport::disabled()))
    }

    #[tokio::test]
    async fn the_queue_of_mails_is_bounded() {
        let mails = mails();
        let (release, gate) = tokio::sync::watch::channel(());
        for _ in 0..MAX_MAILS {
            let mut gate = gate.clone();
            let work = async move {
                let _ = gate.changed().await;
                None
            };
            mails.start(work).unwrap();
        }
        assert_eq!(mails.start(async { None }).unwrap_err().status, 503);
        drop(release);
        mails.finished().await;
        mails.start(async { None }).unwrap();
    }

    #[tokio::test]
    async fn a_request_does_not_wait_for_its_mail() {
        let mails = mails();
        let (done, mut wait) = tokio::sync::oneshot::channel();
        let work = async move {
            let _ = done.send(());
            None
        };
        mails.start(work).unwrap();
        assert!(wait.try_recv().is_err(), "the work has not begun");
        mails.finished().await;
        assert!(wait.try_recv().is_ok());
    }
}
