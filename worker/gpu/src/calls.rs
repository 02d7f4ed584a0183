//! Calls of NVML with deadlines, each on the executor of its board.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::GpuError;
use super::event_set::EVENT_LIMIT;
use super::executor::{BoardExecutors, PendingCall};
use super::nvml_access::NvmlAccess;
use super::nvml_session::{NvmlSession, SessionUse};
use super::requests::Request;
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

/// The executor of the listener for events.
const EVENTS: &str = "events";

/// NVML with the executors of its boards.
pub(super) struct NvmlCalls {
    access: Arc<Startup<NvmlAccess>>,
    session: Arc<NvmlSession>,
    executors: BoardExecutors,
    pub deadlines: Deadlines,
}

impl NvmlCalls {
    pub fn new(access: Arc<Startup<NvmlAccess>>) -> Self {
        Self {
            access,
            session: Arc::default(),
            executors: BoardExecutors::default(),
            deadlines: Deadlines::default(),
        }
    }

    /// True if NVML has started.
    pub fn has_started(&self) -> bool {
        self.access.get().is_some()
    }

    /// Waits for the start of NVML.
    pub fn wait_for_start(&self) {
        self.access.wait();
    }

    /// The way to NVML, if it has started.
    pub fn access(&self) -> Option<Arc<NvmlAccess>> {
        self.access.get()
    }

    pub fn session(&self) -> &Arc<NvmlSession> {
        &self.session
    }

    /// True if a call on this executor is late, or further ones are refused for a time after a late one.
    pub fn is_stuck(&self, executor: &str) -> bool {
        self.executors.is_stuck(executor)
            || self.access.get().is_some_and(|access| access.is_held_back(executor))
    }

    fn run<R: Request>(&self, executor: &str, limit: Duration, request: R) -> Result<R::Answer, GpuError> {
        let call = self.call_in_session(executor, limit, request).ok_or(GpuError::Unresponsive)?;
        self.executors.run(executor, limit, call).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// A call within the session, or its refusal during a reset. `None`: NVML has not started.
    fn call_in_session<R: Request>(
        &self,
        executor: &str,
        limit: Duration,
        request: R,
    ) -> Option<impl FnOnce() -> Result<R::Answer, GpuError> + Send + 'static + use<R>> {
        let (access, session, executor) = (self.access.get()?, self.session.clone(), executor.to_owned());
        Some(move || {
            let Some(_in_use) = session.enter() else { return Err(GpuError::Resetting) };
            access.call(&executor, limit, request)
        })
    }

    /// Runs a call for a caller that waits until `by` at most.
    pub fn run_until<R: Request>(
        &self,
        executor: &str,
        limit: Duration,
        by: Instant,
        request: R,
    ) -> Result<R::Answer, GpuError> {
        let pending = self.start(executor, limit, request);
        pending.and_then(|call| call.wait_until(by)).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Starts a call. `None`: NVML has not started, or the executor is stuck.
    pub fn start<R: Request>(
        &self,
        executor: &str,
        limit: Duration,
        request: R,
    ) -> Option<PendingCall<Result<R::Answer, GpuError>>> {
        self.executors.start(executor, limit, self.call_in_session(executor, limit, request)?)
    }

    /// Reads from a board.
    pub fn read<R: Request>(&self, gpu_uuid: &str, request: R) -> Result<R::Answer, GpuError> {
        self.run(gpu_uuid, self.deadlines.read, request)
    }

    /// Runs a call within a use of the session that has begun, so no reset refuses it.
    fn run_in<R: Request>(
        &self,
        in_use: SessionUse,
        executor: &str,
        limit: Duration,
        request: R,
    ) -> Result<R::Answer, GpuError> {
        let access = self.access.get().ok_or(GpuError::Unresponsive)?;
        let name = executor.to_owned();
        let call = move || {
            let result = access.call(&name, limit, request);
            drop(in_use);
            result
        };
        self.executors.run(executor, limit, call).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// As [`Self::read`], if necessary after the end of a reset.
    pub fn read_after_reset<R: Request>(&self, gpu_uuid: &str, request: R) -> Result<R::Answer, GpuError> {
        let in_use = self.session.enter_within(RESET_PATIENCE).ok_or(GpuError::Resetting)?;
        self.run_in(in_use, gpu_uuid, self.deadlines.read, request)
    }

    /// Changes a board, or reads a state that a change would disturb: one call at a time. It waits for the end of a
    /// reset, so the preparation of a job outlasts the reset of another board.
    pub fn change<R: Request>(&self, gpu_uuid: &str, request: R) -> Result<R::Answer, GpuError> {
        let in_use = self.session.enter_within(RESET_PATIENCE).ok_or(GpuError::Resetting)?;
        self.change_in(in_use, gpu_uuid, request)
    }

    /// As [`Self::change`], without a wait for a reset.
    pub fn change_now<R: Request>(&self, gpu_uuid: &str, request: R) -> Result<R::Answer, GpuError> {
        let in_use = self.session.enter().ok_or(GpuError::Resetting)?;
        self.change_in(in_use, gpu_uuid, request)
    }

    fn change_in<R: Request>(
        &self,
        in_use: SessionUse,
        gpu_uuid: &str,
        request: R,
    ) -> Result<R::Answer, GpuError> {
        // A board that answers no reading is not changed.
        if self.is_stuck(gpu_uuid) {
            return Err(GpuError::Unresponsive);
        }
        self.run_in(in_use, &changes(gpu_uuid), self.deadlines.change, request)
    }

    /// Runs a call of the listener for events, whose use of the session lasts longer than the call.
    pub fn listen<R: Request>(&self, _in_use: &SessionUse, request: R) -> Result<R::Answer, GpuError> {
        let access = self.access.get().ok_or(GpuError::Unresponsive)?;
        let call = move || access.call(EVENTS, EVENT_LIMIT, request);
        self.executors.run(EVENTS, EVENT_LIMIT, call).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Reads from the host.
    pub fn read_host<R: Request>(&self, request: R) -> Result<R::Answer, GpuError> {
        self.run(HOST, self.deadlines.read, request)
    }

    /// Reads from the host for a caller that waits until `by` at most.
    pub fn read_host_until<R: Request>(&self, by: Instant, request: R) -> Result<R::Answer, GpuError> {
        self.run_until(HOST, self.deadlines.read, by, request)
    }
}
