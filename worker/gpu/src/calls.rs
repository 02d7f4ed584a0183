//! Calls of NVML with deadlines, each on the executor of its board.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::GpuError;
use super::executor::{BoardExecutors, PendingCall};
use super::library::Library;
use super::nvml_session::{NvmlSession, SessionUse};
use super::startup::Startup;

/// The executor for calls that belong to no board.
const HOST: &str = "host";

/// The time limits of calls. After its limit a call makes its board unresponsive.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// For a call that reads.
    pub read: Duration,
    /// For a call that creates or destroys an instance, or changes a mode.
    pub change: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { read: Duration::from_secs(5), change: Duration::from_secs(30) }
    }
}

/// The executor for changes of a board.
pub(super) fn changes(gpu_uuid: &str) -> String {
    format!("{gpu_uuid} changes")
}

/// The longest wait for the end of a reset.
pub(super) const RESET_PATIENCE: Duration = Duration::from_secs(240);

/// A call within the session, or its refusal during a reset.
fn in_session<T: Send + 'static>(
    session: Arc<NvmlSession>,
    library: Arc<Library>,
    call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
) -> impl FnOnce() -> Result<T, GpuError> + Send + 'static {
    move || {
        let Some(_in_use) = session.enter() else { return Err(GpuError::Resetting) };
        call(&library)
    }
}

/// The library with the executors of its boards.
pub(super) struct NvmlCalls {
    library: Arc<Startup<Library>>,
    session: Arc<NvmlSession>,
    executors: BoardExecutors,
    pub deadlines: Deadlines,
}

impl NvmlCalls {
    pub fn new(library: Arc<Startup<Library>>) -> Self {
        Self {
            library,
            session: Arc::default(),
            executors: BoardExecutors::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// True if NVML has started.
    pub fn has_started(&self) -> bool {
        self.library.get().is_some()
    }

    /// Waits for the start of NVML.
    pub fn wait_for_library(&self) -> Arc<Library> {
        self.library.wait()
    }

    /// The library, if NVML has started.
    pub fn library(&self) -> Option<Arc<Library>> {
        self.library.get()
    }

    pub fn session(&self) -> &Arc<NvmlSession> {
        &self.session
    }

    /// True if a call on this executor is late.
    pub fn is_stuck(&self, executor: &str) -> bool {
        self.executors.is_stuck(executor)
    }

    fn run<T: Send + 'static>(
        &self,
        executor: &str,
        limit: Duration,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let library = self.library.get().ok_or(GpuError::Unresponsive)?;
        let call = in_session(self.session.clone(), library, call);
        self.executors.run(executor, limit, call).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Runs a call for a caller that waits until `by` at most.
    pub fn run_until<T: Send + 'static>(
        &self,
        executor: &str,
        limit: Duration,
        by: Instant,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let pending = self.start(executor, limit, call);
        pending.and_then(|call| call.wait_until(by)).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Starts a call. `None`: NVML has not started, or the executor is stuck.
    pub fn start<T: Send + 'static>(
        &self,
        executor: &str,
        limit: Duration,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Option<PendingCall<Result<T, GpuError>>> {
        let library = self.library.get()?;
        self.executors.start(executor, limit, in_session(self.session.clone(), library, call))
    }

    /// Reads from a board.
    pub fn read<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        self.run(gpu_uuid, self.deadlines.read, call)
    }

    /// Runs a call within a use of the session that has begun, so no reset refuses it.
    fn run_in<T: Send + 'static>(
        &self,
        in_use: SessionUse,
        executor: &str,
        limit: Duration,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let library = self.library.get().ok_or(GpuError::Unresponsive)?;
        let call = move || {
            let result = call(&library);
            drop(in_use);
            result
        };
        self.executors.run(executor, limit, call).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// As [`Self::read`], if necessary after the end of a reset.
    pub fn read_after_reset<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let in_use = self.session.enter_within(RESET_PATIENCE).ok_or(GpuError::Resetting)?;
        self.run_in(in_use, gpu_uuid, self.deadlines.read, call)
    }

    /// Changes a board, or reads a state that a change would disturb: one call at a time. It waits for the end of a
    /// reset, so the preparation of a job outlasts the reset of another board.
    pub fn change<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let in_use = self.session.enter_within(RESET_PATIENCE).ok_or(GpuError::Resetting)?;
        self.change_in(in_use, gpu_uuid, call)
    }

    /// As [`Self::change`], without a wait for a reset.
    pub fn change_now<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let in_use = self.session.enter().ok_or(GpuError::Resetting)?;
        self.change_in(in_use, gpu_uuid, call)
    }

    fn change_in<T: Send + 'static>(
        &self,
        in_use: SessionUse,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        // A board that answers no reading is not changed.
        if self.is_stuck(gpu_uuid) {
            return Err(GpuError::Unresponsive);
        }
        self.run_in(in_use, &changes(gpu_uuid), self.deadlines.change, call)
    }

    /// Reads from the host.
    pub fn read_host<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        self.run(HOST, self.deadlines.read, call)
    }

    /// Reads from the host for a caller that waits until `by` at most.
    pub fn read_host_until<T: Send + 'static>(
        &self,
        by: Instant,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        self.run_until(HOST, self.deadlines.read, by, call)
    }
}
