//! The state of an attempt, for decisions.

/// The state of an attempt on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AttemptState {
    /// Its devices and files are being made.
    Preparing,
    Running {
        stop_asked: bool,
        limit_ms: i64,
    },
    Ended(CleaningState),
}

/// The progress of the proof that an ended attempt is clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleaningState {
    Due,
    UnderWay,
    Done,
}
