//! One statement for either engine: the same text and the same values, bound to whichever connection
//! the transaction has.

/// Runs a statement; gives the number of rows it touched.
macro_rules! exec {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query($sql)$(.bind($bind))*.execute(&mut **c).await.map(|r| r.rows_affected()),
            $crate::Tx::Postgres(c) => sqlx::query($sql)$(.bind($bind))*.execute(&mut **c).await.map(|r| r.rows_affected()),
        }
        .map_err($crate::StoreError::from)
    };
}

/// At most one row.
macro_rules! find {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_optional(&mut **c).await,
            $crate::Tx::Postgres(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_optional(&mut **c).await,
        }
        .map_err($crate::StoreError::from)
    };
}

/// Every row.
macro_rules! list {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_all(&mut **c).await,
            $crate::Tx::Postgres(c) => sqlx::query_as::<_, $row>($sql)$(.bind($bind))*.fetch_all(&mut **c).await,
        }
        .map_err($crate::StoreError::from)
    };
}

/// Every row of a statement whose `$1` is a list of texts. The engines have no word for one in common, so
/// each has its own text: SQLite is given the list as JSON, Postgres as an array.
macro_rules! list_of {
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
