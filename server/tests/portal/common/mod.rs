//! A portal in process with a real store, a real router and a manual clock.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

pub mod described;

#[path = "../../../../worker/tests/left_out/mod.rs"]
pub mod left_out;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, StatusCode, header};
use berth_foundation::clock::{Clock, SystemClock};
use berth_foundation::{PasswordCost, Settings};
use berth_server::portal::Portal;
use berth_server::rest;
use berth_store::accounts::Replay;
use berth_store::{self as store, Db};
use berth_types::time::Timestamp;
use futures::FutureExt;
use rand::SeedableRng;
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::sync::OnceCell;
use tower::ServiceExt;

pub const PASSWORD: &str = "lantern quay seven drizzle";

const ANSWER_LIMIT: Duration = Duration::from_secs(120);

/// A clock that changes only on request.
pub struct ManualClock(AtomicI64);

impl ManualClock {
    pub fn advance_s(&self, seconds: i64) {
        self.0.fetch_add(seconds * 1_000_000, Ordering::SeqCst);
    }

    /// Sets the clock to the system time, for data that a portal with the system clock continues to use.
    pub fn set_to_system_time(&self) {
        self.0.store(SystemClock.now().micros(), Ordering::SeqCst);
    }

    /// Advances the clock to the system time, after steps that may have taken long.
    pub fn catch_up(&self) {
        self.0.fetch_max(SystemClock.now().micros(), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        // Each reading differs, so that ids sort by creation.
        Timestamp::from_micros(self.0.fetch_add(1_000, Ordering::SeqCst))
    }
}

/// The location of a test's store.
pub enum StoreLocation {
    Sqlite(tempfile::TempDir),
    Postgres(String),
}

/// Opens a new SQLite database in `file`: a copy of one with all migrations, since their application takes longer than
/// most tests.
pub async fn new_sqlite(file: &Path) -> Db {
    static MIGRATED: OnceCell<Vec<u8>> = OnceCell::const_new();
    let migrated = MIGRATED.get_or_init(async || {
        let dir = tempfile::tempdir().unwrap();
        let (first, whole) = (dir.path().join("first.db"), dir.path().join("whole.db"));
        drop(Db::sqlite(&first).await.unwrap());
        let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&first);
        let mut conn = sqlx::SqliteConnection::connect_with(&options).await.unwrap();
        let copy = sqlx::AssertSqlSafe(format!("VACUUM INTO '{}'", whole.display()));
        sqlx::query(copy).execute(&mut conn).await.unwrap();
        std::fs::read(whole).unwrap()
    });
    std::fs::write(file, migrated.await).unwrap();
    Db::sqlite(file).await.unwrap()
}

/// Opens a new Postgres database on the server at `base`: a copy of one with all migrations. Returns its address too.
async fn new_postgres(base: &str, name: &str) -> (Db, String) {
    static MIGRATED: OnceCell<String> = OnceCell::const_new();
    let mut admin = sqlx::PgConnection::connect(&format!("{base}/postgres")).await.unwrap();
    let migrated = MIGRATED.get_or_init(async || {
        let name = format!("migrated_{}", std::process::id());
        run(&mut admin, format!("CREATE DATABASE {name}")).await;
        drop(Db::postgres(&format!("{base}/{name}")).await.unwrap());
        // A database with sessions cannot be copied.
        run(&mut admin, format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false")).await;
        let sessions =
            format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'");
        run(&mut admin, sessions).await;
        name
    });
    let migrated = migrated.await;
    run(&mut admin, format!("CREATE DATABASE {name} TEMPLATE {migrated}")).await;
    let url = format!("{base}/{name}");
    (Db::postgres(&url).await.unwrap(), url)
}

async fn run(admin: &mut sqlx::PgConnection, sql: String) {
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(admin).await.unwrap();
}

/// Creates one empty store per available engine: SQLite always, PostgreSQL if `BERTH_TEST_POSTGRES` names a
/// server with the right to create databases.
pub async fn engines(name: &str) -> Vec<(&'static str, Db, StoreLocation)> {
    let dir = tempfile::tempdir().unwrap();
    let mut out =
        vec![("sqlite", new_sqlite(&dir.path().join("berth.db")).await, StoreLocation::Sqlite(dir))];
    match std::env::var("BERTH_TEST_POSTGRES") {
        Err(_) => eprintln!("Postgres is left out: BERTH_TEST_POSTGRES is not set"),
        Ok(base) => {
            // Two tests may use the same name.
            static DATABASES: AtomicU64 = AtomicU64::new(0);
            let number = DATABASES.fetch_add(1, Ordering::SeqCst);
            let database = format!("{name}_{}_{number}", std::process::id());
            let (db, url) = new_postgres(&base, &database).await;
            out.push(("postgres", db, StoreLocation::Postgres(url)));
        }
    }
    out
}

pub struct TestPortal {
    pub portal: Portal,
    pub clock: Arc<ManualClock>,
    pub router: Router,
    location: Option<StoreLocation>,
    /// The directory of logs and readings, removed after the test.
    pub data: tempfile::TempDir,
}

/// An answer: status, headers and JSON body (`null` for another body).
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Value,
}

