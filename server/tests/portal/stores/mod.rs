//! Short forms of store access, and fixed times.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use berth_store::accounts::NewSession;
use berth_store::{self as store, Db, StoreError, Tx, Work};
use berth_types::ids::{NodeId, SessionId, UserId};
use berth_types::nodes::JoinTerms;
use berth_types::time::Timestamp;
use uuid::Uuid;

/// Calls a reading function on its own connection.
macro_rules! read {
    ($db:expr, $f:expr $(, $arg:expr)* $(,)?) => {
        $f(&mut $db.read().await.unwrap().tx() $(, $arg)*).await.unwrap()
    };
}

pub async fn write<T: Send + 'static>(db: &Db, work: impl Work<T>) -> T {
    db.write(work).await.unwrap()
}

/// Adds an approved node. Its first boards are approved, and the labels of its reports count.
pub async fn insert_node(tx: &mut Tx<'_>, node: NodeId, name: &str, at: Timestamp) -> Result<(), StoreError> {
    store::nodes::insert(tx, node, name, at).await?;
    let terms = JoinTerms { approve: true, adopt_labels: true, ..JoinTerms::default() };
    store::approvals::set_terms(tx, node, &terms).await?;
    store::approvals::approve(tx, node, at).await
}

pub fn later(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_795_000_000_000_000).plus_seconds(seconds)
}

pub fn now() -> Timestamp {
    later(0)
}

/// A session with this hash of its cookie.
pub fn session(hash: &str, n: u128, user: UserId) -> NewSession {
    NewSession {
        id: SessionId::from_uuid(Uuid::from_u128(n)),
        hash: hash.to_owned(),
        user,
        network: String::new(),
        browser: "curl/8.5.0".to_owned(),
    }
}
