//! Tests of stored tokens, sessions, settings and idempotency answers, on every engine.

use crate::common::{StoreLocation, engines};
use crate::stores::{later, now, session, write};
use berth_store::accounts::{Replay, Session};
use berth_store::{self as store, Db, StoreError};
use berth_types::accounts::{Org, Role, Token, User};
use berth_types::ids::{JoinTokenId, OrgId, TokenId, UserId};
use berth_types::lists::ListOptions;
use berth_types::scopes::{ApiScope, ApiScopes};
use berth_types::time::Timestamp;
use futures::FutureExt;
use sqlx::Connection;
use uuid::Uuid;

fn org(n: u128) -> Org {
    let (name, slug) = (format!("org {n}"), format!("org-{n}"));
    Org { id: OrgId::from_uuid(Uuid::from_u128(n)), name, slug, created_at: now() }
}

fn user(n: u128) -> User {
    let id = UserId::from_uuid(Uuid::from_u128(n));
    User { id, email: format!("{n}@b"), name: "A".to_owned(), operator: n == 1 }
}

fn token(n: u128, expires_at: Option<Timestamp>) -> Token {
    Token {
        id: TokenId::from_uuid(Uuid::from_u128(n)),
        name: format!("token {n}"),
        role: Role::Member,
        scopes: vec![ApiScope::JobsRead, ApiScope::FleetWrite],
        networks: vec!["192.0.2.0/24".to_owned(), "2001:db8::/32".to_owned()],
        service_account: None,
        hint: "wxyz".to_owned(),
        created_at: now(),
        expires_at,
        last_used_at: None,
    }
}

async fn with_people(db: &Db) {
    write(db, |tx| {
        async move {
            for n in [1, 2] {
                store::accounts::insert_org(tx, &org(n)).await?;
                store::accounts::insert_user(tx, &user(n), "hash", now()).await?;
            }
            Ok(())
        }
        .boxed()
    })
    .await;
}

/// Inserts a token of user `by` for an organization, or for the operators.
async fn insert_token(
    db: &Db,
    to: Option<u128>,
    by: u128,
    new: Token,
    hash: &'static str,
) -> Result<(), StoreError> {
    db.write(move |tx| {
        let (to, by, new) = (to.map(|n| org(n).id), user(by).id, new.clone());
        async move { store::accounts::insert_token(tx, to, by, &new, hash, None).await }.boxed()
    })
    .await
}

async fn revoke(db: &Db, from: Option<u128>, id: TokenId) -> bool {
    let deleted = write(db, move |tx| {
        async move { store::accounts::delete_token(tx, from.map(|n| org(n).id), id).await }.boxed()
    });
    !deleted.await.is_empty()
}

async fn touch(db: &Db, id: TokenId, at: Timestamp) {
    write(db, move |tx| async move { store::accounts::touch_token(tx, id, at).await }.boxed()).await;
}

async fn insert_member(db: &Db, org_number: u128, member: u128, role: Role) -> Result<(), StoreError> {
    db.write(move |tx| {
        async move { store::accounts::insert_member(tx, org(org_number).id, user(member).id, role).await }
            .boxed()
    })
    .await
}

/// Stores answer `n` under a key; returns true if the key was free.
async fn answer(db: &Db, scope: &'static str, key: &'static str, n: u16) -> bool {
    write(db, move |tx| {
        async move {
            let (request_hash, answer) = (format!("request {n}"), format!("answer {n}"));
            let replay = Replay { request_hash, status: 200 + n, answer };
            store::accounts::insert_idempotency(tx, scope, key, &replay, now()).await
        }
        .boxed()
    })
    .await
}

async fn answered(db: &Db, scope: &str, key: &str) -> Option<(String, u16, String)> {
    let replay = read!(db, store::accounts::find_idempotency, scope, key);
    replay.map(|r| (r.request_hash, r.status, r.answer))
}

