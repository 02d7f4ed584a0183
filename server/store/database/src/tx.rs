//! The transaction of either engine, the work in a transaction, and the failures.

use berth_types::problems::Problem;
use berth_types::quotas::AuditEvent;
use futures::future::BoxFuture;
use sqlx::postgres::{PgConnection, PgDatabaseError};
use sqlx::sqlite::SqliteConnection;
use sqlx::{Column, ColumnIndex, Decode, FromRow, Row, Type};
use std::fmt::Display;
use std::ops::{Deref, DerefMut};

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
    /// The work refused after its first change; the change was undone.
    #[error("refused: {0:?}")]
    Undone(Box<Problem>),
    #[error("a stored value cannot be read: {0}")]
    Corrupt(String),
    #[error("database: {0}")]
    Engine(String),
}

impl StoreError {
    /// The error of a value that is stored but cannot be read.
    pub fn corrupt(table: &str, id: impl Display, column: &str, cause: impl Display) -> Self {
        Self::Corrupt(format!("{table} {id}: {column}: {cause}"))
    }
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
        Self::Engine(engine_text(&error))
    }
}

/// The text of an error of the engine. That of Postgres ends with a line of its own source, and gets the next step of the
/// operator in its place.
pub(crate) fn engine_text(error: &sqlx::Error) -> String {
    match error.as_database_error().and_then(|error| error.try_downcast_ref::<PgDatabaseError>()) {
        Some(error) => format!("{}{}", error.message(), next_step(error.code())),
        None => error.to_string(),
    }
}

/// The next step after a code of Postgres that the operator can mend.
fn next_step(code: &str) -> &'static str {
    match code {
        "3D000" => ". Create it first, with the user of the URL as its owner: CREATE DATABASE … OWNER …",
        "28000" | "28P01" => {
            ". Check the user and the password in the URL, in which characters such as @, / and # are percent-encoded"
        }
        "42501" => ". Make the user of the URL the owner of the database: ALTER DATABASE … OWNER TO …",
        _ => "",
    }
}

impl From<StoreError> for Problem {
    /// The cause goes to the log, never into the answer.
    fn from(error: StoreError) -> Self {
        if let StoreError::Undone(problem) = error {
            return *problem;
        }
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

/// Reads a row of the result of `sql`. The error of a value that cannot be read names the table, the id of the
/// row and the column. The id is the column `row_id`, or else the first column.
pub fn read_row<'r, R: Row, T: FromRow<'r, R>>(sql: &str, row: &'r R) -> Result<T, StoreError>
where
    usize: ColumnIndex<R>,
    for<'n> &'n str: ColumnIndex<R>,
    String: Decode<'r, R::Database> + Type<R::Database>,
{
    T::from_row(row).map_err(|error| {
        let (column, cause) = match error {
            sqlx::Error::ColumnDecode { index, source } => (column_name(row, &index), source.to_string()),
            sqlx::Error::ColumnNotFound(name) => (name, "the result has no such column".to_owned()),
            sqlx::Error::Decode(source) => ("a column".to_owned(), source.to_string()),
            other => return other.into(),
        };
        let id: Result<String, sqlx::Error> = row.try_get("row_id").or_else(|_| row.try_get(0usize));
        StoreError::corrupt(table_name(sql), id.unwrap_or_default(), &column, cause)
    })
}

/// Returns the name of a column from the text of its index: a name in quotation marks, or a position.
fn column_name<R: Row>(row: &R, index: &str) -> String {
    let name = index.trim_matches('"');
    let position: Option<usize> = name.parse().ok();
    let column = position.and_then(|position| row.columns().get(position));
    column.map_or_else(|| name.to_owned(), |column| column.name().to_owned())
}

/// Returns the table of a statement: the first one outside of brackets, or else the first one of a subquery.
fn table_name(sql: &str) -> &str {
    let (mut depth, mut before, mut inner) = (0usize, "", None);
    for word in sql.split_whitespace() {
        if matches!(before, "FROM" | "UPDATE") && !word.starts_with('(') {
            let name = word.trim_end_matches([')', ',']);
            if depth == 0 {
                return name;
            }
            inner = inner.or(Some(name));
        }
        depth += word.matches('(').count();
        depth = depth.saturating_sub(word.matches(')').count());
        before = word;
    }
    inner.unwrap_or("a result")
}

/// The rows without the corrupt ones, which go to the log.
pub fn readable<T>(rows: impl Iterator<Item = Result<T, StoreError>>) -> Result<Vec<T>, StoreError> {
    let mut out = Vec::new();
    for row in rows {
        match row {
            Ok(row) => out.push(row),
            Err(StoreError::Corrupt(error)) => tracing::error!(error, "a stored row is left out"),
            Err(error) => return Err(error),
        }
    }
    Ok(out)
}

/// A connection in a transaction, or a connection for reads.
pub enum Tx<'c> {
    Sqlite(TxConn<'c, SqliteConnection>),
    Postgres(TxConn<'c, PgConnection>),
}

/// The connection of a [`Tx`], with a mark once a statement has changed rows, and the audit events for its end.
pub struct TxConn<'c, C> {
    conn: &'c mut C,
    written: bool,
    audit_events: Vec<AuditEvent>,
}

impl<C> TxConn<'_, C> {
    /// Records the number of rows that a statement has changed.
    pub const fn record_rows(&mut self, rows: u64) {
        self.written |= rows > 0;
    }
}

impl<C> Deref for TxConn<'_, C> {
    type Target = C;
    fn deref(&self) -> &C {
        self.conn
    }
}

impl<C> DerefMut for TxConn<'_, C> {
    fn deref_mut(&mut self) -> &mut C {
        self.conn
    }
}

