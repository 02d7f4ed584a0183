//! The cause of an attempt's failure.

/// A stable code for programs, then a sentence for people.
pub type JobFailure = (String, String);

pub fn job_failure(code: &str, detail: impl Into<String>) -> JobFailure {
    (code.to_owned(), detail.into())
}
