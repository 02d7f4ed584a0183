//! The identity of an attempt.

use berth_proto::AttemptId;

/// One numbered attempt of a job.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    pub job: String,
    pub number: u32,
}

impl AttemptKey {
    /// The same identity as a message has it.
    pub fn id(&self) -> AttemptId {
        AttemptId::new(&self.job, self.number)
    }
}

impl From<&AttemptId> for AttemptKey {
    fn from(id: &AttemptId) -> Self {
        Self { job: id.job.clone(), number: id.number }
    }
}
