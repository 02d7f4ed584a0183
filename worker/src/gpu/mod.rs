//! The GPUs of this host through NVML: what there is, how boards are joined, MIG instances,
//! processes, readings, health.
//!
//! One path for real boards and simulated ones; only the library that is loaded differs. Knows
//! nothing of jobs or the portal. Every call blocks, but none longer than its deadline: one that hangs
//! makes its board unresponsive and holds up nothing else (`lanes`).

mod events;
mod health;
mod lanes;
mod library;
mod mig;
mod nvlink;
mod readings;
mod whole;
pub mod xids;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;

pub use events::{Happening, What, watch};
pub use health::{Condition, Counts, Facts, complaints, is_given_back};
pub use readings::{Presence, Reading};
pub use whole::{BoardRead, SliceRead};

use crate::device_nodes;
use lanes::{Lanes, Pending};
use library::{Library, lock};

/// The lane of what is no board's.
const HOST: &str = "host";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    #[error("it is in use")]
    InUse,
    #[error("there is no device {0}")]
    NotFound(String),
    #[error("the board does not support this")]
    NotSupported,
    #[error("the driver finds no room for it")]
    Insufficient,
    #[error("the board must be reset before its MIG mode changes")]
    ResetRequired,
    #[error("the board has fallen off the bus")]
    Lost,
    #[error("NVML does not answer for the board")]
    Unresponsive,
    #[error("NVML: {0}")]
    Nvml(String),
}

impl From<NvmlError> for GpuError {
    fn from(error: NvmlError) -> Self {
        match error {
            NvmlError::InUse => Self::InUse,
            NvmlError::NotFound => Self::NotFound(String::new()),
            NvmlError::NotSupported => Self::NotSupported,
            NvmlError::ResetRequired => Self::ResetRequired,
            NvmlError::GpuLost => Self::Lost,
            NvmlError::UnexpectedVariant(code) => from_code(code),
            other => Self::Nvml(other.to_string()),
        }
    }
}

/// An error from NVML's own number; the wrapper does not map all of them.
fn from_code(code: u32) -> GpuError {
    match code {
        3 => GpuError::NotSupported,
        6 => GpuError::NotFound(String::new()),
        15 => GpuError::Lost,
        16 => GpuError::ResetRequired,
        19 => GpuError::InUse,
        23 => GpuError::Insufficient,
        other => GpuError::Nvml(format!("error {other}")),
    }
}

/// Why a board does not answer, as a sentence.
fn sentence(error: &GpuError) -> String {
    match error {
        GpuError::Lost => "It has fallen off the bus.".to_owned(),
        GpuError::Unresponsive => "NVML does not answer for it.".to_owned(),
        other => format!("NVML cannot look at it: {other}."),
    }
}

/// One board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoardInfo {
    pub index: u32,
    pub uuid: String,
    pub name: String,
    pub memory_mib: u64,
    pub mig_enabled: bool,
    /// Boards of one number, from 1 on, reach each other by NVLink; 0 reaches no other.
    pub nvlink_island: u32,
    pub slices: Vec<Slice>,
    /// Why it does not answer; then the rest is as it was when it did.
    pub silent: Option<String>,
}

/// A GPU instance with the compute instance that fills it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    pub gi: u32,
    pub profile_id: u32,
    /// Memory slices `start .. start + size`.
    pub start: u32,
    pub size: u32,
    /// Absent while it has no compute instance.
    pub mig_uuid: Option<String>,
    pub memory_mib: u64,
}

/// How long a reading of all boards waits for one of them. Later it is left out, and still has its deadline.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long a call may take before its board counts as unresponsive.
#[derive(Debug, Clone, Copy)]
pub struct Deadlines {
    /// For a call that only looks.
    pub look: Duration,
    /// For one that makes or destroys an instance, or changes a mode.
    pub change: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { look: Duration::from_secs(5), change: Duration::from_secs(30) }
    }
}

/// The GPUs of this host.
pub struct Gpus {
    library: Arc<Library>,
    lanes: Lanes,
    deadlines: Deadlines,
    /// Boards as they were when they answered last, by index.
    seen: Mutex<BTreeMap<u32, BoardInfo>>,
    /// Where the links of each board led when it answered last.
    links: Mutex<HashMap<String, nvlink::Links>>,
    /// Boards that did not answer the last inventory.
    unheard: Mutex<Vec<String>>,
}