#[tokio::test]
async fn a_token_identifies_its_creator_until_expiry_or_revocation() {
    let all = ListOptions::newest(10);
    for (engine, db, _location) in engines("accounts_tokens").await {
        with_people(&db).await;
        insert_token(&db, Some(1), 2, token(1, Some(later(60))), "h1").await.unwrap();
        insert_token(&db, Some(1), 2, token(2, None), "h2").await.unwrap();
        insert_token(&db, Some(2), 2, token(3, None), "h3").await.unwrap();
        insert_token(&db, None, 1, token(4, None), "h4").await.unwrap();
        for (n, hash) in [(1, "h5"), (5, "h1")] {
            let twice = insert_token(&db, Some(1), 2, token(n, None), hash).await;
            assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        }
        for (to, by) in [(1, 9), (9, 1)] {
            let unknown = insert_token(&db, Some(to), by, token(5, None), "h5").await;
            assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        }

        let grant = read!(db, store::accounts::find_token, "h1", later(59)).unwrap();
        assert_eq!((grant.id, grant.org), (token(1, None).id, Some(org(1).id)), "{engine}");
        assert_eq!((grant.role, grant.last_used_at), (Role::Member, None), "{engine}");
        assert_eq!(grant.user, user(2), "{engine}");
        assert_eq!(grant.scopes.to_text(), "jobs:read fleet:write", "{engine}");
        assert_eq!(grant.networks, token(1, None).networks, "{engine}");
        let networks = read!(db, store::accounts::find_networks, grant.id);
        assert_eq!(networks, Some(grant.networks), "{engine}");
        let grant = read!(db, store::accounts::find_token, "h4", now()).unwrap();
        assert_eq!((grant.org, grant.user), (None, user(1)), "{engine}");
        for (hash, at, found) in
            [("h1", 60, false), ("h2", 1_000_000_000, true), ("h9", 0, false), ("", 0, false)]
        {
            let grant = read!(db, store::accounts::find_token, hash, later(at));
            assert_eq!(grant.is_some(), found, "{engine}: {hash:?} after {at} s");
        }

        touch(&db, token(1, None).id, later(7)).await;
        touch(&db, token(9, None).id, later(7)).await;
        let used = Token { last_used_at: Some(later(7)), ..token(1, Some(later(60))) };
        let listed = read!(db, store::accounts::list_tokens, Some(org(1).id), &all);
        assert_eq!(listed, [token(2, None), used], "{engine}: the newest first, and no one else's");
        let others = read!(db, store::accounts::list_tokens, Some(org(2).id), &all);
        assert_eq!(others, [token(3, None)], "{engine}");
        let grant = read!(db, store::accounts::find_token, "h1", now()).unwrap();
        assert_eq!(grant.last_used_at, Some(later(7)), "{engine}");

        // The token's organization deletes it once; another organization has no such token.
        for (from, n, gone) in [(2, 1, false), (1, 4, false), (1, 1, true), (1, 1, false)] {
            assert_eq!(
                revoke(&db, Some(from), token(n, None).id).await,
                gone,
                "{engine}: token {n} of org {from}"
            );
        }
        assert!(read!(db, store::accounts::find_token, "h1", now()).is_none(), "{engine}");
        assert!(read!(db, store::accounts::find_token, "h4", now()).is_some(), "{engine}");
        assert_eq!(
            read!(db, store::accounts::list_tokens, Some(org(1).id), &all),
            [token(2, None)],
            "{engine}"
        );
        // The token of an operator belongs to no organization.
        assert_eq!(read!(db, store::accounts::list_tokens, None, &all), [token(4, None)], "{engine}");
        assert!(!revoke(&db, None, token(2, None).id).await, "{engine}");
        assert!(revoke(&db, None, token(4, None).id).await, "{engine}");
    }
}

#[tokio::test]
async fn a_token_from_before_scopes_keeps_everything() {
    let (_, db, location) = engines("accounts_old_tokens").await.swap_remove(0);
    let StoreLocation::Sqlite(dir) = location else { panic!("SQLite is the first engine") };
    with_people(&db).await;
    let file = dir.path().join("berth.db");
    let mut conn = sqlx::SqliteConnection::connect(&format!("sqlite:{}", file.display())).await.unwrap();
    let sql = "INSERT INTO tokens (id, org_id, user_id, name, role, hash, hint, created_at) \
               VALUES ($1, $2, $3, 'old', 'member', 'h1', 'wxyz', 0)";
    let ids = (token(1, None).id.to_string(), org(1).id.to_string(), user(2).id.to_string());
    sqlx::query(sql).bind(ids.0).bind(ids.1).bind(ids.2).execute(&mut conn).await.unwrap();
    let grant = read!(db, store::accounts::find_token, "h1", now()).unwrap();
    assert_eq!((grant.scopes, grant.networks), (ApiScopes::EVERYTHING, Vec::new()));
}

