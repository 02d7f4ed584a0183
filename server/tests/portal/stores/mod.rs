//! Short ways to a store, whatever is asked of it, and a time that stands.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail loudly, like tests")]

use berth_store::{Db, Work};
use berth_types::time::Timestamp;

/// One reading function on a connection of its own.
macro_rules! read {
    ($db:expr, $f:expr $(, $arg:expr)* $(,)?) => {
        $f(&mut $db.read().await.unwrap().tx() $(, $arg)*).await.unwrap()
    };
}

pub async fn write<T: Send + 'static>(db: &Db, work: impl Work<T>) -> T {
    db.write(work).await.unwrap()
}

pub fn later(seconds: i64) -> Timestamp {
    Timestamp::from_micros(1_795_000_000_000_000).plus_seconds(seconds)
}

pub fn now() -> Timestamp {
    later(0)
}
