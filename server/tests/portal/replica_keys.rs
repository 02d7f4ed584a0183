//! Tests of the tokens of replicas over changes of the portal's key.

use std::path::Path;

use berth_foundation::Settings;
use berth_foundation::envelope::Keys;
use berth_foundation::replica_tokens::{TokenRoot, replica_token_hash};
use berth_server::serve::reseal;
use berth_store::Db;
use berth_types::ids::JobId;
use serde_json::json;
use uuid::Uuid;

use crate::common::{TestPortal, engines};
use crate::gateways::{add_gateway, poll_number, run};
use crate::idle_portal::IdlePortal;

/// A portal with a key and former keys in these files, before its start.
fn portal(db: &Db, key: &Path, former: &[&Path]) -> TestPortal {
    let (secrets_key, former) =
        (Some(key.to_owned()), former.iter().map(|file| (*file).to_owned()).collect());
    TestPortal::with(db.clone(), |s| Settings { secrets_key, secrets_old_keys: former, ..s })
}

/// A replica that runs on a portal of the version before the root of tokens.
struct RunningReplica {
    setup: IdlePortal,
    /// The hash of its token, which its worker keeps.
    kept: [u8; 32],
    gateway: String,
}

impl RunningReplica {
    async fn start(db: &Db, key: &Path) -> Self {
        let setup = IdlePortal::with_portal(portal(db, key, &[])).await;
        setup.create_service(json!({}), json!({})).await;
        setup.turn(0).await;
        let replica = setup.replica_jobs().await[0];
        let kept = setup.start(replica).await.replica.unwrap().token_sha256;
        setup.runs(replica, true).await;
        setup.turn(0).await;
        run(&setup.t, "UPDATE nodes SET inference_port = 8443".to_owned()).await;
        let gateway = add_gateway(&setup.t, 1).await;
        Self { setup, kept, gateway }
    }

    /// True if gateways of this portal reach the replica.
    async fn is_reached(&self, t: &TestPortal) -> bool {
        t.portal.gateway_sync.refresh_snapshot().await.unwrap();
        let (_, snapshot) = poll_number(t, &self.gateway, 0).await;
        let token = snapshot["services"][0]["revisions"][0]["replicas"][0]["token"].as_str();
        replica_token_hash(token.unwrap_or_else(|| panic!("no replica: {snapshot}"))) == self.kept
    }
}

#[tokio::test]
async fn running_replicas_stay_reachable_over_changes_of_the_key() {
    for (engine, db, _location) in engines("replica_keys").await {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, third, lost, stranger] =
            ["old", "new", "third", "lost", "stranger"].map(|name| dir.path().join(format!("{name}.key")));
        let replica = RunningReplica::start(&db, &old).await;
        assert!(replica.is_reached(&replica.setup.t).await, "{engine}");

        // A portal without a root is not started without its key.
        let error = reseal(&portal(&db, &lost, &[]).portal).await.unwrap_err();
        assert!(error.contains("lost.key is missing") && !lost.exists(), "{engine}: {error}");
        // The change, the start with the new key, a start without the former one, and another change.
        for (key, former, done) in
            [(&new, vec![old.as_path()], 0), (&new, vec![old.as_path()], 0), (&new, vec![], 0)]
                .into_iter()
                .chain([(&third, vec![new.as_path()], 1), (&third, vec![], 0)])
        {
            let t = portal(&db, key, &former);
            assert_eq!(reseal(&t.portal).await, Ok((done, 0)), "{engine} {}", key.display());
            assert!(replica.is_reached(&t).await, "{engine} {}", key.display());
        }

        let error = reseal(&portal(&db, &lost, &[]).portal).await.unwrap_err();
        assert!(error.contains("lost.key is missing") && !lost.exists(), "{engine}: {error}");
        // Another key is told once. It has tokens of its own until the key is back.
        Keys::open(&stranger, &[]).unwrap();
        for unreadable in [1, 0] {
            let t = portal(&db, &stranger, &[]);
            assert_eq!(reseal(&t.portal).await, Ok((0, unreadable)), "{engine}");
            assert!(!replica.is_reached(&t).await, "{engine}");
        }
        let t = portal(&db, &stranger, &[&third]);
        assert_eq!(reseal(&t.portal).await, Ok((1, 0)), "{engine}");
        assert!(replica.is_reached(&t).await, "{engine}");
    }
}

#[tokio::test]
async fn the_first_root_follows_from_the_key_that_sealed_other_values() {
    for (engine, db, _location) in engines("replica_first_root").await {
        let dir = tempfile::tempdir().unwrap();
        let [old, new, other] = ["old", "new", "other"].map(|name| dir.path().join(format!("{name}.key")));
        let replica = RunningReplica::start(&db, &old).await;
        let setup = &replica.setup;
        let secret = format!("/orgs/{}/secrets/hf-token", setup.org);
        setup.t.call(&setup.ada, "PUT", &secret, json!({"value": "hf_0123456789"})).await.expect(201);
        // Somebody made the new key, and the key before the old one is still named.
        for key in [&new, &other] {
            Keys::open(key, &[]).unwrap();
        }
        let t = portal(&db, &new, &[&other, &old]);
        assert_eq!(reseal(&t.portal).await, Ok((1, 0)), "{engine}");
        assert!(replica.is_reached(&t).await, "{engine}");
        let t = portal(&db, &new, &[]);
        assert_eq!(reseal(&t.portal).await, Ok((0, 0)), "{engine}");
        assert!(replica.is_reached(&t).await, "{engine}");
    }
}

/// The token of an attempt that does not exist.
async fn any_token(t: &TestPortal) -> String {
    let keys = t.portal.context.keys().unwrap();
    let mut conn = t.portal.context.db.read().await.unwrap();
    let root = TokenRoot::find(&mut conn.tx(), &keys).await.unwrap();
    root.token(JobId::from_uuid(Uuid::from_u128(1)), 1, 0)
}

#[tokio::test]
async fn a_new_portal_has_a_random_root_also_after_two_starts_at_once() {
    for (engine, db, _location) in engines("replica_new_root").await {
        let dir = tempfile::tempdir().unwrap();
        let (key, new) = (dir.path().join("secrets.key"), dir.path().join("new.key"));
        let (one, other) = (portal(&db, &key, &[]), portal(&db, &key, &[]));
        let started = tokio::join!(reseal(&one.portal), reseal(&other.portal));
        assert_eq!(started, (Ok((0, 0)), Ok((0, 0))), "{engine}");
        let token = any_token(&one).await;
        assert_eq!(any_token(&other).await, token, "{engine}");
        let derived = TokenRoot::derived(&Keys::open(&key, &[]).unwrap());
        assert_ne!(derived.token(JobId::from_uuid(Uuid::from_u128(1)), 1, 0), token, "{engine}");
        let changed = portal(&db, &new, &[&key]);
        assert_eq!(reseal(&changed.portal).await, Ok((1, 0)), "{engine}");
        assert_eq!(any_token(&changed).await, token, "{engine}");

        // No replica needs the lost key.
        std::fs::remove_file(&new).unwrap();
        let without = portal(&db, &new, &[]);
        assert_eq!(reseal(&without.portal).await, Ok((0, 0)), "{engine}");
        assert_ne!(any_token(&without).await, token, "{engine}");
    }
}
