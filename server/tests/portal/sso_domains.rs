//! Tests of the confirmation of domains by their records in DNS, with a DNS server on this host.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use berth_foundation::Settings;
use berth_store::Db;
use serde_json::{Value, json};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;

use crate::common::{Caller, Reply, TestPortal, engines};
use crate::oidc::FakeProvider;
use crate::sso::{Setup, refused, session, settings_of};

const NAME: &str = "_berth.corp.example";

/// The state of the server.
#[derive(Default)]
struct Zone {
    records: Mutex<BTreeMap<String, Vec<String>>>,
    fails: AtomicBool,
    questions: AtomicUsize,
}

impl Zone {
    /// The answer to a message with one question (RFC 1035), without its additional records.
    fn answer(&self, message: &[u8]) -> Vec<u8> {
        let (mut end, mut labels) = (12, Vec::new());
        while message[end] != 0 {
            let length = usize::from(message[end]);
            labels.push(String::from_utf8(message[end + 1..=end + length].to_vec()).unwrap());
            end += length + 1;
        }
        // The end of the name, and the type TXT of the class IN.
        assert_eq!(message[end..end + 5], [0, 0, 16, 0, 1]);
        self.questions.fetch_add(1, Ordering::SeqCst);
        let found = self.records.lock().unwrap().get(&labels.join(".")).cloned().unwrap_or_default();
        let (code, texts) = match (self.fails.load(Ordering::SeqCst), found.is_empty()) {
            (true, _) => (2, Vec::new()),
            (false, true) => (3, found),
            (false, false) => (0, found),
        };
        let mut out = message[..2].to_vec();
        out.extend([0x81, 0x80 | code, 0, 1, 0, u8::try_from(texts.len()).unwrap(), 0, 0, 0, 0]);
        out.extend(&message[12..end + 5]);
        for text in texts {
            let length = u8::try_from(text.len()).unwrap();
            out.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 60, 0, length + 1, length]);
            out.extend(text.as_bytes());
        }
        out
    }
}

/// A DNS server on this host.
pub struct FakeDns {
    pub address: SocketAddr,
    zone: Arc<Zone>,
    task: JoinHandle<()>,
}

impl Drop for FakeDns {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeDns {
    pub async fn open() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (address, zone) = (socket.local_addr().unwrap(), Arc::new(Zone::default()));
        let answering = zone.clone();
        let task = tokio::spawn(async move {
            let mut message = [0; 1_500];
            loop {
                let (length, from) = socket.recv_from(&mut message).await.unwrap();
                let answer = answering.answer(&message[..length]);
                socket.send_to(&answer, from).await.unwrap();
            }
        });
        Self { address, zone, task }
    }

    fn set(&self, texts: &[&str]) {
        self.put(NAME, texts);
    }

    /// Sets the TXT records of a name.
    pub fn put(&self, name: &str, texts: &[&str]) {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        self.zone.records.lock().unwrap().insert(name.to_owned(), texts);
    }

    fn set_fails(&self, fails: bool) {
        self.zone.fails.store(fails, Ordering::SeqCst);
    }

    fn questions(&self) -> usize {
        self.zone.questions.load(Ordering::SeqCst)
    }
}

/// A portal that asks `dns`, with an organization whose domain nobody confirmed.
async fn setup(db: Db, dns: &FakeDns) -> Setup {
    let server = dns.address;
    let t = TestPortal::with(db, |settings| Settings { dns_server: Some(server), ..settings });
    let provider = FakeProvider::open().await;
    let operator = t.operator().await;
    let (owner, org) = t.tenant("lab").await;
    let s = Setup { t, provider, operator, owner, org };
    s.put(|_| {}).await;
    s
}

async fn check(s: &Setup, caller: &Caller, org: &str, domain: &str) -> Reply {
    s.t.post(caller, &format!("/orgs/{org}/sso-domains/check"), json!({"domain": domain})).await
}

/// Checks the domain of the organization; returns its state.
async fn checked(s: &Setup) -> Value {
    check(s, &s.owner, &s.org, "corp.example").await.expect(200)["provider"]["domains"][0].clone()
}

/// The state of the domain of the organization.
async fn domain(s: &Setup) -> Value {
    let settings = s.t.get(&s.owner, &format!("/orgs/{}/sso-provider", s.org)).await.expect(200);
    settings["provider"]["domains"][0].clone()
}

fn record(domain: &Value) -> String {
    domain["record"].as_str().unwrap().to_owned()
}

/// The number of mails to the owner with this subject.
fn mails(s: &Setup, subject: &str) -> usize {
    let Ok(files) = std::fs::read_dir(s.t.data.path().join("outbox")) else { return 0 };
    let files = files.map(|file| file.unwrap().path());
    let mails = files.filter(|path| path.extension().is_some_and(|e| e == "eml"));
    let texts = mails.map(|path| std::fs::read_to_string(path).unwrap());
    let wanted = ["To: lab@example.org".to_owned(), format!("Subject: {subject}")];
    texts.filter(|text| wanted.iter().all(|line| text.contains(line))).count()
}

