//! Tests of the operators' list of organizations: order, filter and pages, on every engine.

use crate::common::{Caller, PASSWORD, TestPortal, engines};
use crate::idle_portal::IdlePortal;
use crate::overview::charge;
use berth_foundation::days::{day_of, month_start_day};
use berth_store::Db;
use serde_json::{Value, json};

/// A portal with the organizations lab, bobs, zoo and alpha. Zoo has spent its credit, alpha never had any.
async fn filled(db: Db) -> IdlePortal {
    let setup = IdlePortal::on(db).await;
    let (t, operator) = (&setup.t, &setup.operator);
    let credit = json!({"amount_micros": 5});
    t.post(operator, &format!("/operator/orgs/{}/credits", setup.other), credit.clone()).await.expect(201);
    t.clock.advance_s(1);
    let (_, zoo) = t.tenant("zoo").await;
    t.post(operator, &format!("/operator/orgs/{zoo}/credits"), credit).await.expect(201);
    let debit = json!({"amount_micros": 5, "memo": "spent"});
    t.post(operator, &format!("/operator/orgs/{zoo}/debits"), debit).await.expect(201);
    t.clock.advance_s(1);
    t.tenant("alpha").await;
    let now = t.portal.context.now();
    charge(&setup, &zoo, day_of(now), 7).await;
    charge(&setup, &setup.org, month_start_day(now), 5).await;
    charge(&setup, &setup.other, month_start_day(now) - 1, 1_000).await;
    setup
}

fn names(page: &Value) -> Vec<String> {
    let items = page["items"].as_array().unwrap();
    items.iter().map(|item| item["org"]["name"].as_str().unwrap().to_owned()).collect()
}

async fn list(t: &TestPortal, setup: &IdlePortal, query: &str) -> Vec<String> {
    names(&t.get(&setup.operator, &format!("/operator/orgs?{query}")).await.expect(200))
}

#[tokio::test]
async fn organizations_are_ordered_and_filtered_by_the_portal() {
    for (engine, db, _location) in engines("org_lists").await {
        let setup = filled(db).await;
        let t = &setup.t;
        let lab = format!("org={}", setup.org);
        for (query, expected) in [
            ("order_by=name", vec!["alpha", "bobs", "lab", "zoo"]),
            ("order_by=name&sort=desc", vec!["zoo", "lab", "bobs", "alpha"]),
            ("order_by=balance", vec!["zoo", "alpha", "lab", "bobs"]),
            ("order_by=balance&sort=desc", vec!["bobs", "lab", "alpha", "zoo"]),
            ("order_by=spent&sort=desc&name=o", vec!["zoo", "bobs"]),
            ("order_by=created&sort=asc&name=a", vec!["lab", "alpha"]),
            ("name=LA", vec!["lab"]),
            ("name=%25", vec![]),
            ("slug=zoo", vec!["zoo"]),
            ("slug=zo", vec![]),
            ("without_credit=true", vec!["zoo"]),
            ("without_credit=false&order_by=name&name=l", vec!["alpha", "lab"]),
            (lab.as_str(), vec!["lab"]),
        ] {
            assert_eq!(list(t, &setup, query).await, expected, "{engine}: {query}");
        }
        let first = t.get(&setup.operator, "/operator/orgs?order_by=spent&sort=desc").await.expect(200);
        let spent: Vec<&Value> =
            first["items"].as_array().unwrap().iter().map(|o| &o["spent_micros"]).collect();
        assert_eq!(json!(spent), json!([7, 5, 0, 0]), "{engine}: this month only");
        let long = format!("name={}", "n".repeat(101));
        for query in ["name=", long.as_str(), "order_by=colour", "without_credit=maybe", "org=lab"] {
            let reply = t.get(&setup.operator, &format!("/operator/orgs?{query}")).await;
            reply.problem(400, "request.malformed");
        }
        t.get(&setup.ada, "/operator/orgs?order_by=name").await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn pages_of_organizations_follow_their_order_and_their_cursor_is_bound_to_it() {
    for (engine, db, _location) in engines("org_pages").await {
        let setup = filled(db).await;
        let t = &setup.t;
        for order in ["created", "name", "balance", "spent"] {
            for sort in ["asc", "desc"] {
                let query = format!("order_by={order}&sort={sort}");
                let all = list(t, &setup, &query).await;
                assert_eq!(all.len(), 4, "{engine}: {query}");
                let (mut seen, mut cursor) = (Vec::new(), String::new());
                for _ in 0..4 {
                    let path = format!("/operator/orgs?{query}&limit=1{cursor}");
                    let page = t.get(&setup.operator, &path).await.expect(200);
                    seen.extend(names(&page));
                    cursor =
                        page["next_cursor"].as_str().map_or_else(String::new, |c| format!("&cursor={c}"));
                }
                assert_eq!((seen, cursor.as_str()), (all, ""), "{engine}: {query}");
            }
        }
        let first = t.get(&setup.operator, "/operator/orgs?order_by=name&name=a&limit=1").await.expect(200);
        let cursor = first["next_cursor"].as_str().unwrap();
        let next = format!("order_by=name&name=a&cursor={cursor}");
        assert_eq!(list(t, &setup, &next).await, ["lab"], "{engine}");
        for other in ["order_by=balance&name=a", "order_by=name&name=a&sort=desc", "order_by=name", "name=a"]
        {
            let reply = t.get(&setup.operator, &format!("/operator/orgs?{other}&cursor={cursor}")).await;
            reply.problem(400, "request.malformed");
        }
    }
}

#[tokio::test]
async fn names_have_one_order_and_one_filter_on_each_engine() {
    for (engine, db, _location) in engines("org_names").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        for (n, name) in ["Zürich", "ÉCOLE", "ab", "a-b"].into_iter().enumerate() {
            let email = format!("owner-{n}@example.org");
            let body = json!({"email": email, "password": PASSWORD, "name": "Ada", "organization": name});
            t.post(&Caller::Nobody, "/sign-up", body).await.expect(201);
        }
        let list = async |query: &str| {
            t.get(&operator, &format!("/operator/orgs?order_by=name&{query}")).await.expect(200)
        };
        let ordered = ["a-b", "ab", "Zürich", "ÉCOLE"];
        assert_eq!(names(&list("sort=asc").await), ordered, "{engine}: by their bytes");
        let (mut seen, mut cursor) = (Vec::new(), String::new());
        for _ in ordered {
            let page = list(&format!("limit=1{cursor}")).await;
            seen.extend(names(&page));
            cursor = page["next_cursor"].as_str().map_or_else(String::new, |c| format!("&cursor={c}"));
        }
        assert_eq!((seen.as_slice(), cursor.as_str()), (&ordered.map(str::to_owned)[..], ""), "{engine}");
        for (part, expected) in [
            ("z%C3%BCr", vec!["Zürich"]),
            ("%C3%89cole", vec!["ÉCOLE"]),
            // Only ASCII letters have two cases here.
            ("%C3%A9cole", vec![]),
        ] {
            assert_eq!(names(&list(&format!("name={part}")).await), expected, "{engine}: {part}");
        }
    }
}
