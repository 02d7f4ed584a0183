//! The GPUs of this host through NVML: what there is, how boards are joined, MIG instances,
//! processes, readings, health.
//!
//! One path for real boards and simulated ones; only the library that is loaded differs. Knows
//! nothing of jobs or the portal. Every call blocks, but none longer than its deadline: one that hangs
//! makes its board unresponsive and holds up nothing else (`lanes`).

mod events;
mod health;
mod holders;
mod lanes;
mod library;
mod mig;
mod nvlink;
mod readings;
mod starting;
mod whole;
pub mod xids;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
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
use starting::Starting;

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

/// How long a look at all boards waits for one of them that is known. Later it is left out, and still has its
/// deadline.
const PATIENCE: Duration = Duration::from_secs(2);
/// What an inventory waits for boards that nobody knows yet, besides the deadline of a look. With it a
/// session's first message is there before the portal gives the session up.
const SLACK: Duration = Duration::from_secs(1);
/// How long NVML's own start is waited for.
const START: Duration = Duration::from_secs(15);

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
    library: Arc<Starting<Library>>,
    lanes: Lanes,
    deadlines: Deadlines,
    /// Boards as they were when they answered last, by index.
    seen: Mutex<BTreeMap<u32, BoardInfo>>,
    /// Where the links of each board led when it answered last.
    links: Mutex<HashMap<String, nvlink::Links>>,
    driver: Mutex<Option<String>>,
    /// The last inventory left out boards that did not answer in time.
    incomplete: AtomicBool,
}

impl Gpus {
    /// Loads NVML: the host's own, or the given library. One that hangs meanwhile is used when it has started;
    /// until then no board answers.
    pub fn open(library: Option<&Path>) -> Result<Self, GpuError> {
        let path = library.map(Path::to_owned);
        Starting::begin(START, move || Library::open(path.as_deref())).map(Self::over)
    }

    fn over(library: Arc<Starting<Library>>) -> Self {
        Self {
            library,
            lanes: Lanes::default(),
            deadlines: Deadlines::default(),
            seen: Mutex::default(),
            links: Mutex::default(),
            driver: Mutex::default(),
            incomplete: AtomicBool::new(false),
        }
    }

    /// Of a host whose NVML never starts.
    #[cfg(test)]
    pub(crate) fn absent() -> Self {
        Self::over(Arc::default())
    }

    /// Whether NVML has started.
    pub fn has_started(&self) -> bool {
        self.library.get().is_some()
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
        let library = self.library.get().ok_or(GpuError::Unresponsive)?;
        self.lanes.run(lane, limit, move || call(&library)).unwrap_or(Err(GpuError::Unresponsive))
    }