impl<'c> Tx<'c> {
    pub(crate) const fn sqlite(conn: &'c mut SqliteConnection) -> Self {
        Self::Sqlite(TxConn { conn, written: false, audit_events: Vec::new() })
    }

    pub(crate) const fn postgres(conn: &'c mut PgConnection) -> Self {
        Self::Postgres(TxConn { conn, written: false, audit_events: Vec::new() })
    }

    /// True once a statement has changed rows.
    pub(crate) const fn has_written(&self) -> bool {
        match self {
            Self::Sqlite(conn) => conn.written,
            Self::Postgres(conn) => conn.written,
        }
    }

    /// Keeps an audit event until the end of the transaction, which writes it. It counts as a change.
    pub fn add_audit_event(&mut self, event: AuditEvent) {
        let (written, events) = match self {
            Self::Sqlite(conn) => (&mut conn.written, &mut conn.audit_events),
            Self::Postgres(conn) => (&mut conn.written, &mut conn.audit_events),
        };
        *written = true;
        events.push(event);
    }

    /// Removes the kept audit events.
    pub(crate) fn take_audit_events(&mut self) -> Vec<AuditEvent> {
        match self {
            Self::Sqlite(conn) => std::mem::take(&mut conn.audit_events),
            Self::Postgres(conn) => std::mem::take(&mut conn.audit_events),
        }
    }
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

/// [`Work`] that may refuse. Nothing remains of a refused work.
pub trait RefusableWork<T>:
    for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, WriteError>> + Send + Sync + 'static
{
}
impl<T, F> RefusableWork<T> for F where
    F: for<'a> Fn(&'a mut Tx<'_>) -> BoxFuture<'a, Result<T, WriteError>> + Send + Sync + 'static
{
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_the_operator_can_mend_has_a_next_step() {
        for (code, step) in
            [("3D000", "CREATE DATABASE"), ("28P01", "percent-encoded"), ("42501", "OWNER TO"), ("42P01", "")]
        {
            let text = next_step(code);
            assert!(text.contains(step) && text.is_empty() == step.is_empty(), "{code}: {text}");
        }
    }

    #[test]
    fn the_table_of_a_statement_is_outside_of_its_subqueries() {
        for (sql, table) in [
            ("SELECT id, state FROM jobs WHERE id = $1", "jobs"),
            ("SELECT (SELECT MAX(e.at) FROM job_events e WHERE e.job_id = j.id) AS at FROM jobs j", "jobs"),
            ("SELECT day FROM (SELECT day FROM usage_days WHERE day > $1) AS used", "usage_days"),
            ("SELECT COALESCE((SELECT SUM(cost_micros) FROM usage_days), 0)", "usage_days"),
            ("UPDATE accounts SET held_micros = 0 WHERE id = $1 RETURNING id", "accounts"),
        ] {
            assert_eq!(table_name(sql), table, "{sql}");
        }
    }
}
