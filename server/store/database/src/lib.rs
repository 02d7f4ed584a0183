//! The connection to SQLite or Postgres: groups of writes, transactions, the macros for statements, the columns that
//! several tables share, and the chain of audit events, because each write appends to it.
//!
//! Only the crates of the store use it, and they have the statements.

#[macro_use]
mod macros;
pub mod audit;
mod connect;
mod lock;
mod tx;
pub mod types;
mod writer;

pub use berth_types::Sort;
pub use connect::{Db, ReadConn, copy_sqlite, is_protected_url};
pub use lock::DatabaseLock;
pub use tx::{RefusableWork, StoreError, Tx, TxConn, Work, WriteError, read_row, readable};
// The macros name them in the crates that use them.
#[doc(hidden)]
pub use {futures, serde_json, sqlx};
