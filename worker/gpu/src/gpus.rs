//! The interface to the GPUs of this host.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::board::{BoardInfo, DeviceNumbers, Slice};
use super::calls::{Deadlines, NvmlCalls, changes};
use super::condition::BoardCondition;
use super::error::{GpuError, silence_reason};
use super::executor::PendingCall;
use super::inventory::{Inventory, PATIENCE};
use super::library::Library;
use super::mig_mode::WaitingMode;
use super::nvlink::reset_group;
use super::nvml_access::NvmlAccess;
use super::nvml_helper::NvmlHelper;
use super::readings::{Presence, Reading};
use super::requests::{
    CheckBoard, CreateSlice, DestroySlice, FindDeviceNumbers, FindPresence, ListHolders, ListProfileNames,
    ListProfiles, ListSlices, ReadCondition, ReadDevice, ReadSnapshot, ReadUsedMib, SetMig,
};
use super::reset_program::ResetProgram;
use super::simulation;
use super::snapshot::BoardSnapshot;
use super::startup::Startup;

/// The wait for the start of NVML itself.
const START: Duration = Duration::from_secs(15);

/// The GPUs of this host.
pub struct Gpus {
    pub(super) calls: NvmlCalls,
    inventory: Inventory,
    /// The program that resets boards, if the host has it.
    pub(super) reset_program: Option<ResetProgram>,
    /// The number of begins and ends of times without a listener for events. It begins in such a time.
    pub(super) event_gaps: AtomicU64,
}

/// The GPUs of this host by a helper process, which can be ended: `program` is that of this worker. `library` is the
/// simulated NVML. A driver that hangs is used after its start; until then no board answers.
pub fn open_in_helper(program: &Path, library: Option<&Path>) -> Result<Gpus, GpuError> {
    let (helper, path) = (program.to_owned(), library.map(Path::to_owned));
    let start = move || NvmlHelper::start(helper.clone(), path.clone()).map(NvmlAccess::Helper);
    let gpus = Startup::begin(START, start).map(Gpus::with_access)?;
    let reset_program = match library {
        Some(_) => Some(simulation::reset_program(program.to_owned())),
        None => ResetProgram::find(),
    };
    Ok(Gpus { reset_program, ..gpus })
}