/// The user of a session, and its last use. All sessions of the test end at the same time.
fn facts(session: Option<Session>) -> Option<(User, Timestamp)> {
    session.map(|session| {
        assert_eq!(session.expires_at, later(100));
        (session.user, session.last_seen_at)
    })
}

#[tokio::test]
async fn a_session_stays_valid_while_it_is_used() {
    for (engine, db, _location) in engines("accounts_sessions").await {
        with_people(&db).await;
        write(&db, |tx| {
            async move {
                store::accounts::insert_session(tx, &session("s1", 1, user(1).id), now(), later(100)).await?;
                store::accounts::insert_session(tx, &session("s2", 2, user(2).id), now(), later(100)).await?;
                store::accounts::touch_session(tx, "s1", later(50)).await?;
                store::accounts::touch_session(tx, "s9", later(50)).await
            }
            .boxed()
        })
        .await;
        for (hash, at, idle_since, found) in [
            ("s1", 60, 10, Some((user(1), later(50)))),
            ("s1", 60, 49, Some((user(1), later(50)))),
            ("s1", 60, 50, None),
            ("s1", 100, 10, None),
            ("s2", 60, 10, None),
            ("s2", 60, -1, Some((user(2), now()))),
            ("s9", 60, -1, None),
        ] {
            let session = read!(db, store::accounts::find_session, hash, later(at), later(idle_since));
            assert_eq!(facts(session), found, "{engine}: {hash} after {at} s");
        }
        write(&db, |tx| {
            async move {
                store::accounts::delete_session(tx, "s1").await?;
                store::accounts::delete_session(tx, "s1").await
            }
            .boxed()
        })
        .await;
        let gone = read!(db, store::accounts::find_session, "s1", now(), later(-1));
        assert_eq!(facts(gone), None, "{engine}");
        let other = read!(db, store::accounts::find_session, "s2", now(), later(-1));
        assert_eq!(facts(other), Some((user(2), now())), "{engine}");
        let unknown = db
            .write(|tx| {
                async move {
                    let new = session("s3", 3, user(9).id);
                    store::accounts::insert_session(tx, &new, now(), later(100)).await
                }
                .boxed()
            })
            .await;
        assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
    }
}

#[tokio::test]
async fn an_idempotency_key_stores_one_answer() {
    for (engine, db, _location) in engines("accounts_answers").await {
        let kept = |n: u16| Some((format!("request {n}"), 200 + n, format!("answer {n}")));
        assert_eq!(answered(&db, "ada", "k1").await, None, "{engine}");
        assert!(answer(&db, "ada", "k1", 1).await, "{engine}");
        assert!(!answer(&db, "ada", "k1", 2).await, "{engine}: the key is taken");
        assert!(answer(&db, "bob", "k1", 3).await, "{engine}: another caller's key");
        assert!(answer(&db, "ada", "k2", 4).await, "{engine}");
        assert_eq!(answered(&db, "ada", "k1").await, kept(1), "{engine}");
        assert_eq!(answered(&db, "bob", "k1").await, kept(3), "{engine}");
        assert_eq!(answered(&db, "ada", "k2").await, kept(4), "{engine}");
        assert_eq!(answered(&db, "bob", "k2").await, None, "{engine}");
        let won = futures::future::join_all((0..8).map(|n| answer(&db, "ada", "k3", n))).await;
        let winners = (0..8).zip(won).filter(|(_, won)| *won).map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(winners.len(), 1, "{engine}: {winners:?}");
        assert_eq!(answered(&db, "ada", "k3").await, kept(winners[0]), "{engine}: the winner's answer");
    }
}

