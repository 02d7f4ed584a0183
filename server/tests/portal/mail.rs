//! Tests of mail: the header of a message, mails that were not sent, and settings that are refused.

use std::process::Stdio;
use std::sync::atomic::Ordering;
use std::time::Duration;

use berth_foundation::{Settings, mail_report};
use berth_store::Db;
use serde_json::{Value, json};

use crate::common::{Caller, PASSWORD, TestPortal, engines, new_sqlite};
use crate::smtp_server::SmtpServer;
use crate::worker_portal::eventually;

fn portal(db: Db, server: &SmtpServer) -> TestPortal {
    TestPortal::with(db, |settings| Settings {
        smtp: Some(server.url.clone()),
        mail_from: "Berth <no-reply@portal.example>".to_owned(),
        ..settings
    })
}

async fn invite(t: &TestPortal, owner: &Caller, org: &str, email: &str) -> Value {
    let new = json!({"email": email, "role": "member"});
    t.post(owner, &format!("/orgs/{org}/invitations"), new).await.expect(201)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mail_has_an_id_of_its_senders_domain_and_names_its_charset() {
    for (engine, db, _location) in engines("mail_header").await {
        let server = SmtpServer::open().await.unwrap();
        let t = portal(db, &server);
        let person = json!({"email": "joerg@example.org", "password": PASSWORD, "name": "Jörg Müller", "organization": "Köln Zürich €"});
        let signed_up = t.post(&Caller::Nobody, "/sign-up", person).await.expect(201);
        let org = signed_up["organization"]["id"].as_str().unwrap();
        let joerg = t.sign_in("joerg@example.org").await;
        for email in ["grace@example.org", "edith@example.org"] {
            let sent = invite(&t, &joerg, org, email).await;
            assert!(
                sent["invitation"]["mailed_at"].is_string() && sent["link"].is_null(),
                "{engine}: {sent}"
            );
        }
        let messages = server.messages();
        assert_eq!(messages.len(), 2, "{engine}");
        for message in &messages {
            let id = message.field("Message-ID").unwrap();
            let (random, domain) = id.split_once('@').unwrap();
            assert_eq!((random.len(), domain), (33, "portal.example>"), "{engine}: {id}");
            for (name, value) in [
                ("MIME-Version", "1.0"),
                ("Content-Type", "text/plain; charset=utf-8"),
                ("Content-Transfer-Encoding", "quoted-printable"),
            ] {
                assert_eq!(message.field(name), Some(value), "{engine}: {message:?}");
            }
            assert!(message.field("Date").is_some() && message.field("Subject").is_some(), "{engine}");
            let text = message.text().unwrap();
            let begin = "Jörg Müller invites you to the organization\r\nKöln Zürich €\r\n";
            assert!(text.starts_with(begin) && text.contains("/join#"), "{engine}: {text}");
        }
        assert_ne!(messages[0].field("Message-ID"), messages[1].field("Message-ID"), "{engine}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_that_a_mail_was_not_sent() {
    for (engine, db, _location) in engines("mail_failed").await {
        let server = SmtpServer::open().await.unwrap();
        let t = portal(db, &server);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        server.refusals.store(1, Ordering::SeqCst);
        let refused = invite(&t, &ada, &org, "grace@example.org").await;
        assert!(refused["invitation"]["mailed_at"].is_null(), "{engine}: {refused}");
        let sent = invite(&t, &ada, &org, "edith@example.org").await;
        assert!(sent["invitation"]["mailed_at"].is_string(), "{engine}: {sent}");

        let report = mail_report::start(t.portal.webhooks.transport.clone(), &t.portal.loops);
        let row = eventually("a run of the loop of mail", async || {
            let loops = t.get(&operator, "/operator/loops").await.expect(200);
            let row = loops["items"][0].clone();
            (row["runs"].as_u64() > Some(0)).then_some(row)
        })
        .await;
        assert_eq!(
            (&row["name"], &row["failures"], &row["last_failed"]),
            (&json!("mail"), &json!(1), &json!(true)),
            "{engine}: {row}"
        );
        let detail = row["last_error"]["detail"].as_str().unwrap();
        assert!(
            detail.starts_with("mails not sent: 1 of 2; ") && detail.contains("(550)"),
            "{engine}: {detail}"
        );
        assert!(!detail.contains("grace@example.org"), "{engine}: {detail}");
        report.abort();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_portal_with_bad_settings_of_mail_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    drop(new_sqlite(&dir.path().join("berth.db")).await);
    for options in [
        ["--smtp", "mail.example.org"],
        ["--smtp", "smtp://user:secret@mail.example.org"],
        ["--mail-from", "berth"],
    ] {
        let mut program = tokio::process::Command::new(env!("CARGO_BIN_EXE_berth-portal"));
        program
            .args(["serve", "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0"])
            .args(options)
            .arg("--data")
            .arg(dir.path())
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let ended = tokio::time::timeout(Duration::from_secs(60), program.output());
        let ended = ended.await.unwrap_or_else(|_| panic!("it serves with {options:?}")).unwrap();
        let text = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(1), "{text}");
        assert!(text.contains(&format!("berth-portal: {} ", options[0])), "{text}");
        assert!(ended.stdout.is_empty() && !text.contains("secret"), "{text}");
    }
}
