//! A prepared data directory with a copy for each killed portal, and the checks afterwards.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail loudly, like tests")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_foundation::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::common::{Caller, TestPortal};
use crate::process::{PortalProcess, call, eventually, request, serve_with};

/// A prepared data directory with the tokens for portals on its copies.
#[derive(Clone)]
pub struct PreparedData {
    pub source: PathBuf,
    pub org: String,
    pub token: String,
    pub operator: String,
}

impl PreparedData {
    /// Sets the clock of the portal in process to `before_s` seconds before the system time.
    pub async fn set_clock(t: &TestPortal, before_s: i64) {
        t.clock.set_to_system_time();
        t.clock.advance_s(-before_s);
    }

    pub async fn create(t: &TestPortal, source: &Path, org: &str, ada: &Caller, operator: &Caller) -> Self {
        let secret = |v: Value| v["secret"].as_str().unwrap().to_owned();
        let new = json!({"name": "script", "role": "owner"});
        let token = secret(t.post(ada, &format!("/orgs/{org}/tokens"), new).await.expect(201));
        let operator =
            secret(t.post(operator, "/operator/tokens", json!({"name": "script"})).await.expect(201));
        Self { source: source.to_owned(), org: org.to_owned(), token, operator }
    }

    /// Creates a copy of the data directory for one portal.
    pub async fn copy(&self) -> tempfile::TempDir {
        use sqlx::Connection;
        let dir = tempfile::tempdir().unwrap();
        let from = format!("sqlite://{}", self.source.join("berth.db").display());
        let mut conn = sqlx::SqliteConnection::connect(&from).await.unwrap();
        let sql = format!("VACUUM INTO '{}'", dir.path().join("berth.db").display());
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        // No worker runs here, so a recent contact keeps the nodes from being lost.
        let copied = format!("sqlite://{}", dir.path().join("berth.db").display());
        let mut conn = sqlx::SqliteConnection::connect(&copied).await.unwrap();
        let last_seen = SystemClock.now().plus_seconds(30).micros();
        sqlx::query("UPDATE nodes SET last_seen_at = $1").bind(last_seen).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        for keys in ["ca", "secrets.key"] {
            let keys = self.source.join(keys);
            if keys.exists() {
                let copy = Command::new("cp").arg("-a").arg(keys).arg(dir.path()).status();
                assert!(copy.unwrap().success());
            }
        }
        dir
    }

    /// Runs a scenario for each fault point on its own copy, all in parallel.
    pub async fn run_at_each(
        self,
        points: &[&'static str],
        scenario: fn(&PreparedData, &Path, &'static str),
    ) {
        let mut running = Vec::new();
        for point in points.iter().copied() {
            let (prepared, dir) = (self.clone(), self.copy().await);
            running
                .push((point, tokio::task::spawn_blocking(move || scenario(&prepared, dir.path(), point))));
        }
        for (point, done) in running {
            assert!(done.await.is_ok(), "{point}");
        }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/orgs/{}/{rest}", self.org)
    }

    /// Sends a GET request that must return 200.
    pub fn get(&self, served: &PortalProcess, path: &str) -> Value {
        let (status, body) = call(&served.address, "GET", path, &self.token, &Value::Null).unwrap();
        assert_eq!(status, 200, "{body}");
        body
    }

    pub fn items(&self, served: &PortalProcess, path: &str) -> Vec<Value> {
        self.get(served, path)["items"].as_array().unwrap().clone()
    }

    /// Sends a POST request with a fixed idempotency key.
    pub fn post_with_key(
        &self,
        served: &PortalProcess,
        token: &str,
        path: &str,
        body: &Value,
    ) -> Option<(u16, Value)> {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", "the-same")];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request(&served.address, "POST", path, &headers, &body)
    }

    pub fn assert_books_balance(&self, served: &PortalProcess) {
        let path = "/operator/reconciliation";
        let (status, books) = call(&served.address, "POST", path, &self.operator, &Value::Null).unwrap();
        assert_eq!((status, &books["mismatches"]), (200, &json!([])), "{books}");
    }

    /// Asserts that the hold of a source equals its usage, release and present hold; returns hold and usage.
    pub fn hold_and_usage(&self, served: &PortalProcess, source_id: &str, held_micros: i64) -> (i64, i64) {
        let rows = self.items(served, &self.path("transfers?limit=200"));
        let sum = |kind: &str| -> i64 {
            let matching = rows.iter().filter(|r| r["source_id"] == source_id && r["kind"] == kind);
            matching.map(|r| r["amount_micros"].as_i64().unwrap().abs()).sum()
        };
        let (hold, usage) = (sum("hold"), sum("usage"));
        assert_eq!(hold, usage + sum("release") + held_micros, "{rows:?}");
        (hold, usage)
    }

    /// Asserts that a reservation exists once in the list, the ledger and the calendar; returns it.
    pub fn assert_booked_once(&self, served: &PortalProcess, id: &str) -> Value {
        let listed = self.items(served, &self.path("reservations?limit=200"));
        let mut same: Vec<Value> = listed.into_iter().filter(|r| r["id"] == id).collect();
        assert_eq!(same.len(), 1, "{id}");
        let r = same.pop().unwrap();
        let (from, until) = (r["starts_at"].as_str().unwrap(), r["ends_at"].as_str().unwrap());
        let calendar = self.get(served, &self.path(&format!("calendar?from={from}&until={until}")));
        let rows = calendar["rows"].as_array().unwrap();
        let spans = rows.iter().flat_map(|row| row["spans"].as_array().unwrap());
        assert_eq!(spans.filter(|s| s["id"] == id).count(), 1, "{calendar}");
        assert_eq!(r["held_micros"], r["total_micros"], "{r}");
        self.hold_and_usage(served, id, r["held_micros"].as_i64().unwrap());
        r
    }

    /// Returns the number of deliveries of a kind in any state.
    pub fn delivery_count(&self, served: &PortalProcess, kind: &str) -> usize {
        let hooks = self.items(served, &self.path("webhooks"));
        let path = self.path(&format!("webhooks/{}/deliveries?limit=200", hooks[0]["id"].as_str().unwrap()));
        self.items(served, &path).iter().filter(|d| d["kind"] == kind).count()
    }
}

/// Waits until the portal has killed itself.
pub fn wait_for_kill(served: &mut PortalProcess, point: &str) {
    let status = eventually(|| match served.process.try_wait().unwrap() {
        Some(status) => Ok(status),
        None => Err(format!("{point} is not reached")),
    });
    assert_eq!(status.signal(), Some(9), "{point}");
}

pub fn serve_on_free_port(data: &Path, fault: Option<&str>) -> PortalProcess {
    serve_with(data, "127.0.0.1:0", &[], fault)
}
