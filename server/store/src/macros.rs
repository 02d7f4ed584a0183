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

/// Runs a query for at most one row.
macro_rules! find {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_optional(&mut **c).await,
            $crate::Tx::Postgres(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_optional(&mut **c).await,
        }
        .map_err($crate::StoreError::from)
    };
}

/// Runs a query; returns every row.
macro_rules! list {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_all(&mut **c).await,
            $crate::Tx::Postgres(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_all(&mut **c).await,
        }
        .map_err($crate::StoreError::from)
    };
}

/// Runs a query with a list of texts as `$1`; returns every row. The engines have no common syntax for a
/// list, so each has its own text. SQLite gets the list as JSON, Postgres as an array.
macro_rules! list_in {
    ($tx:expr, $row:ty, $sqlite:expr, $postgres:expr, $texts:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => {
                let texts = serde_json::Value::from($texts).to_string();
                sqlx::query_as::<_, $row>($sqlite).bind(texts)$(.bind($bind))*.fetch_all(&mut **c).await
            }
            $crate::Tx::Postgres(c) => {
                sqlx::query_as::<_, $row>($postgres).bind($texts)$(.bind($bind))*.fetch_all(&mut **c).await
            }
        }
        .map_err($crate::StoreError::from)
    };
}
