//! The cause of an attempt's failure.

/// A stable code for programs, then a sentence for people.
pub type JobFailure = (String, String);

pub fn job_failure(code: &str, detail: impl Into<String>) -> JobFailure {
    (code.to_owned(), detail.into())
}

/// The failure before the start of a job. `cause` is a sentence without its full stop.
pub fn start_failure(code: &str, cause: impl Into<String>) -> JobFailure {
    let cause: String = cause.into();
    job_failure(code, cause + ". The job was not started.")
}

#[cfg(test)]
mod tests {
    use super::start_failure;

    #[test]
    fn a_start_failure_has_its_consequence() {
        let (code, detail) = start_failure("worker.isolation", "This node has no free user");
        assert_eq!(code, "worker.isolation");
        assert_eq!(detail, "This node has no free user. The job was not started.");
    }
}
