//! Answers in CSV.

use axum::http::{HeaderMap, HeaderName, header};
use axum::response::{IntoResponse, Response};
use berth_types::problems::Problem;

use crate::failed::Failed;

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    Json,
    Csv,
}

/// True if the query or `Accept` asks for CSV.
pub fn wants_csv(format: Option<Format>, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    format.map_or_else(|| accept.trim_start().starts_with("text/csv"), |f| f == Format::Csv)
}

/// A free text as a CSV cell that no spreadsheet program takes for a formula.
pub fn plain_cell(text: String) -> String {
    if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { format!("'{text}") } else { text }
}

/// The headers of a CSV file with a name for downloads.
pub fn csv_head(name: &str) -> [(HeaderName, String); 2] {
    [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8".to_owned()),
        (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}\"")),
    ]
}

/// A CSV file that could not be written.
pub fn broken<E>(_: E) -> Failed {
    Failed(Problem::internal())
}

/// The answer with a finished CSV file.
///
/// # Errors
/// The file could not be written.
pub fn csv_answer(file: csv::Writer<Vec<u8>>, name: &str) -> Result<Response, Failed> {
    let bytes = file.into_inner().map_err(broken)?;
    Ok((csv_head(name), bytes).into_response())
}
