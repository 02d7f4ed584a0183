//! The transaction of either engine, the work in a transaction, and the failures.

use berth_types::problems::Problem;
use futures::future::BoxFuture;
use sqlx::postgres::PgConnection;
use sqlx::sqlite::SqliteConnection;
use sqlx::{ColumnIndex, Decode, FromRow, Row, Type};

/// The failures of a store function.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A row with the same unique key exists.
    #[error("a row with this key exists")]
    Duplicate,
    /// A CHECK constraint refused the change; for accounts it is the rule of the balance.
    #[error("a rule of the database refuses this")]
    Refused,
    /// The transaction conflicted with another transaction; a second run may succeed.
    #[error("the transaction met another one")]
    Contended,
    /// The change is based on a row that another transaction has changed since. The caller must decide again.
    #[error("another change came first")]
    Stale,
    /// The commit was not confirmed: it may or may not have happened.
    #[error("the outcome of the transaction is unknown")]
    Unknown,
    #[error("a stored value cannot be read: {0}")]
    Corrupt(String),
    #[error("database: {0}")]
    Engine(String),
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        if let sqlx::Error::Database(db) = &error {
            use sqlx::error::ErrorKind;
            if matches!(db.code().as_deref(), Some("40001" | "40P01")) {
                return Self::Contended;
            }
            match db.kind() {
                ErrorKind::UniqueViolation => return Self::Duplicate,
                ErrorKind::CheckViolation => return Self::Refused,
                _ => {}
            }
        }
        Self::Engine(error.to_string())
    }
}

impl From<StoreError> for Problem {
    /// The cause goes to the log, never into the answer.
    fn from(error: StoreError) -> Self {
        tracing::error!(%error, "store");
        match error {
            StoreError::Contended | StoreError::Stale => {
                Self::unavailable("The portal is busy with the same object; try again.", 1)
            }
            StoreError::Unknown => Self::unavailable(
                "It is not known whether this took effect. Send it again with the same Idempotency-Key.",
                1,
            ),
            _ => Self::internal(),
        }
    }
}

/// The failure of a write that may refuse: a refusal by its work, or a failure of the store.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error("refused: {0:?}")]
    Refused(Problem),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Problem> for WriteError {
    fn from(problem: Problem) -> Self {
        Self::Refused(problem)
    }
}

impl From<WriteError> for Problem {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Refused(problem) => problem,
            WriteError::Store(error) => error.into(),
        }
    }
}

/// Reads a row; an error names its first column, which is its id, and the column that cannot be read.
pub(crate) fn read_row<'r, R: Row, T: FromRow<'r, R>>(row: &'r R) -> Result<T, StoreError>
where
    usize: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    T::from_row(row).map_err(|error| match error {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::ColumnNotFound(_) | sqlx::Error::Decode(_) => {
            let id: String = row.try_get(0).unwrap_or_default();
            StoreError::Corrupt(format!("{id}: {error}"))
        }
        error => error.into(),
    })
}

/// A connection in a transaction, or a connection for reads.
pub enum Tx<'c> {
    Sqlite(&'c mut SqliteConnection),
    Postgres(&'c mut PgConnection),
}

/// The work of one [`Db::write`](crate::Db::write). It may run more than once, so it has no effects other
/// than on its `Tx`, and it awaits nothing else.
pub trait Work<T>:
    for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, StoreError>> + Send + Sync + 'static
{
}
impl<T, F> Work<T> for F where
    F: for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, StoreError>> + Send + Sync + 'static
{
}

/// [`Work`] that may refuse. A refusal does not undo what the work wrote before it.
pub trait RefusableWork<T>:
    for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, WriteError>> + Send + Sync + 'static
{
}
impl<T, F> RefusableWork<T> for F where
    F: for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, WriteError>> + Send + Sync + 'static
{
}
