//! Boards beyond the tables, with real workers on simulated boards: a model without MIG, and a driver that differs.

use serde_json::{Value, json};

use crate::worker_portal::{WorkerPortal, eventually, without_worker};

/// The health of a board with this model, if it meets the condition.
async fn until_board(setup: &WorkerPortal, model: &str, ready: impl Fn(&Value) -> bool) -> Value {
    eventually("the board", async || {
        let nodes = setup.t.get(&setup.operator, "/operator/nodes").await.expect(200);
        let node = nodes["items"][0]["id"].as_str()?.to_owned();
        let health = setup.t.get(&setup.operator, &format!("/operator/nodes/{node}/gpus")).await.expect(200);
        let boards = health["items"].as_array().cloned().unwrap_or_default();
        boards.into_iter().find(|board| board["model"] == model && ready(board))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_board_without_a_table_is_sold_whole_and_a_driver_is_compared_with_the_table() {
    let mut setup = without_worker().await;
    let token = setup.join_token(json!({})).await;
    setup.start_worker_with("1xL40S,1xH100-ODD", Some(&token)).unwrap();
    setup.t.add_price_and_credit(&setup.operator, &setup.org, 1_000_000_000).await;
    let board = until_board(&setup, "L40S", |board| board["facts"]["power_limit_watts"].is_number()).await;
    assert_eq!((&board["memory_mib"], &board["facts"]["mig"]), (&json!(46_068), &Value::Null), "{board}");
    let price = json!({"offering": "l40s", "per_hour_micros": 3_600_000});
    setup.t.post(&setup.operator, "/operator/prices", price).await.expect(201);
    let job = setup.submit(json!({"script": "echo $CUDA_VISIBLE_DEVICES", "offering": "l40s"})).await;
    let done = setup.until_ended(&job).await;
    assert_eq!((&done["state"], &done["devices"][0]["gpu_uuid"]), (&json!("succeeded"), &board["uuid"]));

    // The smallest slice starts at even slices only here. The report of the board in MIG mode says so.
    let job = setup.submit_script("true").await;
    assert_eq!(setup.until_ended(&job).await["state"], "succeeded");
    let odd = until_board(&setup, "H100-80GB", |board| board["facts"]["mig_differences"].is_array()).await;
    let text = odd["facts"]["mig_differences"].to_string();
    assert!(text.contains("1g.10gb starts at 0, 2, 4, 6 according to the driver"), "{text}");
    assert!(text.contains("does not offer 1g.10gb+me"), "{text}");
    setup.until_all_free().await;
}
