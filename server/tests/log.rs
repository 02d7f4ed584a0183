//! A test that the portal's log and files contain no secret values. It is a separate program, because it reads
//! everything that its process logs.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

#[expect(dead_code, reason = "this program uses a part of it")]
#[path = "portal/common/mod.rs"]
mod common;

use std::io::Write;
use std::sync::{Arc, Mutex};

use berth_foundation::Settings;
use berth_foundation::audit_targets::{AuditTargets, WebhookTarget};
use berth_foundation::envelope::is_sealed;
use berth_store as store;
use berth_types::operations::AuditDestinationKind;
use common::{Caller, Reply, StoreLocation, TestPortal, engines};
use serde_json::json;

const VALUE: &str = "tok_Zq7w9x2m4k";

async fn put(t: &TestPortal, caller: &Caller, org: &str, name: &str, value: &str) -> Reply {
    t.call(caller, "PUT", &format!("/orgs/{org}/secrets/{name}"), json!({"value": value})).await
}

/// The whole log of the portal.
#[derive(Clone, Default)]
struct Logged(Arc<Mutex<Vec<u8>>>);

impl Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[tokio::test]
async fn no_file_and_no_log_contains_a_secret_value() {
    let logged = Logged::default();
    tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(Mutex::new(logged.clone()))
        .init();
    for (engine, db, location) in engines("secret_files").await {
        let target = WebhookTarget {
            url: format!("http://127.0.0.1:9/hook?key={VALUE}"),
            secret: format!("{VALUE}-of-the-audit-log"),
        };
        let audit_targets = AuditTargets { webhook: Some(target), ..AuditTargets::default() };
        let t = TestPortal::with(db, |settings| Settings { audit_targets, ..settings });
        let (ada, org) = t.tenant("lab").await;
        put(&t, &ada, &org, "hf-token", VALUE).await.expect(201);
        put(&t, &ada, &org, "hf-token", &format!("{VALUE}-second")).await.expect(200);
        let hook = json!({"url": "http://127.0.0.1:9/hook", "kinds": ["*"]});
        let hook = t.post(&ada, &format!("/orgs/{org}/webhooks"), hook).await.expect(201);
        let signing = hook["secret"].as_str().unwrap();
        assert!(signing.starts_with("whsec_"), "{engine}");
        let refused = t.portal.audit_push.deliver(AuditDestinationKind::Webhook).await.unwrap_err();
        assert!(!refused.contains(VALUE), "{engine}: {refused}");
        let mut conn = t.portal.context.db.read().await.unwrap();
        let mut tx = conn.tx();
        let rows = store::secrets::list_all(&mut tx).await.unwrap();
        let hooks = store::webhooks::list(&mut tx, None).await.unwrap();
        assert!(rows.len() == 1 && hooks.len() == 1, "{engine}");
        assert!(is_sealed(&rows[0].sealed) && is_sealed(&hooks[0].secret), "{engine}");
        if let StoreLocation::Sqlite(dir) = &location {
            let mut files = 0;
            for entry in std::fs::read_dir(dir.path()).unwrap() {
                let bytes = std::fs::read(entry.unwrap().path()).unwrap();
                assert!(!holds(&bytes, VALUE) && !holds(&bytes, signing), "{engine}");
                files += usize::from(holds(&bytes, "hf-token"));
            }
            assert!(files > 0, "its name is there");
        }
        let logged = logged.0.lock().unwrap();
        assert!(!logged.is_empty() && !holds(&logged, VALUE) && !holds(&logged, signing), "{engine}");
    }
}
