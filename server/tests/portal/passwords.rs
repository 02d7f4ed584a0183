//! Tests of refused passwords: breached ones, and those of the names of the portal and of the organization.

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::people::{mails, secrets};
use berth_foundation::Settings;
use serde_json::{Value, json};

/// Returns the field of a refused password, and its sentence.
fn refused(body: &Value) -> (&str, &str) {
    let [error] = body["errors"].as_array().unwrap().as_slice() else { panic!("{body}") };
    (error["pointer"].as_str().unwrap(), error["detail"].as_str().unwrap())
}

#[tokio::test]
async fn breached_and_obvious_passwords_are_refused_everywhere() {
    for (engine, db, _location) in engines("passwords").await {
        let nobody = Caller::Nobody;
        let public_url = "https://wolfen.example".to_owned();
        let t = TestPortal::with(db, |settings| Settings { public_url, ..settings });
        let breached = ("nuncateolvidare", "most common");
        let host = ("Wolfen-Berth-1234", "strangers know");
        let org = ("Sternwartenverein-2026", "strangers know");

        let token = t.portal.accounts.open_setup().await.unwrap().unwrap();
        for (password, sentence) in [breached, host] {
            let body = json!({"token": token, "email": "op@example.org", "password": password, "name": "Op"});
            let body = t.post(&nobody, "/setup", body).await.problem(422, "request.invalid");
            let (pointer, detail) = refused(&body);
            assert!(pointer == "/password" && detail.contains(sentence), "{engine}: {body}");
        }
        let sign_up = |password: &str| {
            let organization = "Sternwartenverein";
            json!({"email": "ada@example.org", "password": password, "name": "Ada", "organization": organization})
        };
        for (password, sentence) in [breached, host, org] {
            let body = t.post(&nobody, "/sign-up", sign_up(password)).await.problem(422, "request.invalid");
            let (pointer, detail) = refused(&body);
            assert!(pointer == "/password" && detail.contains(sentence), "{engine}: {body}");
        }
        t.post(&nobody, "/sign-up", sign_up(PASSWORD)).await.expect(201);
        let ada = t.sign_in("ada@example.org").await;
        t.post(&nobody, "/password-resets", json!({"email": "ada@example.org"})).await.expect(202);
        let sent = secrets(&mails(&t, "ada@example.org").await, "reset");
        for (password, sentence) in [breached, host, org] {
            let body = json!({"current": PASSWORD, "new": password});
            let body = t.call(&ada, "PUT", "/me/password", body).await.problem(422, "request.invalid");
            let (pointer, detail) = refused(&body);
            assert!(pointer == "/new" && detail.contains(sentence), "{engine}: {body}");
            let body = json!({"token": sent[0], "password": password});
            let body =
                t.post(&nobody, "/password-resets/complete", body).await.problem(422, "request.invalid");
            let (pointer, detail) = refused(&body);
            assert!(pointer == "/password" && detail.contains(sentence), "{engine}: {body}");
        }
        t.sign_in("ada@example.org").await;
    }
}