impl Gpus {
    /// Loads NVML from the host, or from the given library, into this process, which cannot reset a board. A library
    /// that hangs is used after its start; until then no board answers.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let path = library.map(Path::to_owned);
        let start =
            move || Library::open(path.as_deref()).map(|library| NvmlAccess::InProcess(Box::new(library)));
        Startup::begin(START, start).map(Self::with_access)
    }

    fn with_access(access: Arc<Startup<NvmlAccess>>) -> Self {
        Self {
            calls: NvmlCalls::new(access),
            inventory: Inventory::default(),
            reset_program: None,
            event_gaps: AtomicU64::new(1),
        }
    }

    /// A host whose NVML never starts, for tests.
    pub fn absent() -> Self {
        Self::with_access(Arc::default())
    }

    /// True if NVML has started.
    pub fn has_started(&self) -> bool {
        self.calls.has_started()
    }

    /// The same GPUs with other deadlines.
    #[must_use]
    pub fn with_deadlines(mut self, deadlines: Deadlines) -> Self {
        self.calls.deadlines = deadlines;
        self
    }

    /// The same GPUs with another program for resets.
    #[must_use]
    pub fn with_reset_program(self, program: ResetProgram) -> Self {
        Self { reset_program: Some(program), ..self }
    }

    pub fn driver_version(&self) -> Result<String, GpuError> {
        self.inventory.driver_version(&self.calls)
    }

    /// The known boards by index, with their last answers, without a call.
    pub fn known_boards(&self) -> Vec<BoardInfo> {
        self.inventory.known_boards()
    }

    /// True if the last inventory left out boards that may answer later: they have neither answered nor refused since
    /// the start.
    pub fn is_incomplete(&self) -> bool {
        self.inventory.is_incomplete()
    }

    /// Every board with its slices. A board that does not answer has its last answer and the reason for its silence;
    /// one that has never answered is left out. It takes a few seconds at most.
    pub fn inventory(&self) -> Result<Vec<BoardInfo>, GpuError> {
        self.inventory.list(&self.calls)
    }

    /// The slices of a board, by start.
    pub fn slices(&self, gpu_uuid: &str) -> Result<Vec<Slice>, GpuError> {
        // The listener of events calls this, and a reset waits for the listener.
        self.calls.change_now(gpu_uuid, ListSlices { gpu_uuid: gpu_uuid.to_owned() })
    }

    /// Switches MIG mode unless it is so already. A board in use is tried again for a time. After an error no change
    /// of the mode is pending.
    ///
    /// # Errors
    /// `InUse` or `ResetRequired` with the present mode, `ModePending` if a pending mode stays.
    pub fn set_mig(&self, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
        let request = SetMig { gpu_uuid: gpu_uuid.to_owned(), on, waiting: WaitingMode::Withdraw };
        self.calls.change(gpu_uuid, request)
    }

    /// Creates the instance of this profile at this start.
    ///
    /// # Errors
    /// `InUse` if the instance exists.
    pub fn create_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
        self.calls.change(gpu_uuid, CreateSlice { gpu_uuid: gpu_uuid.to_owned(), profile_id, start })
    }

    /// Destroys the instance of this profile at this start if the driver's id of it is `own`. `None`: the id is not
    /// known, because the creator ended before it recorded the id. An absent instance is no error.
    pub fn destroy_slice(
        &self,
        gpu_uuid: &str,
        profile_id: u32,
        start: u32,
        own: Option<u32>,
    ) -> Result<(), GpuError> {
        self.calls.change(gpu_uuid, DestroySlice { gpu_uuid: gpu_uuid.to_owned(), profile_id, start, own })
    }

    /// The node numbers of a board, or of the instance at a start.
    pub fn device_numbers(&self, gpu_uuid: &str, start: Option<u32>) -> Result<DeviceNumbers, GpuError> {
        self.calls.change(gpu_uuid, FindDeviceNumbers { gpu_uuid: gpu_uuid.to_owned(), start })
    }

    /// The ids of the instance profiles of a board, each with its memory in MiB.
    pub fn profiles(&self, gpu_uuid: &str) -> Result<Vec<(u32, u64)>, GpuError> {
        self.calls.read(gpu_uuid, ListProfiles { gpu_uuid: gpu_uuid.to_owned() })
    }

    /// The names of the instance profiles of a board by their ids, such as 1g.10gb.
    pub fn profile_names(&self, gpu_uuid: &str) -> Result<Vec<(u32, String)>, GpuError> {
        self.calls.read(gpu_uuid, ListProfileNames { gpu_uuid: gpu_uuid.to_owned() })
    }

    /// Reads a board and its slices from an earlier inventory.
    pub fn snapshot(&self, info: &BoardInfo) -> Result<BoardSnapshot, GpuError> {
        self.calls.read(&info.uuid, ReadSnapshot { board: info.clone() })
    }

    /// Reads many boards in parallel, in their order. A board without an answer in time is unresponsive.
    pub fn snapshots(&self, infos: &[BoardInfo]) -> Vec<Result<BoardSnapshot, GpuError>> {
        let begin = |info: &BoardInfo| {
            self.calls.start(&info.uuid, self.calls.deadlines.read, ReadSnapshot { board: info.clone() })
        };
        let begun: Vec<_> = infos.iter().map(begin).collect();
        let by = Instant::now() + PATIENCE;
        let result = |call: Option<PendingCall<_>>| call.and_then(|call| call.wait_until(by));
        begun.into_iter().map(|call| result(call).unwrap_or(Err(GpuError::Unresponsive))).collect()
    }

    /// The processes of any kind on a board, or on a MIG device of it. It waits for the end of a reset, so no attempt
    /// counts as unclean because another board is reset.
    pub fn holders(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Result<Vec<u32>, GpuError> {
        let device_uuid = mig_uuid.unwrap_or(gpu_uuid).to_owned();
        self.calls.read_after_reset(gpu_uuid, ListHolders { device_uuid })
    }

    /// True if a board, or a slice of it, answers. The state of a board with a hanging call is unknown.
    pub fn presence(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Presence {
        let request = FindPresence { gpu_uuid: gpu_uuid.to_owned(), mig_uuid: mig_uuid.map(str::to_owned) };
        self.calls.read(gpu_uuid, request).unwrap_or(Presence::Unknown)
    }

    /// Reads a board, or a slice of it.
    pub fn read(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Result<Reading, GpuError> {
        let request = ReadDevice { gpu_uuid: gpu_uuid.to_owned(), mig_uuid: mig_uuid.map(str::to_owned) };
        self.calls.read(gpu_uuid, request)
    }

    /// The conditions of all known boards; without boards whose condition is unknown during a reset.
    pub fn conditions(&self) -> Vec<(String, BoardCondition)> {
        let boards = self.known_boards();
        let with_condition = |board: &BoardInfo| {
            let mut condition = read_condition(&self.calls, &board.uuid)?;
            let capability = condition.description.compute_capability.as_deref();
            condition.description.reset_group = reset_group(&boards, &board.uuid, capability);
            Some((board.uuid.clone(), condition))
        };
        boards.iter().filter_map(with_condition).collect()
    }

    /// Proves a board fit for work: it answers, no process is on it, its memory is free, and nothing waits for a
    /// reset.
    ///
    /// # Errors
    /// The complaints, as sentences.
    pub fn check(&self, gpu_uuid: &str) -> Result<(), String> {
        let complaints = self.calls.change(gpu_uuid, CheckBoard { gpu_uuid: gpu_uuid.to_owned() });
        let complaints = complaints.map_err(|error| silence_reason(&error))?;
        if complaints.is_empty() { Ok(()) } else { Err(complaints.join(" ")) }
    }

    /// MiB in use on a board. It waits for the end of a reset.
    pub fn used_mib(&self, gpu_uuid: &str) -> Result<u64, GpuError> {
        self.calls.read_after_reset(gpu_uuid, ReadUsedMib { gpu_uuid: gpu_uuid.to_owned() })
    }
}

fn read_condition(calls: &NvmlCalls, gpu_uuid: &str) -> Option<BoardCondition> {
    let condition = match calls.read(gpu_uuid, ReadCondition { gpu_uuid: gpu_uuid.to_owned() }) {
        // A hanging change is as bad as a hanging reading.
        Ok(_) if calls.is_stuck(&changes(gpu_uuid)) => BoardCondition::silent(&GpuError::Unresponsive),
        Ok(condition) => condition,
        // The board is neither silent nor lost.
        Err(GpuError::Resetting) => return None,
        Err(error) => BoardCondition::silent(&error),
    };
    Some(condition)
}
