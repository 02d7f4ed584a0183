//! A prepared data directory, copied for each portal that is killed on it, and what must be so afterwards.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "helpers of tests fail loudly, like tests")]

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use berth_foundation::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::common::{As, TestPortal};
use crate::process::{Served, call, eventually, request, serve_with};

/// A data directory that was prepared in process, and who speaks to the portals on copies of it.
#[derive(Clone)]
pub struct World {
    pub source: PathBuf,
    pub org: String,
    pub token: String,
    pub operator: String,
}

impl World {
    /// The clock of the portal in process is not the machine's; here it begins `before_s` before that.
    pub async fn clock(t: &TestPortal, before_s: i64) {
        t.clock.set_by_the_machine();
        t.clock.advance_s(-before_s);
    }

    pub async fn of(t: &TestPortal, source: &Path, org: &str, ada: &As, operator: &As) -> Self {
        let secret = |v: Value| v["secret"].as_str().unwrap().to_owned();
        let new = json!({"name": "script", "role": "owner"});
        let token = secret(t.post(ada, &format!("/orgs/{org}/tokens"), new).await.expect(201));
        let operator =
            secret(t.post(operator, "/operator/tokens", json!({"name": "script"})).await.expect(201));
        Self { source: source.to_owned(), org: org.to_owned(), token, operator }
    }

    /// A data directory of its own for one portal.
    pub async fn copy(&self) -> tempfile::TempDir {
        use sqlx::Connection;
        let dir = tempfile::tempdir().unwrap();
        let from = format!("sqlite://{}", self.source.join("berth.db").display());
        let mut conn = sqlx::SqliteConnection::connect(&from).await.unwrap();
        let sql = format!("VACUUM INTO '{}'", dir.path().join("berth.db").display());
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut conn).await.unwrap();
        conn.close().await.unwrap();
        // No worker runs here, and one that was heard a moment ago is not lost yet.
        let copied = format!("sqlite://{}", dir.path().join("berth.db").display());
        let mut conn = sqlx::SqliteConnection::connect(&copied).await.unwrap();
        let heard = SystemClock.now().plus_seconds(30).micros();
        sqlx::query("UPDATE nodes SET last_seen_at = $1").bind(heard).execute(&mut conn).await.unwrap();
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

    /// Runs a scenario on a copy for each of these points, all at the same time.
    pub async fn at_each(self, points: &[&'static str], scenario: fn(&World, &Path, &'static str)) {
        let mut running = Vec::new();
        for point in points.iter().copied() {
            let (world, dir) = (self.clone(), self.copy().await);
            running.push((point, tokio::task::spawn_blocking(move || scenario(&world, dir.path(), point))));
        }
        for (point, done) in running {
            assert!(done.await.is_ok(), "{point}");
        }
    }

    pub fn path(&self, rest: &str) -> String {
        format!("/orgs/{}/{rest}", self.org)
    }

    /// What must be answered with 200.
    pub fn get(&self, served: &Served, path: &str) -> Value {
        let (status, body) = call(&served.address, "GET", path, &self.token, &Value::Null).unwrap();
        assert_eq!(status, 200, "{body}");
        body
    }

    pub fn items(&self, served: &Served, path: &str) -> Vec<Value> {
        self.get(served, path)["items"].as_array().unwrap().clone()
    }

    /// The request of a client that keeps to its key.
    pub fn keyed(&self, served: &Served, token: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let bearer = format!("Bearer {token}");
        let headers = [("Authorization", bearer.as_str()), ("Idempotency-Key", "the-same")];
        let body = if body.is_null() { String::new() } else { body.to_string() };
        request(&served.address, "POST", path, &headers, &body)
    }

    pub fn books_are_right(&self, served: &Served) {
        let path = "/operator/reconciliation";
        let (status, books) = call(&served.address, "POST", path, &self.operator, &Value::Null).unwrap();
        assert_eq!((status, &books["mismatches"]), (200, &json!([])), "{books}");
    }

    /// What was set aside for something is held, used or given back, and nothing else.
    pub fn money_of(&self, served: &Served, source_id: &str, held_micros: i64) -> (i64, i64) {
        let rows = self.items(served, &self.path("transfers?limit=200"));
        let sum = |kind: &str| -> i64 {
            let of = rows.iter().filter(|r| r["source_id"] == source_id && r["kind"] == kind);
            of.map(|r| r["amount_micros"].as_i64().unwrap().abs()).sum()
        };
        let (hold, usage) = (sum("hold"), sum("usage"));
        assert_eq!(hold, usage + sum("release") + held_micros, "{rows:?}");
        (hold, usage)
    }

    /// A reservation that holds stands once in the list, the books and the calendar.
    pub fn stands_once(&self, served: &Served, id: &str) -> Value {
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
        self.money_of(served, id, r["held_micros"].as_i64().unwrap());
        r
    }

    /// How many deliveries there are of a kind, whatever became of them.
    pub fn told(&self, served: &Served, kind: &str) -> usize {
        let hooks = self.items(served, &self.path("webhooks"));
        let path = self.path(&format!("webhooks/{}/deliveries?limit=200", hooks[0]["id"].as_str().unwrap()));
        self.items(served, &path).iter().filter(|d| d["kind"] == kind).count()
    }
}

/// Waits until the portal has killed itself.
pub fn dies(served: &mut Served, point: &str) {
    let status = eventually(|| match served.process.try_wait().unwrap() {
        Some(status) => Ok(status),
        None => Err(format!("{point} is not reached")),
    });
    assert_eq!(status.signal(), Some(9), "{point}");
}

pub fn free(data: &Path, fault: Option<&str>) -> Served {
    serve_with(data, "127.0.0.1:0", &[], fault)
}