impl Reply {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }
    #[track_caller]
    pub fn problem(self, status: u16, code: &str) -> Value {
        let body = self.expect(status);
        assert_eq!(body["code"], code, "{body}");
        assert!(body["request_id"].as_str().unwrap().starts_with("req_"), "{body}");
        body
    }
}

/// The credentials of a request.
#[derive(Clone)]
pub enum Caller {
    Nobody,
    Cookie(String),
    Token(String),
}

impl TestPortal {
    pub async fn sqlite() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let db = new_sqlite(&dir.path().join("berth.db")).await;
        let mut portal = Self::on(db);
        portal.location = Some(StoreLocation::Sqlite(dir));
        portal
    }

    pub fn on(db: Db) -> Self {
        Self::with(db, |settings| settings)
    }

    /// Creates a portal with changed settings.
    pub fn with(db: Db, change: impl FnOnce(Settings) -> Settings) -> Self {
        let clock = Arc::new(ManualClock(AtomicI64::new(1_795_000_000_000_000)));
        let rng = rand_chacha::ChaCha20Rng::seed_from_u64(1);
        let data = tempfile::tempdir().unwrap();
        // The receivers of webhooks run on the same host as the tests.
        let settings = Settings {
            data: data.path().to_owned(),
            private_webhooks: true,
            // Most tests sign people in, and none of them depends on the cost of a hash.
            password_cost: PasswordCost { memory_kib: 8, passes: 1 },
            // The portal's clock is manual, but workers check the certificate with the system time.
            portal_certificate_s: 20 * 365 * 86_400,
            ..Settings::default()
        };
        let portal = Portal::new(db, change(settings), clock.clone(), rng).unwrap();
        Self { router: rest::router(portal.clone()), portal, clock, location: None, data }
    }

    /// # Panics
    /// If the answer is not complete within `ANSWER_LIMIT`: a request that hangs fails its test, not the whole run.
    pub async fn send(&self, request: Request<Body>) -> Reply {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let answered = async {
            let response = self.router.clone().oneshot(request).await.unwrap();
            let (parts, body) = response.into_parts();
            (parts, to_bytes(body, usize::MAX).await.unwrap())
        };
        let Ok((parts, bytes)) = tokio::time::timeout(ANSWER_LIMIT, answered).await else {
            panic!("no answer to {method} {path} within {ANSWER_LIMIT:?}");
        };
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        described::check(method.as_str(), &path, parts.status.as_u16(), &parts.headers, &body);
        Reply { status: parts.status, headers: parts.headers, body }
    }

    pub async fn call(&self, caller: &Caller, method: &str, path: &str, body: Value) -> Reply {
        self.call_with(caller, method, path, body, &[]).await
    }

    pub async fn call_with(
        &self,
        caller: &Caller,
        method: &str,
        path: &str,
        body: Value,
        headers: &[(&str, &str)],
    ) -> Reply {
        let mut request = Request::builder().method(method).uri(format!("/api/v1{path}"));
        request = match caller {
            Caller::Nobody => request,
            Caller::Cookie(cookie) => request.header(header::COOKIE, cookie),
            Caller::Token(token) => request.header(header::AUTHORIZATION, format!("Bearer {token}")),
        };
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if body.is_null() {
            return self.send(request.body(Body::empty()).unwrap()).await;
        }
        request = request.header(header::CONTENT_TYPE, "application/json");
        let reply = self.send(request.body(Body::from(body.to_string())).unwrap()).await;
        if reply.status.is_success() {
            described::check_accepted(method, &format!("/api/v1{path}"), &body);
        }
        reply
    }

    pub async fn get(&self, caller: &Caller, path: &str) -> Reply {
        self.call(caller, "GET", path, Value::Null).await
    }

    pub async fn post(&self, caller: &Caller, path: &str, body: Value) -> Reply {
        self.call(caller, "POST", path, body).await
    }

    /// Simulates a crash of the portal after the effect of a request with an idempotency key and before its
    /// answer was stored: only the created id is known. All other keys are deleted.
    pub async fn lose_answer(&self, scope: &str, key: &str, made: &str) {
        let mut conn = self.portal.context.db.read().await.unwrap();
        let kept = store::accounts::find_idempotency(&mut conn.tx(), scope, key).await.unwrap().unwrap();
        drop(conn);
        let names = [scope, key, made].map(str::to_owned);
        let (hash, now) = (kept.request_hash, self.portal.context.now());
        let lost = self.portal.context.db.write(move |tx| {
            let ([scope, key, answer], request_hash) = (names.clone(), hash.clone());
            async move {
                let claimed = Replay { request_hash, status: 0, answer };
                store::accounts::forget_answers(tx, now.plus_seconds(1)).await?;
                store::accounts::insert_idempotency(tx, &scope, &key, &claimed, now).await.map(|_| ())
            }
            .boxed()
        });
        lost.await.unwrap();
    }

    /// Signs in and returns the session cookie.
    pub async fn sign_in(&self, email: &str) -> Caller {
        let reply =
            self.post(&Caller::Nobody, "/sessions", json!({"email": email, "password": PASSWORD})).await;
        let cookie =
            reply.headers[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
        reply.expect(201);
        Caller::Cookie(cookie)
    }

    /// Creates the first operator and signs in.
    pub async fn operator(&self) -> Caller {
        let token = self.portal.accounts.open_setup().await.unwrap().unwrap();
        let body = json!({"token": token, "email": "harbour@example.org", "password": PASSWORD, "name": "Harbour master"});
        self.post(&Caller::Nobody, "/setup", body).await.expect(201);
        self.sign_in("harbour@example.org").await
    }

    /// Creates an organization; returns its signed-in owner and its id.
    pub async fn tenant(&self, name: &str) -> (Caller, String) {
        let email = format!("{name}@example.org");
        let body = json!({"email": email, "password": PASSWORD, "name": "Ada", "organization": name});
        let org =
            self.post(&Caller::Nobody, "/sign-up", body).await.expect(201)["organization"]["id"].clone();
        (self.sign_in(&email).await, org.as_str().unwrap().to_owned())
    }

    /// Adds an H100 offering, a price of 3.6 units an hour for its 1g slice, and credit for the organization.
    pub async fn add_price_and_credit(&self, operator: &Caller, org: &str, credit_micros: i64) {
        self.portal
            .offerings
            .offer_board(berth_mig::board_by_name("H100-80GB").unwrap(), true)
            .await
            .unwrap();
        let price = json!({"offering": "h100-80gb.1g.10gb", "per_hour_micros": 3_600_000});
        self.post(operator, "/operator/prices", price).await.expect(201);
        if credit_micros > 0 {
            let credit = json!({"amount_micros": credit_micros, "memo": "Welcome"});
            self.post(operator, &format!("/operator/orgs/{org}/credits"), credit).await.expect(201);
        }
    }
}

/// Returns a valid submission.
pub fn job() -> Value {
    json!({"name": "train", "offering": "h100-80gb.1g.10gb", "command": ["true"], "max_duration_s": 60})
}
