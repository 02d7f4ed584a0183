//! Values that several rooms exchange. This room does no IO.

mod attempt_key;
mod failure;

pub use attempt_key::AttemptKey;
pub use failure::{JobFailure, job_failure, start_failure};
