//! Tests of answers while the thread for writes is held.

use std::sync::{Arc, Mutex};

use berth_store::StoreError;
use futures::FutureExt;
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

use crate::common::{Caller, PASSWORD, TestPortal};
use crate::operations::items;

/// A write that keeps all others waiting.
struct HeldWrite {
    release: watch::Sender<()>,
    write: JoinHandle<Result<(), StoreError>>,
}

impl HeldWrite {
    async fn hold(t: &TestPortal) -> Self {
        let (release, gate) = watch::channel(());
        let (begins, has_begun) = oneshot::channel();
        let begins = Arc::new(Mutex::new(Some(begins)));
        let db = t.portal.context.db.clone();
        let write = tokio::spawn(async move {
            db.write(move |_tx| {
                let (mut gate, begins) = (gate.clone(), begins.clone());
                async move {
                    if let Some(begins) = begins.lock().unwrap().take() {
                        begins.send(()).unwrap();
                    }
                    let _ = gate.changed().await;
                    Ok(())
                }
                .boxed()
            })
            .await
        });
        has_begun.await.unwrap();
        Self { release, write }
    }

    /// Ends the write. It must not have run out of time before.
    async fn end(self) {
        assert!(!self.write.is_finished(), "the answers came after the write");
        drop(self.release);
        self.write.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_wrong_password_is_answered_before_its_event_is_written() {
    let t = TestPortal::sqlite().await;
    let operator = t.operator().await;
    t.tenant("lab").await;
    let held = HeldWrite::hold(&t).await;
    for email in ["lab@example.org", "nobody@example.org"] {
        let body = json!({"email": email, "password": "wrong wrong wrong wrong"});
        t.post(&Caller::Nobody, "/sessions", body).await.problem(401, "auth.wrong_password");
    }
    held.end().await;
    t.portal.accounts.refusals_written().await;
    let refused = items(&t, &operator, "/operator/audit-events?action=session.refused").await;
    assert_eq!(refused.len(), 2, "{refused:?}");
}

#[tokio::test]
async fn an_unknown_link_starts_no_write() {
    let t = TestPortal::sqlite().await;
    let held = HeldWrite::hold(&t).await;
    let body = json!({"token": "unknown"});
    t.post(&Caller::Nobody, "/email-verifications/complete", body).await.problem(404, "link.not_valid");
    held.end().await;
}

#[tokio::test]
async fn a_full_queue_of_mails_uses_up_no_link() {
    let t = TestPortal::sqlite().await;
    let ask = async |email: &str| t.post(&Caller::Nobody, "/password-resets", json!({"email": email})).await;
    let address = |n: usize| format!("lab{n}@example.org");
    for n in 0..17 {
        let email = address(n);
        let body = json!({"email": email, "password": PASSWORD, "name": "Ada", "organization": email});
        t.post(&Caller::Nobody, "/sign-up", body).await.expect(201);
    }
    // Each mail waits for the record of its link.
    let held = HeldWrite::hold(&t).await;
    for n in 0..16 {
        for _ in 0..3 {
            ask(&address(n)).await.expect(202);
        }
    }
    for _ in 0..4 {
        ask(&address(16)).await.problem(503, "server.unavailable");
    }
    held.end().await;
    t.portal.accounts.mails_sent().await;
    for _ in 0..3 {
        ask(&address(16)).await.expect(202);
    }
}
