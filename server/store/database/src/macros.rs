//! Macros that run one statement on either engine, with the same text and the same values.

/// Runs a statement on one engine; returns the number of affected rows.
#[macro_export]
macro_rules! execute {
    ($query:expr, $conn:expr) => {
        match $query.execute(&mut **$conn).await {
            Ok(done) => {
                $conn.record_rows(done.rows_affected());
                Ok(done.rows_affected())
            }
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a statement; returns the number of affected rows.
#[macro_export]
macro_rules! exec {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => $crate::execute!($crate::sqlx::query($sql)$(.bind($bind))*, c),
            $crate::Tx::Postgres(c) => $crate::execute!($crate::sqlx::query($sql)$(.bind($bind))*, c),
        }
    };
}

/// Runs a query on one engine; reads at most one row.
#[macro_export]
macro_rules! read_optional {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_optional(&mut **$conn).await {
            Ok(row) => row.as_ref().map(|row| $crate::read_row::<_, $row>($sql, row)).transpose(),
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query on one engine; maps each row as it arrives, so that no two forms of all rows are in memory.
#[macro_export]
macro_rules! read_each {
    ($sql:expr, $query:expr, $row:ty, $conn:expr, $map:expr) => {{
        let mut rows = $query.fetch(&mut **$conn);
        let mut out = Vec::new();
        loop {
            match $crate::futures::TryStreamExt::try_next(&mut rows).await {
                Ok(Some(row)) => match $crate::read_row::<_, $row>($sql, &row).and_then($map) {
                    Ok(item) => out.push(item),
                    Err(error) => break Err(error),
                },
                Ok(None) => break Ok(out),
                Err(error) => break Err($crate::StoreError::from(error)),
            }
        }
    }};
}

/// Runs a query on one engine; reads every row that can be read. A corrupt row is left out and logged.
#[macro_export]
macro_rules! read_readable {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_all(&mut **$conn).await {
            Ok(rows) => $crate::readable(rows.iter().map(|row| $crate::read_row::<_, $row>($sql, row))),
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query on one engine; reads every row.
#[macro_export]
macro_rules! read_all {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        $crate::read_each!($sql, $query, $row, $conn, Ok)
    };
}

/// Runs a query for at most one row.
#[macro_export]
macro_rules! find {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => $crate::read_optional!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => $crate::read_optional!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c),
        }
    }};
}

/// Runs a query; returns every row.
#[macro_export]
macro_rules! list {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => $crate::read_all!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => $crate::read_all!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c),
        }
    }};
}

/// Runs a query; returns every row that can be read, so that one corrupt row does not stop a whole part of the
/// portal. A corrupt row is left out and logged.
#[macro_export]
macro_rules! list_readable {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => $crate::read_readable!($sql, $crate::sqlx::query($sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => $crate::read_readable!($sql, $crate::sqlx::query($sql)$(.bind($bind))*, $row, c),
        }
    };
}

/// Runs a query; returns every row as `$map` makes it.
#[macro_export]
macro_rules! map_rows {
    ($tx:expr, $row:ty, $map:expr, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => $crate::read_each!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c, $map),
            $crate::Tx::Postgres(c) => $crate::read_each!(sql, $crate::sqlx::query(sql)$(.bind($bind))*, $row, c, $map),
        }
    }};
}

/// Runs a query with a list of texts as `$1`; returns every row. The engines have no common syntax for a
/// list, so each has its own text. SQLite gets the list as JSON, Postgres as an array.
#[macro_export]
macro_rules! list_in {
    ($tx:expr, $row:ty, $sqlite:expr, $postgres:expr, $texts:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => {
                let texts = $crate::serde_json::Value::from($texts).to_string();
                $crate::read_all!($sqlite, $crate::sqlx::query($sqlite).bind(texts)$(.bind($bind))*, $row, c)
            }
            $crate::Tx::Postgres(c) => {
                $crate::read_all!($postgres, $crate::sqlx::query($postgres).bind($texts)$(.bind($bind))*, $row, c)
            }
        }
    };
}

/// [`page_sql`] for the rows of one organization (`$1`), or (`None`, with an empty `$1`) of all. Each case has
/// its own text, because `$1 = '' OR …` uses no index. The texts are a SELECT without a condition, the column
/// of the organization, the other conditions, and those of `page_sql`.
#[macro_export]
macro_rules! org_page_sql {
    ($org:expr, $sort:expr, [$($select:tt)+], $column:literal, $conditions:literal, $($page:tt)+) => {
        match $org {
            Some(_) => $crate::page_sql!($sort, [$($select)+, "WHERE ", $column, " = $1", $conditions], $($page)+),
            None => $crate::page_sql!($sort, [$($select)+, "WHERE $1 = ''", $conditions], $($page)+),
        }
    };
}

/// The text of a query for a page of a list, in either direction of the list's key. The texts are a SELECT
/// with a condition in brackets, the column of the key, and the parameters of the cursor and of the number
/// of rows. The cursor of the first page is empty, or 0 for a key that is a number.
#[macro_export]
macro_rules! page_sql {
    ($sort:expr, [$($select:tt)+], $key:literal, $cursor:literal, $rows:literal) => {
        $crate::page_sql!($sort, [$($select)+], $key, $cursor, "''", $rows)
    };
    ($sort:expr, [$($select:tt)+], $key:literal, number $cursor:literal, $rows:literal) => {
        $crate::page_sql!($sort, [$($select)+], $key, $cursor, "0", $rows)
    };
    ($sort:expr, [$($select:tt)+], $key:literal, $cursor:literal, $none:literal, $rows:literal) => {
        match $sort {
            $crate::Sort::Asc => concat!(
                $($select)+,
                " AND (", $cursor, " = ", $none, " OR ", $key, " > ", $cursor, ")",
                " ORDER BY ", $key, " ASC LIMIT ", $rows
            ),
            $crate::Sort::Desc => concat!(
                $($select)+,
                " AND (", $cursor, " = ", $none, " OR ", $key, " < ", $cursor, ")",
                " ORDER BY ", $key, " DESC LIMIT ", $rows
            ),
        }
    };
}
