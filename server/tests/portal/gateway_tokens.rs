//! Tests of the replacement of a gateway's token, of the credit of one gateway in an hour, and of its removal.

use serde_json::{Value, json};

use crate::gateways::{Site, add_key, number, send, sites};
use crate::operations::items;

/// Adds a gateway by its route. Returns its address and its token.
async fn add(site: &Site, name: &str) -> (String, String) {
    let made = site.t.post(&site.operator, "/operator/gateways", json!({"name": name})).await.expect(201);
    let path = format!("/operator/gateways/{}", made["id"].as_str().unwrap());
    (path, made["token"].as_str().unwrap().to_owned())
}

async fn status(site: &Site, token: &str) -> u16 {
    send(&site.t.router, ("POST", "credit"), token, json!([])).await.0
}

/// Asks for a block of the first gateway. Returns its size in nano-units.
async fn ask(site: &Site, token: &str, block: u64, wish: u64) -> u64 {
    let ask = json!({"content": {"Ask": {"block": {"gateway": 1, "life": 1, "number": block},
        "payer": {"org": site.org, "key": 1}, "least": 1_000_000, "wish": wish, "waits": false}}, "oldest": 0});
    let (status, _, body) = send(&site.t.router, ("POST", "credit"), token, json!([ask])).await;
    assert_eq!(status, 200, "{body}");
    body[0]["Grant"]["size"].as_u64().unwrap()
}

/// Reports a block with all of its size spent.
async fn spend(site: &Site, token: &str, block: u64, size: u64) {
    let block = json!({"gateway": 1, "life": 1, "number": block});
    let report = json!({"block": block, "size": size, "spent": size, "ending": true});
    let body = json!([{"content": {"Report": report}, "oldest": 0}]);
    assert_eq!(send(&site.t.router, ("POST", "credit"), token, body).await.0, 200);
}

#[tokio::test]
async fn a_new_token_ends_the_former_one_at_once() {
    for site in sites("gateway_rotation").await {
        let (engine, t) = (site.engine, &site.t);
        let (path, former) = add(&site, "edge-1").await;
        assert_eq!(status(&site, &former).await, 200, "{engine}");
        let token = format!("{path}/token");
        t.post(&site.owner, &token, Value::Null).await.problem(404, "object.not_found");
        let replaced = t.post(&site.operator, &token, Value::Null).await.expect(200);
        let new = replaced["token"].as_str().unwrap().to_owned();
        assert!(new.starts_with("bgw_") && new != former, "{engine}");
        assert_eq!((status(&site, &former).await, status(&site, &new).await), (401, 200), "{engine}");
        let events = items(t, &site.operator, "/operator/audit-events?action=gateway.token_replaced").await;
        assert_eq!((events.len(), &events[0]["detail"]), (1, &json!("edge-1")), "{engine}");
        assert!(!events[0].to_string().contains(&new), "{engine}");
        t.call(&site.operator, "DELETE", &path, Value::Null).await.expect(204);
        assert_eq!(status(&site, &new).await, 401, "{engine}");
        t.post(&site.operator, &token, Value::Null).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn a_gateway_spends_a_bounded_amount_of_an_organization_in_an_hour() {
    for site in sites("gateway_hour").await {
        let engine = site.engine;
        // A thousand units; a gateway gets at most a hundred in an hour.
        site.t.add_price_and_credit(&site.operator, &site.org, 1_000_000_000).await;
        add_key(&site.t, &site.org, 1, None).await;
        let (_, token) = add(&site, "edge-1").await;
        let limit = 100_000_000_000_u64;
        let first = ask(&site, &token, 1, 60_000_000_000).await;
        assert_eq!(first, 60_000_000_000, "{engine}");
        spend(&site, &token, 1, first).await;
        let second = ask(&site, &token, 2, limit).await;
        assert_eq!(second, limit - first, "{engine}: what was spent counts");
        assert_eq!(ask(&site, &token, 3, 1_000_000).await, 0, "{engine}");
        let listed = items(&site.t, &site.operator, "/operator/gateways").await;
        assert_eq!(listed[0]["open_micros"], second / 1_000, "{engine}");
        spend(&site, &token, 2, second).await;
        assert_eq!(ask(&site, &token, 4, 1_000_000).await, 0, "{engine}");
        site.t.clock.advance_s(3_600);
        assert_eq!(ask(&site, &token, 5, 1_000_000).await, 1_000_000, "{engine}: a new hour");
    }
}

#[tokio::test]
async fn a_removed_gateway_gives_its_credit_back_at_once() {
    for site in sites("gateway_removal").await {
        let (engine, t) = (site.engine, &site.t);
        t.add_price_and_credit(&site.operator, &site.org, 100_000).await;
        add_key(t, &site.org, 1, None).await;
        let (path, token) = add(&site, "edge-1").await;
        assert_eq!(ask(&site, &token, 1, 4_000_000).await, 4_000_000, "{engine}");
        let block = json!({"gateway": 1, "life": 1, "number": 1});
        let report = json!({"block": block, "size": 4_000_000, "spent": 1_000_000, "ending": false});
        let body = json!([{"content": {"Report": report}, "oldest": 0}]);
        assert_eq!(send(&t.router, ("POST", "credit"), &token, body).await.0, 200, "{engine}");
        let open = "SELECT CAST(COUNT(*) AS BIGINT) FROM credit_blocks WHERE NOT closed";
        assert_eq!(number(t, open).await, 1, "{engine}");
        t.call(&site.operator, "DELETE", &path, Value::Null).await.expect(204);
        assert_eq!(number(t, open).await, 0, "{engine}");
        let balance = t.get(&site.owner, &format!("/orgs/{}/balance", site.org)).await.expect(200);
        assert_eq!(
            (&balance["posted_micros"], &balance["held_micros"]),
            (&json!(99_000), &json!(0)),
            "{engine}: the reported part is charged"
        );
        let events = items(t, &site.operator, "/operator/audit-events?action=gateway.removed").await;
        let detail = "edge-1: 1 of its blocks of credit ended, 3000 micro-units are free again, later charges are forgiven";
        assert_eq!(events[0]["detail"], detail, "{engine}");
        let result = t.portal.reconciliations.reconcile().await.unwrap();
        assert_eq!(result.mismatches, Vec::<String>::new(), "{engine}");
    }
}
