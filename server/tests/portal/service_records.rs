//! Tests of the retention of the records of services, and of rows that cannot be read.

use berth_types::ids::InferenceKeyId;
use serde_json::{Value, json};

use crate::common::engines;
use crate::gateways::{add_gateway, add_key, add_service, number, run, send, sites};
use crate::idle_portal::IdlePortal;
use crate::operations::{items, schedule_all};
use crate::services::service;

const DAY_S: i64 = 86_400;

#[tokio::test]
async fn records_of_services_go_after_their_retention_and_objects_after_their_use() {
    for site in sites("service_records").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let (gone, revision) = add_service(t, org, "gone").await;
        add_service(t, org, "kept").await;
        let keys: [InferenceKeyId; 2] = [add_key(t, org, 1, None).await, add_key(t, org, 2, None).await];
        let now = t.portal.context.now().micros();
        run(t, format!("UPDATE inference_keys SET revoked_at = {now}")).await;
        run(t, format!("UPDATE services SET deleted_at = {now} WHERE id = '{gone}'")).await;
        run(t, format!("DELETE FROM service_hosts WHERE service_id = '{gone}'")).await;
        let sql = format!(
            "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at, ended_at) \
             VALUES ('job_00000000000000000000000001', '{gone}', '{revision}', '{org}', 0, {now})"
        );
        run(t, sql).await;
        let use_at = now + 10 * DAY_S * 1_000_000;
        for hour in [now, use_at] {
            let sql = format!(
                "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
                 prompt_tokens, completion_tokens, token_nanos, first_byte) \
                 VALUES ('{gone}', '{revision}', '{}', {hour}, '{org}', 1, 0, 0, 0, 0, '[]')",
                keys[0]
            );
            run(t, sql).await;
        }
        let counts = async || {
            let mut all = Vec::new();
            for table in ["services", "inference_keys", "service_replicas", "service_use", "host_proofs"] {
                all.push(number(t, &format!("SELECT CAST(COUNT(*) AS BIGINT) FROM {table}")).await);
            }
            all
        };
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(counts().await, [2, 2, 1, 2, 1], "{engine}: a proof without a service goes at once");
        t.clock.advance_s(400 * DAY_S + 60);
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(counts().await, [2, 2, 0, 1, 1], "{engine}: the rest of the use keeps service and key");
        t.clock.advance_s(11 * DAY_S);
        t.portal.services.forget_old().await.unwrap();
        // The key with the greatest number stays, so that no number is used again.
        assert_eq!(counts().await, [1, 1, 0, 0, 1], "{engine}");
        assert_eq!(number(t, "SELECT MAX(number) FROM inference_keys").await, 2, "{engine}");
    }
}

#[tokio::test]
async fn the_use_of_a_deleted_service_is_that_of_its_organization() {
    for site in sites("deleted_use").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let (gone, revision) = add_service(t, org, "gone").await;
        let key = add_key(t, org, 1, None).await;
        let now = t.portal.context.now().micros();
        let sql = format!(
            "INSERT INTO service_use (service_id, revision_id, key_id, hour_at, org_id, requests, errors, \
             prompt_tokens, completion_tokens, token_nanos, first_byte) \
             VALUES ('{gone}', '{revision}', '{key}', {now}, '{org}', 3, 0, 0, 0, 0, '[]')"
        );
        run(t, sql).await;
        run(t, format!("UPDATE services SET deleted_at = {now} WHERE id = '{gone}'")).await;
        let path = format!("/orgs/{org}/services/{gone}");
        t.get(&site.owner, &path).await.problem(404, "object.not_found");
        let used = items(t, &site.owner, &format!("{path}/use")).await;
        assert_eq!((used.len(), &used[0]["requests"]), (1, &json!(3)), "{engine}: {used:?}");
        let (stranger, other) = t.tenant("stranger").await;
        let foreign = format!("/orgs/{other}/services/{gone}/use");
        t.get(&stranger, &foreign).await.problem(404, "object.not_found");
    }
}

