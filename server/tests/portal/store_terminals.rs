//! Tests of stored terminals, on every engine.

use crate::common::engines;
use crate::fleet::{job, later, node, now, org, with_jobs, with_nodes, write};
use berth_store as store;
use berth_store::terminals::{self, StoredTerminal};
use berth_types::accounts::User;
use berth_types::ids::{TerminalId, UserId};
use berth_types::lists::ListOptions;
use futures::FutureExt;
use uuid::Uuid;

#[tokio::test]
async fn terminals_are_open_until_they_are_closed_once() {
    let user = UserId::from_uuid(Uuid::from_u128(1));
    let id = |n: u128| TerminalId::from_uuid(Uuid::from_u128(n));
    let row = move |n: u128, j: u128| StoredTerminal {
        id: id(n),
        org_id: org(),
        job_id: job(j),
        attempt: 1,
        node_rank: 0,
        node_id: node(1),
        user_id: user,
        actor: "Ada".to_owned(),
        reason: None,
        opened_at: now(),
        attached_at: None,
        left_at: Some(now()),
        closed_at: None,
        exit_code: None,
        cause: None,
    };
    for (engine, db, _location) in engines("terminals").await {
        with_nodes(&db).await;
        with_jobs(&db).await;
        write(&db, move |tx| {
            async move {
                let ada = User { id: user, email: "a@b".to_owned(), name: "Ada".to_owned(), operator: false };
                store::accounts::insert_user(tx, &ada, "hash", now()).await?;
                for (n, j) in [(1, 1), (2, 1), (3, 2)] {
                    terminals::insert(tx, &row(n, j)).await?;
                }
                Ok(())
            }
            .boxed()
        })
        .await;
        assert_eq!(read!(db, terminals::count_open, org(), job(1)), (2, 3), "{engine}");
        let page = read!(db, terminals::list, org(), job(1), &ListOptions::newest(10));
        assert_eq!(page.iter().map(|r| r.id).collect::<Vec<_>>(), [2, 1].map(id));
        let next = ListOptions { cursor: Some(id(2)), ..ListOptions::newest(10) };
        assert_eq!(read!(db, terminals::list, org(), job(1), &next), [row(1, 1)], "{engine}");
        assert_eq!(read!(db, terminals::find, org(), job(2), id(1)), None, "{engine}: of another job");
        let first = id(1);
        let steps = write(&db, move |tx| {
            async move {
                let left = Some(now());
                let mut steps = vec![terminals::attach(tx, first, later(5)).await?];
                // A client is connected again, so a close of the abandoned terminal has no effect.
                steps.push(terminals::close(tx, first, left, None, "left", later(60)).await?);
                steps.push(terminals::leave(tx, first, later(70)).await?);
                steps.push(terminals::attach(tx, first, later(80)).await?);
                steps.push(terminals::close(tx, first, None, Some(7), "ended", later(90)).await?);
                steps.push(terminals::close(tx, first, None, None, "gone", later(91)).await?);
                steps.push(terminals::attach(tx, first, later(92)).await?);
                Ok(steps)
            }
            .boxed()
        })
        .await;
        assert_eq!(steps, [true, false, true, true, true, false, false], "{engine}");
        let closed = read!(db, terminals::find, org(), job(1), id(1)).unwrap();
        assert_eq!(closed.attached_at, Some(later(5)), "{engine}: the first time");
        assert_eq!((closed.exit_code, closed.cause.as_deref()), (Some(7), Some("ended")), "{engine}");
        assert_eq!(read!(db, terminals::list_open).len(), 2, "{engine}");
        assert_eq!(read!(db, terminals::count_open, org(), job(1)), (1, 2), "{engine}");
    }
}