impl Gpus {
    /// Loads NVML: the host's own, or the given library.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        Ok(Self {
            library: Arc::new(Library::open(library)?),
            lanes: Lanes::default(),
            deadlines: Deadlines::default(),
            seen: Mutex::default(),
            links: Mutex::default(),
            unheard: Mutex::default(),
        })
    }

    /// The same with other deadlines.
    #[must_use]
    pub fn with_deadlines(self, deadlines: Deadlines) -> Self {
        Self { deadlines, ..self }
    }

    fn ask<T: Send + 'static>(
        &self,
        lane: &str,
        limit: Duration,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let library = self.library.clone();
        self.lanes.run(lane, limit, move || call(&library)).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// Looks at a board.
    fn look<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        self.ask(gpu_uuid, self.deadlines.look, call)
    }

    /// Changes what is on a board, or looks at what a change would disturb: one at a time.
    fn change<T: Send + 'static>(
        &self,
        gpu_uuid: &str,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        // A board that does not even answer is not changed.
        if self.lanes.is_stuck(gpu_uuid) {
            return Err(GpuError::Unresponsive);
        }
        self.ask(&changes(gpu_uuid), self.deadlines.change, call)
    }

    pub fn driver_version(&self) -> Result<String, GpuError> {
        self.ask(HOST, self.deadlines.look, |library| Ok(library.nvml.sys_driver_version()?))
    }

    /// The boards that are known, by index, without asking anybody.
    pub fn known(&self) -> Vec<String> {
        lock(&self.seen).values().map(|board| board.uuid.clone()).collect()
    }

    /// The boards that were told of as they had been, when everything was listed last.
    pub fn unheard(&self) -> Vec<String> {
        lock(&self.unheard).clone()
    }

    /// Every board with what is on it. One that does not answer is as it was, and says why.
    pub fn inventory(&self) -> Result<Vec<BoardInfo>, GpuError> {
        let boards = self.look_at_all()?;
        let silent = boards.iter().filter(|board| board.silent.is_some());
        *lock(&self.unheard) = silent.map(|board| board.uuid.clone()).collect();
        Ok(boards)
    }

    /// The same, for who tells the portal nothing of it: what the portal has not heard stays so.
    pub fn look_at_all(&self) -> Result<Vec<BoardInfo>, GpuError> {
        let count = match self.ask(HOST, self.deadlines.look, |library| Ok(library.nvml.device_count()?)) {
            Ok(count) => count,
            Err(error) => {
                let seen = lock(&self.seen);
                let silent = |board: &BoardInfo| silenced(board, &error);
                return if seen.is_empty() {
                    Err(error.clone())
                } else {
                    Ok(seen.values().map(silent).collect())
                };
            }
        };
        // All at once: several that hang take no longer than one, while a session waits for this.
        let found: Vec<(BoardInfo, nvlink::Links)> = std::thread::scope(|scope| {
            let begin = |index: u32| {
                let look = move || self.linked_board(index);
                std::thread::Builder::new().spawn_scoped(scope, look).map_err(|_| index)
            };
            let begun: Vec<_> = (0..count).map(begin).collect();
            let ended = begun.into_iter().filter_map(|thread| match thread {
                Ok(thread) => thread.join().ok().flatten(),
                Err(index) => self.linked_board(index),
            });
            ended.collect()
        });
        // An island is a matter of all boards: each only tells where its own links lead.
        let (mut boards, links): (Vec<BoardInfo>, Vec<nvlink::Links>) = found.into_iter().unzip();
        for (board, island) in boards.iter_mut().zip(nvlink::islands(&links)) {
            board.nvlink_island = island;
        }
        let mut seen = lock(&self.seen);
        for board in boards.iter().filter(|board| board.silent.is_none()) {
            seen.insert(board.index, board.clone());
        }
        Ok(boards)
    }

    /// The board at an index, and where its links lead.
    fn linked_board(&self, index: u32) -> Option<(BoardInfo, nvlink::Links)> {
        let board = self.board(index)?;
        let links = self.links(&board);
        Some((board, links))
    }

    /// The board at an index. One that cannot be looked at must not take the others with it.
    fn board(&self, index: u32) -> Option<BoardInfo> {
        let known = lock(&self.seen).get(&index).cloned();
        let lane = known.as_ref().map_or_else(|| format!("board {index}"), |board| board.uuid.clone());
        let asked = self.ask(&lane, self.deadlines.look, move |library| library.uuid_at(index));
        let asked = asked.and_then(|uuid| {
            let of = uuid.clone();
            self.change(&uuid, move |library| library.board(index, &of))
        });
        match (asked, known) {
            (Ok(board), _) => Some(board),
            (Err(error), Some(known)) => Some(silenced(&known, &error)),
            (Err(error), None) => {
                tracing::warn!(index, %error, "a board is left out");
                None
            }
        }
    }

    /// Where a board's links lead; where they led, if it does not answer.
    fn links(&self, board: &BoardInfo) -> nvlink::Links {
        let uuid = board.uuid.clone();
        if board.silent.is_none()
            && let Ok(links) = self.look(&board.uuid, move |library| library.links(&uuid))
        {
            lock(&self.links).insert(board.uuid.clone(), links.clone());
            return links;
        }
        lock(&self.links).get(&board.uuid).cloned().unwrap_or_default()
    }

    /// What is on one board, by start.
    pub fn slices(&self, gpu_uuid: &str) -> Result<Vec<Slice>, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.change(gpu_uuid, move |library| library.slices(&gpu))
    }

    /// Switches MIG mode where it is not so already.
    pub fn set_mig(&self, gpu_uuid: &str, on: bool) -> Result<(), GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.change(gpu_uuid, move |library| library.set_mig(&gpu, on))
    }

    /// Makes the instance of this profile at this start; in use when there is one.
    pub fn create_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<Slice, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.change(gpu_uuid, move |library| library.create_slice(&gpu, profile_id, start))
    }

    /// Destroys the instance of this profile at this start; nothing happens when there is none.
    pub fn destroy_slice(&self, gpu_uuid: &str, profile_id: u32, start: u32) -> Result<(), GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.change(gpu_uuid, move |library| library.destroy_slice(&gpu, profile_id, start))
    }

    /// What a device is among the host's nodes: a board, or with a start the instance that is there.
    pub fn node(&self, gpu_uuid: &str, start: Option<u32>) -> Result<device_nodes::Wanted, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.change(gpu_uuid, move |library| library.node(&gpu, start))
    }

    /// The ids of the instance profiles that the driver offers on a board, each with its memory in MiB.
    pub fn profiles(&self, gpu_uuid: &str) -> Result<Vec<(u32, u64)>, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.look(gpu_uuid, move |library| mig::profiles(library.nvml.lib(), &library.device(&gpu)?))
    }

    /// The names of a board's GPU instance profiles by their ids, such as 1g.10gb.
    pub fn profile_names(&self, gpu_uuid: &str) -> Result<Vec<(u32, String)>, GpuError> {
        let gpu = gpu_uuid.to_owned();
        self.look(gpu_uuid, move |library| mig::profile_names(library.nvml.lib(), &library.device(&gpu)?))
    }

    /// Reads a board and its slices as they were found earlier.
    pub fn read_whole(&self, info: &BoardInfo) -> Result<BoardRead, GpuError> {
        let board = info.clone();
        self.look(&info.uuid, move |library| library.read_whole(&board))
    }

    /// The same of many boards at once, in their order: each holds up nobody, and one that has no answer in time is
    /// left out as unresponsive.
    pub fn read_all(&self, infos: &[BoardInfo]) -> Vec<Result<BoardRead, GpuError>> {
        let begin = |info: &BoardInfo| {
            let (library, board) = (self.library.clone(), info.clone());
            self.lanes.start(&info.uuid, self.deadlines.look, move || library.read_whole(&board))
        };
        let begun: Vec<_> = infos.iter().map(begin).collect();
        let by = Instant::now() + PATIENCE;
        let answer = |call: Option<Pending<_>>| call.and_then(|call| call.by(by));
        begun.into_iter().map(|call| answer(call).unwrap_or(Err(GpuError::Unresponsive))).collect()
    }

    /// The compute processes on a board, or on a MIG device of it.
    pub fn holders(&self, gpu_uuid: &str, mig_uuid: Option<&str>) -> Result<Vec<u32>, GpuError> {
        let device = mig_uuid.unwrap_or(gpu_uuid).to_owned();
        self.look(gpu_uuid, move |library| library.holders(&device))
    }
}

/// The lane for changes of a board.
fn changes(gpu_uuid: &str) -> String {
    format!("{gpu_uuid} changes")
}

fn silenced(board: &BoardInfo, error: &GpuError) -> BoardInfo {
    BoardInfo { silent: Some(sentence(error)), ..board.clone() }
}