#[tokio::test]
async fn closed_blocks_of_a_replaced_token_go_after_their_retention() {
    for site in sites("block_records").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let day = 86_400_000_000_i64;
        let now = t.portal.context.now().micros();
        add_gateway(t, 3).await;
        // No gateway has the numbers 1 and 2 any more, and the gateway 3 is present.
        for (gateway, closed, until) in [
            (1, true, now - 399 * day),
            (1, true, now - 401 * day),
            (2, false, now - 401 * day),
            (3, true, 0),
        ] {
            let sql = format!(
                "INSERT INTO credit_blocks (gateway_number, life, number, org_id, key_number, size_nanos, spent_nanos, \
                 lent_at, until_at, ending, void, closed, hold_id, held_micros, posted_micros) VALUES ({gateway}, 1, \
                 {until}, '{org}', 1, 0, 0, 0, {until}, FALSE, FALSE, {closed}, 'tr_{gateway}_{until}', 0, 0)"
            );
            run(t, sql).await;
        }
        let blocks = "SELECT CAST(COUNT(*) AS BIGINT) FROM credit_blocks";
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(number(t, blocks).await, 3, "{engine}: the old one of the replaced token is gone");
        t.clock.advance_s(2 * DAY_S);
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(number(t, blocks).await, 2, "{engine}: an open one and one of a present gateway stay");
    }
}

#[tokio::test]
async fn a_row_that_cannot_be_read_stops_its_service_only() {
    for (engine, db, _location) in engines("service_damage").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let services = format!("/orgs/{}/services", setup.org);
        let mut paths = Vec::new();
        for name in ["broken", "whole"] {
            let made = t.post(&setup.ada, &services, service(name)).await.expect(201);
            paths.push(format!("{services}/{}", made["id"].as_str().unwrap()));
        }
        // The loop has read no revision yet.
        let damage = "UPDATE service_revisions SET spec = '{' WHERE service_id = \
                      (SELECT id FROM services WHERE name = 'broken')";
        run(t, damage.to_owned()).await;
        t.portal.service_loop.run().await.unwrap();
        schedule_all(&setup).await;
        let [broken, whole] = [t.get(&setup.ada, &paths[0]).await, t.get(&setup.ada, &paths[1]).await];
        let (broken, whole) = (broken.expect(200), whole.expect(200));
        assert_eq!(broken["state"], "degraded", "{engine}");
        assert!(broken["detail"].as_str().unwrap().contains("cannot be read"), "{engine}: {broken}");
        assert_eq!(whole["replicas"].as_array().unwrap().len(), 1, "{engine}: {whole}");
        // A damaged column of the service itself.
        run(t, "UPDATE services SET scaling = '{' WHERE name = 'broken'".to_owned()).await;
        t.call(&setup.ada, "PATCH", &paths[1], json!({"scaling": {"min_replicas": 2, "max_replicas": 2}}))
            .await
            .expect(200);
        // All services run again.
        t.clock.advance_s(6);
        t.portal.service_loop.run().await.unwrap();
        let whole = t.get(&setup.ada, &paths[1]).await.expect(200);
        assert_eq!(whole["replicas"].as_array().unwrap().len(), 2, "{engine}: {whole}");
    }
}

#[tokio::test]
async fn a_stopped_service_ends_its_replicas_without_a_readable_revision() {
    for (engine, db, _location) in engines("service_stopped_damage").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let services = format!("/orgs/{}/services", setup.org);
        let made = t.post(&setup.ada, &services, service("digits")).await.expect(201);
        let id = made["id"].as_str().unwrap();
        let sql = format!(
            "INSERT INTO service_replicas (job_id, service_id, revision_id, org_id, created_at) \
             SELECT 'job_00000000000000000000000001', service_id, id, org_id, 0 FROM service_revisions \
             WHERE service_id = '{id}'"
        );
        run(t, sql).await;
        // The loop has read no revision yet.
        run(t, format!("UPDATE service_revisions SET spec = '{{' WHERE service_id = '{id}'")).await;
        let open = "SELECT CAST(COUNT(*) AS BIGINT) FROM service_replicas WHERE ended_at IS NULL";
        t.portal.service_loop.run().await.unwrap();
        assert_eq!(number(t, open).await, 1, "{engine}: without its terms it stays");
        run(t, format!("UPDATE services SET stopped = TRUE WHERE id = '{id}'")).await;
        // All services run again: the replica drains, and ends.
        for _ in 0..3 {
            t.clock.advance_s(6);
            t.portal.service_loop.run().await.unwrap();
        }
        assert_eq!(number(t, open).await, 0, "{engine}");
    }
}