#[tokio::test]
async fn a_record_confirms_a_domain_for_one_organization() {
    for (engine, db, _location) in engines("sso_records").await {
        let dns = FakeDns::open().await;
        let s = setup(db, &dns).await;
        let new = domain(&s).await;
        let value = record(&new);
        assert_eq!(value.strip_prefix("berth-verification=").unwrap().len(), 32, "{engine}");
        assert_eq!((&new["confirmed_at"], &new["by_dns"]), (&Value::Null, &json!(false)), "{engine}");
        refused(&s.sign_in("grace", |_| {}).await, "domain");
        let missing = checked(&s).await;
        assert!(missing["problem"].as_str().unwrap().contains("was not found"), "{engine}: {missing}");
        dns.set(&["v=spf1 -all", &value]);
        let found = checked(&s).await;
        assert!(found["confirmed_at"].is_string(), "{engine}: {found}");
        assert_eq!((&found["by_dns"], &found["problem"]), (&json!(true), &Value::Null), "{engine}");
        let grace = session(&s.sign_in("grace", |_| {}).await);
        assert!(s.actions().await.iter().any(|action| action == "sso.domain_confirmed"), "{engine}");

        let (other, org) = s.t.tenant("other").await;
        let path = format!("/orgs/{org}/sso-provider");
        let put = s.t.call(&other, "PUT", &path, settings_of(&s.provider)).await.expect(200);
        let theirs = record(&put["provider"]["domains"][0]);
        assert_ne!(theirs, value, "{engine}");
        dns.set(&[&value, &theirs]);
        let taken = check(&s, &other, &org, "corp.example").await.expect(200);
        let taken = &taken["provider"]["domains"][0];
        assert_eq!(taken["confirmed_at"], Value::Null, "{engine}");
        assert!(taken["problem"].as_str().unwrap().contains("another organization"), "{engine}: {taken}");

        check(&s, &grace, &s.org, "corp.example").await.problem(403, "auth.forbidden");
        check(&s, &other, &s.org, "corp.example").await.problem(404, "object.not_found");
        check(&s, &s.owner, &s.org, "else.example").await.problem(404, "object.not_found");
        check(&s, &s.owner, &s.org, "no dots").await.problem(422, "request.invalid");
    }
}

#[tokio::test]
async fn a_confirmation_ends_seven_days_after_its_record() {
    for (engine, db, _location) in engines("sso_lapse").await {
        let dns = FakeDns::open().await;
        let mut s = setup(db, &dns).await;
        let value = record(&domain(&s).await);
        dns.set(&[&value]);
        let providers = s.t.portal.sso.providers.clone();
        let tick = async || assert!(!providers.tick_domains().await.unwrap());
        tick().await;
        assert_eq!(dns.questions(), 0, "{engine}: the first check follows after five minutes");
        s.t.clock.advance_s(301);
        tick().await;
        session(&s.sign_in("grace", |_| {}).await);

        dns.set(&[]);
        s.t.clock.advance_s(86_401);
        tick().await;
        session(&s.sign_in("grace", |_| {}).await);
        s.owner = s.t.sign_in("lab@example.org").await;
        assert!(domain(&s).await["missing_since"].is_string(), "{engine}");
        s.t.portal.webhooks.deliver().await.unwrap();
        assert_eq!(mails(&s, "The DNS record of corp.example is missing"), 1, "{engine}");

        // A server without an answer proves nothing.
        dns.set_fails(true);
        s.t.clock.advance_s(7 * 86_400);
        tick().await;
        session(&s.sign_in("grace", |_| {}).await);
        dns.set_fails(false);
        s.t.clock.advance_s(3_601);
        tick().await;
        refused(&s.sign_in("grace", |_| {}).await, "domain");
        s.t.portal.webhooks.deliver().await.unwrap();
        assert_eq!(mails(&s, "corp.example is no longer confirmed"), 1, "{engine}");
        s.owner = s.t.sign_in("lab@example.org").await;
        let actions = s.actions().await;
        for action in ["sso.domain_missing", "sso.domain_unconfirmed"] {
            assert_eq!(actions.iter().filter(|known| *known == action).count(), 1, "{engine}: {action}");
        }

        dns.set(&[&value]);
        s.t.clock.advance_s(301);
        tick().await;
        session(&s.sign_in("grace", |_| {}).await);
    }
}

#[tokio::test]
async fn an_operator_overrules_the_record_of_a_domain() {
    for (engine, db, _location) in engines("sso_overruled").await {
        let dns = FakeDns::open().await;
        let s = setup(db, &dns).await;
        let value = record(&domain(&s).await);
        dns.set(&[&value]);
        assert_eq!(checked(&s).await["by_dns"], true, "{engine}");
        s.confirm(false).await;
        let withdrawn = checked(&s).await;
        assert_eq!(withdrawn["confirmed_at"], Value::Null, "{engine}: the former record confirms nothing");
        assert_ne!(record(&withdrawn), value, "{engine}");
        s.confirm(true).await;
        let asked = dns.questions();
        let confirmed = checked(&s).await;
        assert_eq!((&confirmed["by_dns"], dns.questions()), (&json!(false), asked), "{engine}");
        assert!(confirmed["confirmed_at"].is_string(), "{engine}");
    }
}

#[tokio::test]
async fn checks_and_their_answers_are_bounded() {
    let dns = FakeDns::open().await;
    let dir = tempfile::tempdir().unwrap();
    let s = setup(crate::common::new_sqlite(&dir.path().join("berth.db")).await, &dns).await;
    let value = record(&domain(&s).await);
    let mut texts = vec!["other"; 20];
    texts.push(&value);
    dns.set(&texts);
    assert_eq!(checked(&s).await["confirmed_at"], Value::Null, "the first 20 records count");
    dns.set(&texts[1..]);
    assert!(checked(&s).await["confirmed_at"].is_string());
    for _ in 2..5 {
        checked(&s).await;
    }
    check(&s, &s.owner, &s.org, "corp.example").await.problem(429, "request.throttled");
}
