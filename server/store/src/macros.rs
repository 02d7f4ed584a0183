//! Macros that run one statement on either engine, with the same text and the same values.

/// Runs a statement; returns the number of affected rows.
macro_rules! exec {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query($sql)$(.bind($bind))*.execute(&mut **c).await.map(|r| r.rows_affected()),
            $crate::Tx::Postgres(c) => sqlx::query($sql)$(.bind($bind))*.execute(&mut **c).await.map(|r| r.rows_affected()),
        }
        .map_err($crate::StoreError::from)
    };
}

/// Runs a query on one engine; reads at most one row.
macro_rules! read_optional {
    ($query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_optional(&mut **$conn).await {
            Ok(row) => row.as_ref().map($crate::tx::read_row::<_, $row>).transpose(),
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query on one engine; reads every row.
macro_rules! read_all {
    ($query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_all(&mut **$conn).await {
            Ok(rows) => rows
                .iter()
                .map($crate::tx::read_row::<_, $row>)
                .collect::<Result<Vec<$row>, $crate::StoreError>>(),
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query for at most one row.
macro_rules! find {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => read_optional!(sqlx::query($sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => read_optional!(sqlx::query($sql)$(.bind($bind))*, $row, c),
        }
    };
}

/// Runs a query; returns every row.
macro_rules! list {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => read_all!(sqlx::query($sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => read_all!(sqlx::query($sql)$(.bind($bind))*, $row, c),
        }
    };
}

/// Runs a query with a list of texts as `$1`; returns every row. The engines have no common syntax for a
/// list, so each has its own text. SQLite gets the list as JSON, Postgres as an array.
macro_rules! list_in {
    ($tx:expr, $row:ty, $sqlite:expr, $postgres:expr, $texts:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => {
                let texts = serde_json::Value::from($texts).to_string();
                read_all!(sqlx::query($sqlite).bind(texts)$(.bind($bind))*, $row, c)
            }
            $crate::Tx::Postgres(c) => {
                read_all!(sqlx::query($postgres).bind($texts)$(.bind($bind))*, $row, c)
            }
        }
    };
}