#[tokio::test]
async fn a_service_that_cannot_be_read_is_left_out_of_lists() {
    for (engine, db, _location) in engines("service_row_damage").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let services = format!("/orgs/{}/services", setup.org);
        let mut ids = Vec::new();
        for name in ["one", "two", "three"] {
            let made = t.post(&setup.ada, &services, service(name)).await.expect(201);
            ids.push(made["id"].as_str().unwrap().to_owned());
        }
        ids.sort();
        run(t, format!("UPDATE services SET scaling = '{{' WHERE id = '{}'", ids[1])).await;
        let found = |page: &Value| -> Vec<String> {
            let rows = page["items"].as_array().unwrap().iter();
            rows.map(|row| row["id"].as_str().unwrap().to_owned()).collect()
        };
        for (caller, list) in [(&setup.ada, services.as_str()), (&setup.operator, "/operator/services")] {
            let whole = t.get(caller, &format!("{list}?sort=asc")).await.expect(200);
            assert_eq!(found(&whole), [ids[0].as_str(), ids[2].as_str()], "{engine} {list}");
            // A page without the row does not end the list.
            let page = t.get(caller, &format!("{list}?sort=asc&limit=2")).await.expect(200);
            assert_eq!(found(&page), [ids[0].as_str()], "{engine} {list}");
            let cursor = page["next_cursor"].as_str().unwrap();
            let last = t.get(caller, &format!("{list}?sort=asc&limit=2&cursor={cursor}")).await.expect(200);
            assert_eq!(
                (found(&last), &last["next_cursor"]),
                (vec![ids[2].clone()], &Value::Null),
                "{engine} {list}"
            );
        }
    }
}

#[tokio::test]
async fn a_deleted_service_stays_with_its_judged_windows_and_goes_with_its_evidence() {
    for site in sites("service_windows").await {
        let (engine, t, org) = (site.engine, &site.t, site.org.as_str());
        let (gone, _) = add_service(t, org, "gone").await;
        let now = t.portal.context.now().micros();
        run(t, format!("UPDATE services SET deleted_at = {now} WHERE id = '{gone}'")).await;
        let sql = format!(
            "INSERT INTO service_promise_windows (service_id, begin_at, end_at, name, evidence, misses, credit_micros) \
             VALUES ('{gone}', {now}, {now}, 'gold', '{{}}', '[]', 0)"
        );
        run(t, sql).await;
        run(t, format!("INSERT INTO service_wakes (service_id, at) VALUES ('{gone}', {now})")).await;
        run(t, format!("INSERT INTO service_faults VALUES ('{gone}', {now}, 1, 1)")).await;
        run(
            t,
            format!("INSERT INTO service_jobs VALUES ('job_00000000000000000000000001', '{gone}', {now})"),
        )
        .await;
        let services = "SELECT CAST(COUNT(*) AS BIGINT) FROM services";
        t.clock.advance_s(401 * DAY_S);
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(number(t, services).await, 1, "{engine}: its windows stay");
        run(t, "DELETE FROM service_promise_windows".to_owned()).await;
        t.portal.services.forget_old().await.unwrap();
        assert_eq!(number(t, services).await, 0, "{engine}");
    }
}

#[tokio::test]
async fn a_snapshot_leaves_out_a_service_that_cannot_be_read() {
    for site in sites("snapshot_damage").await {
        let (engine, t) = (site.engine, &site.t);
        let token = add_gateway(t, 1).await;
        add_service(t, &site.org, "broken").await;
        add_service(t, &site.org, "whole").await;
        run(t, "UPDATE services SET models = '{' WHERE name = 'broken'".to_owned()).await;
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let path = "snapshot?after=0&wait_s=0";
        let (status, _, body) = send(&t.router, ("GET", path), &token, Value::Null).await;
        let names: Vec<&Value> =
            body["services"].as_array().unwrap().iter().map(|service| &service["name"]).collect();
        assert_eq!((status, names), (200, vec![&json!("whole")]), "{engine}");
    }
}

#[tokio::test]
async fn an_idle_service_falls_asleep_without_any_gateway_and_not_by_their_silence() {
    for (engine, db, _location) in engines("service_silence").await {
        let setup = IdlePortal::on(db).await;
        let t = &setup.t;
        let mut body = service("digits");
        body["scaling"] = json!({"min_replicas": 0, "down_delay_s": 10, "idle_s": 60});
        let services = format!("/orgs/{}/services", setup.org);
        let made = t.post(&setup.ada, &services, body).await.expect(201);
        let path = format!("{services}/{}", made["id"].as_str().unwrap());
        add_gateway(t, 1).await;
        let wanted = async |seconds: i64| {
            for _ in 0..seconds / 10 {
                t.clock.advance_s(10);
                t.portal.service_loop.run().await.unwrap();
            }
            t.get(&setup.ada, &path).await.expect(200)["decision"]["replicas"].clone()
        };
        assert_eq!(wanted(900).await, 1, "{engine}: a silent gateway can have requests");
        run(t, "UPDATE gateways SET removed_at = 1".to_owned()).await;
        assert_eq!(wanted(120).await, 0, "{engine}");
    }
}