#[tokio::test]
async fn organizations_members_and_settings_are_stored() {
    for (engine, db, _location) in engines("accounts_orgs").await {
        with_people(&db).await;
        assert_eq!(read!(db, store::accounts::find_org, org(1).id), Some(org(1)), "{engine}");
        assert_eq!(read!(db, store::accounts::find_org, org(9).id), None, "{engine}");
        assert_eq!(read!(db, store::accounts::find_user, user(9).id), None, "{engine}");
        assert_eq!(read!(db, store::accounts::find_login, "9@b"), None, "{engine}");
        insert_member(&db, 2, 1, Role::Viewer).await.unwrap();
        insert_member(&db, 1, 1, Role::Owner).await.unwrap();
        let twice = insert_member(&db, 1, 1, Role::Viewer).await;
        assert!(matches!(twice, Err(StoreError::Duplicate)), "{engine}: {twice:?}");
        for (org_number, member) in [(9, 1), (1, 9)] {
            let unknown = insert_member(&db, org_number, member, Role::Viewer).await;
            assert!(matches!(unknown, Err(StoreError::Engine(_))), "{engine}: {unknown:?}");
        }
        let memberships = read!(db, store::accounts::list_memberships, user(1).id);
        let roles = memberships.into_iter().map(|m| (m.org, m.role)).collect::<Vec<_>>();
        assert_eq!(roles, [(org(1), Role::Owner), (org(2), Role::Viewer)], "{engine}");
        assert!(read!(db, store::accounts::list_memberships, user(2).id).is_empty(), "{engine}");

        write(&db, |tx| {
            async move {
                store::accounts::put_setting(tx, "a", "1").await?;
                store::accounts::put_setting(tx, "b", "2").await?;
                store::accounts::delete_setting(tx, "a").await?;
                store::accounts::delete_setting(tx, "c").await
            }
            .boxed()
        })
        .await;
        assert_eq!(read!(db, store::accounts::find_setting, "a"), None, "{engine}");
        assert_eq!(read!(db, store::accounts::find_setting, "b").as_deref(), Some("2"), "{engine}");
        db.ping().await.unwrap();
    }
}

#[tokio::test]
async fn expired_answers_sessions_and_join_tokens_are_deleted() {
    for (engine, db, _location) in engines("accounts_old").await {
        with_people(&db).await;
        assert!(answer(&db, "org", "old", 1).await, "{engine}");
        write(&db, |tx| {
            async move {
                for (n, hash, at, until) in [(1, "over", 0, 50), (2, "idle", 0, 500), (3, "used", 90, 500)] {
                    let new = session(hash, n, user(1).id);
                    store::accounts::insert_session(tx, &new, later(at), later(until)).await?;
                }
                for (n, hash, until) in [(1, "spent", 500), (2, "late", 50), (3, "good", 500)] {
                    let id = JoinTokenId::from_uuid(Uuid::from_u128(n));
                    store::nodes::insert_join_token(tx, id, hash, "b", now(), later(until)).await?;
                }
                store::nodes::use_join_token(tx, "spent", later(1)).await.map(|_| ())
            }
            .boxed()
        })
        .await;
        write(&db, |tx| {
            async move {
                store::accounts::forget_answers(tx, now()).await?;
                store::accounts::forget_sessions(tx, later(100), later(60)).await?;
                store::nodes::forget_join_tokens(tx, later(100)).await
            }
            .boxed()
        })
        .await;
        assert!(answered(&db, "org", "old").await.is_some(), "{engine}: it is as old as that, not older");
        // The read uses a time at which all of them would be valid.
        for (hash, there) in [("over", false), ("idle", false), ("used", true)] {
            let found = read!(db, store::accounts::find_session, hash, now(), later(-1));
            assert_eq!(found.is_some(), there, "{engine}: {hash}");
        }
        for (hash, there) in [("late", false), ("good", true)] {
            let used = write(&db, move |tx| {
                async move { store::nodes::use_join_token(tx, hash, now()).await }.boxed()
            });
            assert_eq!(used.await, there, "{engine}: {hash}");
        }
        write(&db, |tx| async move { store::accounts::forget_answers(tx, later(1)).await }.boxed()).await;
        assert!(answered(&db, "org", "old").await.is_none(), "{engine}");
    }
}

#[tokio::test]
async fn a_claimed_idempotency_key_stores_one_answer() {
    for (engine, db, _location) in engines("accounts_claims").await {
        let put = async |n: u16| {
            write(&db, move |tx| {
                async move {
                    let (request_hash, answer) = ("request".to_owned(), format!("answer {n}"));
                    let replay = Replay { request_hash, status: n, answer };
                    store::accounts::put_answer(tx, "org", "k", &replay, now()).await
                }
                .boxed()
            })
            .await;
            answered(&db, "org", "k").await.unwrap().2
        };
        assert_eq!(put(0).await, "answer 0", "{engine}: claimed");
        assert_eq!(put(201).await, "answer 201", "{engine}");
        assert_eq!(put(200).await, "answer 201", "{engine}: it stays as it was answered");
    }
}
