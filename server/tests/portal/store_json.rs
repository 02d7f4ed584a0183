//! Tests of columns with JSON: another text in them is an error with the name of its row, on every engine.

use crate::common::{StoreLocation, engines};
use crate::fleet::*;
use berth_store::operations::JobQuery;
use berth_store::{self as store, StoreError};
use berth_types::lists::ListOptions;
use sqlx::{AssertSqlSafe, Connection};

/// Texts that are no JSON, or JSON of another type than every column has.
const CORRUPT: [&str; 3] = ["", "{", "7"];

/// Changes one column of one row outside of the store.
async fn set(location: &StoreLocation, table: &str, (key, id): (&str, &str), column: &str, text: &str) {
    let sql = AssertSqlSafe(format!("UPDATE {table} SET {column} = '{text}' WHERE {key} = '{id}'"));
    let changed = match location {
        StoreLocation::Sqlite(dir) => {
            let url = format!("sqlite://{}", dir.path().join("berth.db").display());
            let mut raw = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
        StoreLocation::Postgres(url) => {
            let mut raw = sqlx::PgConnection::connect(url).await.unwrap();
            sqlx::query(sql).execute(&mut raw).await.unwrap().rows_affected()
        }
    };
    assert_eq!(changed, 1, "{table}.{column} of {id}");
}

/// Asserts that a read finds a corrupt row and names its id and the column.
macro_rules! assert_corrupt {
    ($engine:expr, $db:expr, $id:expr, $column:literal, $f:expr $(, $arg:expr)* $(,)?) => {{
        let read = $f(&mut $db.read().await.unwrap().tx() $(, $arg)*).await;
        let Err(StoreError::Corrupt(error)) = read else {
            panic!("{}: a corrupt {} of {} was read", $engine, $column, $id)
        };
        assert!(error.contains($id) && error.contains($column), "{}: {error}", $engine);
    }};
}

#[tokio::test]
async fn a_corrupt_submission_is_an_error_with_the_id_of_its_job() {
    for (engine, db, location) in engines("json_jobs").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        start(&db, 2, 1, 1).await.unwrap();
        let id = job(2).to_string();
        let (id, key) = (id.as_str(), ("id", id.as_str()));
        for text in CORRUPT {
            set(&location, "jobs", key, "spec", text).await;
            assert_corrupt!(engine, db, id, "spec", store::jobs::find_any, job(2));
            assert_corrupt!(engine, db, id, "spec", store::jobs::list_any, &[job(1), job(2)]);
            assert_corrupt!(engine, db, id, "spec", store::jobs::list_queued, 10, Ok);
            assert_corrupt!(engine, db, id, "spec", store::attempts::list_open, node(1));
            assert_corrupt!(engine, db, id, "spec", store::operations::list_open, None);
            assert_eq!(read!(db, store::jobs::find_any, job(1)).unwrap().id, job(1), "{engine}");
        }
        set(&location, "jobs", key, "spec", r#"{"name":"a","offering":"b"}"#).await;
        assert_eq!(read!(db, store::jobs::find_any, job(2)).unwrap().spec.count, 1, "{engine}");
        let (query, page) = (JobQuery::default(), ListOptions::newest(10));
        for text in CORRUPT {
            set(&location, "jobs", key, "labels", text).await;
            assert_corrupt!(engine, db, id, "labels", store::jobs::find_any, job(2));
            assert_corrupt!(engine, db, id, "labels", store::budgets::open_jobs, org());
            assert_corrupt!(engine, db, id, "labels", store::operations::list_jobs, &query, &page);
        }
        set(&location, "jobs", key, "labels", r#"{"team":"vision"}"#).await;
        assert_eq!(read!(db, store::jobs::find_any, job(2)).unwrap().labels["team"], "vision", "{engine}");
        for text in CORRUPT {
            set(&location, "job_inputs", ("job_id", id), "env", text).await;
            assert_corrupt!(engine, db, id, "env", store::jobs::find_inputs, job(2));
        }
    }
}

#[tokio::test]
async fn a_corrupt_result_of_a_rank_is_an_error_with_the_id_of_its_job() {
    for (engine, db, location) in engines("json_ranks").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        start(&db, 2, 1, 1).await.unwrap();
        let id = job(2).to_string();
        let (id, key) = (id.as_str(), ("job_id", id.as_str()));
        for text in CORRUPT {
            set(&location, "attempts", key, "outcome", text).await;
            assert_corrupt!(engine, db, id, "outcome", store::attempts::find, job(2), 1, node(1));
            assert_corrupt!(engine, db, id, "outcome", store::attempts::find_log_end, job(2), 1, 0);
            assert_corrupt!(engine, db, id, "outcome", store::operations::list_open, Some(node(1)));
        }
        set(&location, "attempts", key, "outcome", r#"{"code":3,"timed_out":false,"failure":null}"#).await;
        let outcome = read!(db, store::attempts::find, job(2), 1, node(1)).unwrap().outcome.unwrap();
        assert_eq!((outcome.code, outcome.late, outcome.is_success()), (3, false, false), "{engine}");
        for text in CORRUPT {
            set(&location, "attempts", key, "evidence", text).await;
            assert_corrupt!(engine, db, id, "evidence", store::attempts::find, job(2), 1, node(1));
            assert_corrupt!(engine, db, id, "evidence", store::leases::list_unended, node(1));
        }
    }
}

#[tokio::test]
async fn a_corrupt_node_or_board_is_left_out_of_the_lists() {
    for (engine, db, location) in engines("json_nodes").await {
        with_nodes(&db).await;
        report(&db, 1, host(vec![board("gpu-a", 0), board("gpu-b", 1)]), now()).await.unwrap();
        let id = node(1).to_string();
        let (id, gpu) = (id.as_str(), "gpu-b");
        for text in CORRUPT {
            set(&location, "nodes", ("id", id), "labels", text).await;
            assert!(read!(db, store::nodes::list).iter().all(|row| row.id != node(1)), "{engine}");
            set(&location, "nodes", ("id", id), "labels", "{}").await;
            set(&location, "nodes", ("id", id), "isolation", text).await;
            assert!(read!(db, store::nodes::list).iter().all(|row| row.id != node(1)), "{engine}");
            set(&location, "nodes", ("id", id), "isolation", "{}").await;
            set(&location, "gpus", ("uuid", gpu), "foreign_instances", text).await;
            let boards = read!(db, store::nodes::list_gpus);
            assert_eq!(boards.iter().map(|row| row.uuid.as_str()).collect::<Vec<_>>(), ["gpu-a"], "{engine}");
            set(&location, "gpus", ("uuid", gpu), "foreign_instances", "[]").await;
            set(&location, "gpus", ("uuid", gpu), "facts", text).await;
            assert_eq!(read!(db, store::nodes::list_gpus).len(), 1, "{engine}");
            assert_corrupt!(engine, db, gpu, "facts", store::health::list, node(1));
            set(&location, "gpus", ("uuid", gpu), "facts", "{}").await;
        }
        assert_eq!(read!(db, store::nodes::list_gpus).len(), 2, "{engine}");
    }
}

#[tokio::test]
async fn an_error_of_a_corrupt_row_has_no_stored_text() {
    for (engine, db, location) in engines("json_secret").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        let id = job(2).to_string();
        for text in ["\"hunter2\"", "{\"TOKEN\":[\"hunter2\"]}", "{\"hunter2\":7}"] {
            set(&location, "job_inputs", ("job_id", id.as_str()), "env", text).await;
            let read = store::jobs::find_inputs(&mut db.read().await.unwrap().tx(), job(2)).await;
            let Err(StoreError::Corrupt(error)) = read else { panic!("{engine}: {text} was read") };
            assert!(error.contains("line 1") && !error.contains("hunter2"), "{engine}: {error}");
        }
    }
}