    /// The same for whoever waits no longer than until then.
    fn ask_by<T: Send + 'static>(
        &self,
        lane: &str,
        limit: Duration,
        by: Instant,
        call: impl FnOnce(&Library) -> Result<T, GpuError> + Send + 'static,
    ) -> Result<T, GpuError> {
        let library = self.library.get().ok_or(GpuError::Unresponsive)?;
        let pending = self.lanes.start(lane, limit, move || call(&library));
        pending.and_then(|call| call.by(by)).unwrap_or(Err(GpuError::Unresponsive))
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
        if let Some(known) = lock(&self.driver).clone() {
            return Ok(known);
        }
        let asked = self.ask(HOST, self.deadlines.look, |library| Ok(library.nvml.sys_driver_version()?));
        asked.inspect(|version| *lock(&self.driver) = Some(version.clone()))
    }

    /// The boards that are known, by index, without asking anybody.
    pub fn known(&self) -> Vec<String> {
        lock(&self.seen).values().map(|board| board.uuid.clone()).collect()
    }

    /// Whether the last inventory left out boards that may answer yet: they have not since the start, nor refused.
    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::SeqCst)
    }

    /// Until when an inventory that began then waits for so many boards.
    fn patience(&self, begun: Instant, count: usize) -> Instant {
        let known = lock(&self.seen).len();
        begun + if known > 0 && known >= count { PATIENCE } else { self.deadlines.look + SLACK }
    }

    /// Every board with what is on it. One that does not answer is as it was, and says why; one that has never
    /// answered is left out. It takes a few seconds at most, whatever hangs.
    pub fn inventory(&self) -> Result<Vec<BoardInfo>, GpuError> {
        let begun = Instant::now();
        let counted = self.ask_by(HOST, self.deadlines.look, self.patience(begun, 0), |library| {
            Ok((library.nvml.sys_driver_version().ok(), library.nvml.device_count()?))
        });
        let (driver, count) = match counted {
            Ok(counted) => counted,
            Err(error) => {
                let seen = lock(&self.seen);
                self.incomplete.store(seen.is_empty(), Ordering::SeqCst);
                let silent = |board: &BoardInfo| silenced(board, &error);
                return if seen.is_empty() {
                    Err(error.clone())
                } else {
                    Ok(seen.values().map(silent).collect())
                };
            }
        };
        if driver.is_some() {
            *lock(&self.driver) = driver;
        }
        let by = self.patience(begun, usize::try_from(count).unwrap_or(usize::MAX));
        // All at once: several that hang take no longer than one, while a session waits for this.
        let looked: Vec<Result<(BoardInfo, nvlink::Links), GpuError>> = std::thread::scope(|scope| {
            let begin = |index: u32| {
                let look = move || self.linked_board(index, by);
                std::thread::Builder::new().spawn_scoped(scope, look).map_err(|_| index)
            };
            let begun: Vec<_> = (0..count).map(begin).collect();
            let ended = begun.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or(Err(GpuError::Unresponsive)),
                Err(index) => self.linked_board(index, by),
            });
            ended.collect()
        });
        let hangs = looked.iter().any(|looked| matches!(looked, Err(GpuError::Unresponsive)));
        self.incomplete.store(hangs, Ordering::SeqCst);
        let found = looked.into_iter().filter_map(Result::ok);
        // An island is a matter of all boards: each only tells where its own links lead.
        let (mut boards, links): (Vec<BoardInfo>, Vec<nvlink::Links>) = found.unzip();
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
    fn linked_board(&self, index: u32, by: Instant) -> Result<(BoardInfo, nvlink::Links), GpuError> {
        let board = self.board(index, by)?;
        let links = self.links(&board, by);
        Ok((board, links))
    }

    /// The board at an index. One that cannot be looked at must not take the others with it.
    fn board(&self, index: u32, by: Instant) -> Result<BoardInfo, GpuError> {
        let known = lock(&self.seen).get(&index).cloned();
        let lane = known.as_ref().map_or_else(|| format!("board {index}"), |board| board.uuid.clone());
        let asked = self.ask_by(&lane, self.deadlines.look, by, move |library| library.uuid_at(index));
        let asked = asked.and_then(|uuid| {
            // A board that does not even answer is not changed, nor is it waited for behind a change.
            if self.lanes.is_stuck(&uuid) {
                return Err(GpuError::Unresponsive);
            }
            let of = uuid.clone();
            let look = move |library: &Library| library.board(index, &of);
            self.ask_by(&changes(&uuid), self.deadlines.change, by, look)
        });
        match (asked, known) {
            (Ok(board), _) => Ok(board),
            (Err(error), Some(known)) => Ok(silenced(&known, &error)),
            (Err(error), None) => {
                tracing::warn!(index, %error, "a board is left out");
                Err(error)
            }
        }
    }

    /// Where a board's links lead; where they led, if it does not answer.
    fn links(&self, board: &BoardInfo, by: Instant) -> nvlink::Links {
        let uuid = board.uuid.clone();
        if board.silent.is_none()
            && let Ok(links) =
                self.ask_by(&board.uuid, self.deadlines.look, by, move |library| library.links(&uuid))
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
            let (library, board) = (self.library.get()?, info.clone());
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
