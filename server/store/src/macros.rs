//! Macros that run one statement on either engine, with the same text and the same values.

/// Runs a statement on one engine; returns the number of affected rows.
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
macro_rules! exec {
    ($tx:expr, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => execute!(sqlx::query($sql)$(.bind($bind))*, c),
            $crate::Tx::Postgres(c) => execute!(sqlx::query($sql)$(.bind($bind))*, c),
        }
    };
}

/// Runs a query on one engine; reads at most one row.
macro_rules! read_optional {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_optional(&mut **$conn).await {
            Ok(row) => row.as_ref().map(|row| $crate::tx::read_row::<_, $row>($sql, row)).transpose(),
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query on one engine; maps each row as it arrives, so that no two forms of all rows are in memory.
macro_rules! read_each {
    ($sql:expr, $query:expr, $row:ty, $conn:expr, $map:expr) => {{
        let mut rows = $query.fetch(&mut **$conn);
        let mut out = Vec::new();
        loop {
            match futures::TryStreamExt::try_next(&mut rows).await {
                Ok(Some(row)) => match $crate::tx::read_row::<_, $row>($sql, &row).and_then($map) {
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
macro_rules! read_readable {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        match $query.fetch_all(&mut **$conn).await {
            Ok(rows) => {
                $crate::tx::readable(rows.iter().map(|row| $crate::tx::read_row::<_, $row>($sql, row)))
            }
            Err(error) => Err($crate::StoreError::from(error)),
        }
    };
}

/// Runs a query on one engine; reads every row.
macro_rules! read_all {
    ($sql:expr, $query:expr, $row:ty, $conn:expr) => {
        read_each!($sql, $query, $row, $conn, Ok)
    };
}

/// Runs a query for at most one row.
macro_rules! find {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => read_optional!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => read_optional!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c),
        }
    }};
}

/// Runs a query; returns every row.
macro_rules! list {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => read_all!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => read_all!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c),
        }
    }};
}

/// Runs a query; returns every row that can be read, so that one corrupt row does not stop a whole part of the
/// portal. A corrupt row is left out and logged.
macro_rules! list_readable {
    ($tx:expr, $row:ty, $sql:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => read_readable!($sql, sqlx::query($sql)$(.bind($bind))*, $row, c),
            $crate::Tx::Postgres(c) => read_readable!($sql, sqlx::query($sql)$(.bind($bind))*, $row, c),
        }
    };
}

/// Runs a query; returns every row as `$map` makes it.
macro_rules! map_rows {
    ($tx:expr, $row:ty, $map:expr, $sql:expr $(, $bind:expr)* $(,)?) => {{
        let sql: &'static str = $sql;
        match $tx {
            $crate::Tx::Sqlite(c) => read_each!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c, $map),
            $crate::Tx::Postgres(c) => read_each!(sql, sqlx::query(sql)$(.bind($bind))*, $row, c, $map),
        }
    }};
}

/// Runs a query with a list of texts as `$1`; returns every row. The engines have no common syntax for a
/// list, so each has its own text. SQLite gets the list as JSON, Postgres as an array.
macro_rules! list_in {
    ($tx:expr, $row:ty, $sqlite:expr, $postgres:expr, $texts:expr $(, $bind:expr)* $(,)?) => {
        match $tx {
            $crate::Tx::Sqlite(c) => {
                let texts = serde_json::Value::from($texts).to_string();
                read_all!($sqlite, sqlx::query($sqlite).bind(texts)$(.bind($bind))*, $row, c)
            }
            $crate::Tx::Postgres(c) => {
                read_all!($postgres, sqlx::query($postgres).bind($texts)$(.bind($bind))*, $row, c)
            }
        }
    };
}

/// [`page_sql`] for the rows of one organization (`$1`), or (`None`, with an empty `$1`) of all. Each case has
/// its own text, because `$1 = '' OR …` uses no index. The texts are a SELECT without a condition, the column
/// of the organization, the other conditions, and those of `page_sql`.
macro_rules! org_page_sql {
    ($org:expr, $sort:expr, [$($select:tt)+], $column:literal, $conditions:literal, $($page:tt)+) => {
        match $org {
            Some(_) => page_sql!($sort, [$($select)+, "WHERE ", $column, " = $1", $conditions], $($page)+),
            None => page_sql!($sort, [$($select)+, "WHERE $1 = ''", $conditions], $($page)+),
        }
    };
}

/// The text of a query for a page of a list, in either direction of the list's key. The texts are a SELECT
/// with a condition in brackets, the column of the key, and the parameters of the cursor and of the number
/// of rows. The cursor of the first page is empty, or 0 for a key that is a number.
macro_rules! page_sql {
    ($sort:expr, [$($select:tt)+], $key:literal, $cursor:literal, $rows:literal) => {
        page_sql!($sort, [$($select)+], $key, $cursor, "''", $rows)
    };
    ($sort:expr, [$($select:tt)+], $key:literal, number $cursor:literal, $rows:literal) => {
        page_sql!($sort, [$($select)+], $key, $cursor, "0", $rows)
    };
    ($sort:expr, [$($select:tt)+], $key:literal, $cursor:literal, $none:literal, $rows:literal) => {
        match $sort {
            berth_types::Sort::Asc => concat!(
                $($select)+,
                " AND (", $cursor, " = ", $none, " OR ", $key, " > ", $cursor, ")",
                " ORDER BY ", $key, " ASC LIMIT ", $rows
            ),
            berth_types::Sort::Desc => concat!(
                $($select)+,
                " AND (", $cursor, " = ", $none, " OR ", $key, " < ", $cursor, ")",
                " ORDER BY ", $key, " DESC LIMIT ", $rows
            ),
        }
    };
}
