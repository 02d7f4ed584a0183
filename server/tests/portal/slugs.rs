//! Tests of the slugs of organizations.

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use serde_json::{Value, json};

/// Signs up with an organization of this name; returns the answer.
async fn sign_up(t: &TestPortal, user: usize, organization: &str) -> Value {
    let email = format!("ada{user}@example.org");
    let body = json!({"email": email, "password": PASSWORD, "name": "Ada", "organization": organization});
    t.post(&Caller::Nobody, "/sign-up", body).await.expect(201)
}

#[tokio::test]
async fn each_organization_has_its_own_slug() {
    for (engine, db, _location) in engines("slugs").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let long = "Long ".repeat(20);
        let cut = "long-long-long-long-long-long-long-long";
        let second_cut = format!("{}-2", cut.get(..38).unwrap());
        for (user, (name, slug)) in [
            ("Acme", "acme"),
            ("ACME!", "acme-2"),
            (" acme ", "acme-3"),
            ("acme 2", "acme-2-2"),
            ("港", "org"),
            ("🚢", "org-2"),
            ("../%2f?x=<b>", "2f-x-b"),
            (long.trim(), cut),
            (long.trim(), second_cut.as_str()),
        ]
        .into_iter()
        .enumerate()
        {
            let answer = sign_up(&t, user, name).await;
            assert_eq!(answer["organization"]["slug"], slug, "{engine}: {name:?}");
        }
        let ada = t.sign_in("ada2@example.org").await;
        let me = t.get(&ada, "/me").await.expect(200);
        assert_eq!(me["memberships"][0]["org"]["slug"], "acme-3", "{engine}");
        let all = t.get(&operator, "/operator/orgs?sort=asc").await.expect(200);
        assert_eq!(all["items"][1]["org"]["slug"], "acme-2", "{engine}");
    }
}

#[tokio::test]
async fn many_organizations_of_one_name_sign_up() {
    for (engine, db, _location) in engines("slugs_many").await {
        let t = TestPortal::on(db);
        let answers = futures::future::join_all((0..24).map(|user| sign_up(&t, user, "Lab"))).await;
        let mut slugs: Vec<String> = answers
            .iter()
            .map(|answer| answer["organization"]["slug"].as_str().unwrap().to_owned())
            .collect();
        slugs.sort();
        slugs.dedup();
        assert_eq!(slugs.len(), 24, "{engine}: {slugs:?}");
        assert!(slugs.contains(&"lab-20".to_owned()), "{engine}: {slugs:?}");
        // The slugs after the last number have characters of the id.
        let by_id = slugs.iter().filter(|slug| slug.len() == "lab-".len() + 10).count();
        assert_eq!(by_id, 4, "{engine}: {slugs:?}");
    }
}
