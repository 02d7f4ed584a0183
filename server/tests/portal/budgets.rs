//! Tests of several budgets of several organizations.

use std::collections::HashSet;

use crate::common::{TestPortal, engines, job};
use berth_server::loops;
use berth_store as store;
use berth_types::ids::JobId;
use futures::FutureExt;
use serde_json::{Value, json};

/// Records a charge of a project, or of no project, like the end of a job.
async fn record_charge(t: &TestPortal, org: &str, project: Option<&str>, micros: i64) {
    let (org, at) = (org.parse().unwrap(), t.portal.context.now());
    let labels: Vec<(String, String)> =
        project.map(|project| ("project".to_owned(), project.to_owned())).into_iter().collect();
    let work = t.portal.context.db.write(move |tx| {
        let labels = labels.clone();
        async move {
            let charged = store::usage::Charge {
                org,
                day: at.micros() / 86_400_000_000,
                offering: "none",
                mode: store::usage::UsageMode::OnDemand,
                member: "Ada",
                price_version: 0,
                surcharge_basis_points: 0,
                labels,
                device_milli_ms: 3_600_000_000,
                cost_micros: micros,
            };
            store::usage::add_charge(tx, &charged).await
        }
        .boxed()
    });
    work.await.unwrap();
}

/// The name, spent micros, committed micros and passed percent of a budget.
fn state(budget: &Value) -> (&str, i64, i64, i64) {
    let number = |field: &str| budget[field].as_i64().unwrap();
    let name = budget["name"].as_str().unwrap();
    (name, number("spent_micros"), number("committed_micros"), number("passed_percent"))
}

/// The states of the budgets in a page, by name.
fn states(page: &Value) -> Vec<(&str, i64, i64, i64)> {
    let mut states: Vec<_> = page["items"].as_array().unwrap().iter().map(state).collect();
    states.sort_unstable();
    states
}

#[tokio::test]
async fn each_budget_counts_its_own_charges_jobs_and_thresholds() {
    for (engine, db, _location) in engines("several_budgets").await {
        let t = TestPortal::on(db);
        let operator = t.operator().await;
        let (ada, org) = t.tenant("lab").await;
        let (bob, other) = t.tenant("bobs").await;
        t.add_price_and_credit(&operator, &org, 1_000_000_000).await;
        let mut jobs = Vec::new();
        for labels in
            [json!({"project": "alpha"}), json!({"project": "beta"}), json!({"project": "beta"}), json!({})]
        {
            let mut body = job();
            body["labels"] = labels;
            let made = t.post(&ada, &format!("/orgs/{org}/jobs"), body).await.expect(201);
            jobs.push(made["id"].as_str().unwrap().parse::<JobId>().unwrap());
        }
        record_charge(&t, &org, Some("alpha"), 80_000).await;
        record_charge(&t, &org, Some("beta"), 25_000).await;
        record_charge(&t, &org, None, 20_000).await;
        record_charge(&t, &other, Some("alpha"), 10_000).await;
        let budgets = format!("/orgs/{org}/budgets");
        for body in [
            json!({"name": "all", "limit_micros": 1_000_000, "at_limit": "notify"}),
            json!({"name": "alpha", "label": "project", "value": "alpha", "limit_micros": 100_000, "at_limit": "stop"}),
            json!({"name": "beta", "label": "project", "value": "beta", "limit_micros": 50_000, "at_limit": "notify"}),
        ] {
            t.post(&ada, &budgets, body).await.expect(201);
        }
        let theirs = json!({"name": "all", "limit_micros": 10_000, "at_limit": "stop"});
        let made = t.post(&bob, &format!("/orgs/{other}/budgets"), theirs).await.expect(201);
        assert_eq!(
            (&made["spent_micros"], &made["committed_micros"]),
            (&json!(10_000), &json!(0)),
            "{engine}"
        );
        let page = t.get(&ada, &budgets).await.expect(200);
        let expected =
            [("all", 125_000, 240_000, 0), ("alpha", 80_000, 60_000, 0), ("beta", 25_000, 120_000, 0)];
        assert_eq!(states(&page), expected, "{engine}");

        let checked = t.portal.budgets.check(None).await.unwrap();
        assert!(checked.failed.is_none(), "{engine}: {checked:?}");
        assert!(checked.stopped.is_empty(), "{engine}: the organization with a spent budget has no job");
        let page = t.get(&ada, &budgets).await.expect(200);
        let expected =
            [("all", 125_000, 240_000, 0), ("alpha", 80_000, 60_000, 75), ("beta", 25_000, 120_000, 50)];
        assert_eq!(states(&page), expected, "{engine}");
        let page = t.get(&bob, &format!("/orgs/{other}/budgets")).await.expect(200);
        assert_eq!(states(&page), [("all", 10_000, 0, 100)], "{engine}");

        record_charge(&t, &org, Some("alpha"), 20_000).await;
        let checked = t.portal.budgets.check(None).await.unwrap();
        assert_eq!(checked.stopped, [(jobs[0], "The budget alpha is spent.".to_owned())], "{engine}");
        loops::check_budgets(&t.portal.budgets, &t.portal.attempts, None).await.unwrap();
        let ended = t.get(&ada, &format!("/orgs/{org}/jobs/{}", jobs[0])).await.expect(200);
        let failure = json!({"code": "budget.spent", "detail": "The budget alpha is spent."});
        assert_eq!((&ended["state"], &ended["failure"]), (&json!("cancelled"), &failure), "{engine}");
    }
}

#[tokio::test]
async fn a_check_of_one_organization_leaves_the_budgets_of_others() {
    for (engine, db, _location) in engines("charged_budgets").await {
        let t = TestPortal::on(db);
        let mut orgs = Vec::new();
        for name in ["lab", "bobs"] {
            let (user, org) = t.tenant(name).await;
            let budget = json!({"name": "all", "limit_micros": 10_000, "at_limit": "notify"});
            t.post(&user, &format!("/orgs/{org}/budgets"), budget).await.expect(201);
            record_charge(&t, &org, None, 10_000).await;
            orgs.push((user, org));
        }
        let passed = async || {
            let mut out = Vec::new();
            for (user, org) in &orgs {
                let page = t.get(user, &format!("/orgs/{org}/budgets")).await.expect(200);
                out.push(page["items"][0]["passed_percent"].as_i64().unwrap());
            }
            out
        };
        let none = HashSet::new();
        assert!(t.portal.budgets.check(Some(&none)).await.unwrap().failed.is_none());
        assert_eq!(passed().await, [0, 0], "{engine}");
        let first = HashSet::from([orgs[0].1.parse().unwrap()]);
        t.portal.budgets.check(Some(&first)).await.unwrap();
        assert_eq!(passed().await, [100, 0], "{engine}");
        t.portal.budgets.check(None).await.unwrap();
        assert_eq!(passed().await, [100, 100], "{engine}");
    }
}
