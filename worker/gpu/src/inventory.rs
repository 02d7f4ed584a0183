//! The list of all boards, with the last answer of each.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use berth_system::sync::lock;

use super::board::BoardInfo;
use super::calls::{NvmlCalls, changes};
use super::error::GpuError;
use super::nvlink::{self, Links};
use super::requests::{CountBoards, FindUuid, ReadBoard, ReadDriverVersion, ReadLinks};

/// The wait for known boards. A later answer is left out, although its call keeps its own deadline.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);
/// The wait for unknown boards, in addition to the deadline of a reading. With it the hello of a session is ready
/// before the portal gives the session up.
const SLACK: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Inventory {
    /// The last answer of each board, by index.
    boards: Mutex<BTreeMap<u32, BoardInfo>>,
    /// The last known links of each board.
    links: Mutex<HashMap<String, Links>>,
    driver: Mutex<Option<String>>,
    /// The last listing left out boards that did not answer in time.
    incomplete: AtomicBool,
}

impl Inventory {
    pub fn driver_version(&self, calls: &NvmlCalls) -> Result<String, GpuError> {
        if let Some(known) = lock(&self.driver).clone() {
            return Ok(known);
        }
        let version = calls.read_host(ReadDriverVersion {});
        version.inspect(|version| *lock(&self.driver) = Some(version.clone()))
    }

    /// The known boards by index, with their last answers, without a call.
    pub fn known_boards(&self) -> Vec<BoardInfo> {
        lock(&self.boards).values().cloned().collect()
    }

    pub fn is_incomplete(&self) -> bool {
        self.incomplete.load(Ordering::SeqCst)
    }

    /// The end of the wait for so many boards.
    fn wait_until(&self, calls: &NvmlCalls, begun: Instant, count: usize) -> Instant {
        let known = lock(&self.boards).len();
        begun + if known > 0 && known >= count { PATIENCE } else { calls.deadlines.read + SLACK }
    }

    /// The known boards, all silent for the same reason.
    fn all_silent(&self, error: &GpuError) -> Result<Vec<BoardInfo>, GpuError> {
        let boards = lock(&self.boards);
        self.incomplete.store(boards.is_empty(), Ordering::SeqCst);
        if boards.is_empty() {
            Err(error.clone())
        } else {
            Ok(boards.values().map(|board| board.silenced(error)).collect())
        }
    }

    pub fn list(&self, calls: &NvmlCalls) -> Result<Vec<BoardInfo>, GpuError> {
        let begun = Instant::now();
        let counted = calls.read_host_until(self.wait_until(calls, begun, 0), CountBoards {});
        let (driver, count) = match counted {
            Ok(counted) => counted,
            Err(error) => return self.all_silent(&error),
        };
        if driver.is_some() {
            *lock(&self.driver) = driver;
        }
        let by = self.wait_until(calls, begun, usize::try_from(count).unwrap_or(usize::MAX));
        // In parallel: several hanging boards take no longer than one, and a session waits for the result.
        let results: Vec<Result<(BoardInfo, Links), GpuError>> = std::thread::scope(|scope| {
            let begin = |index: u32| {
                let read = move || self.linked_board(calls, index, by);
                std::thread::Builder::new().spawn_scoped(scope, read).map_err(|_| index)
            };
            let begun: Vec<_> = (0..count).map(begin).collect();
            let ended = begun.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or(Err(GpuError::Unresponsive)),
                Err(index) => self.linked_board(calls, index, by),
            });
            ended.collect()
        });
        let hangs = results.iter().any(|result| matches!(result, Err(GpuError::Unresponsive)));
        self.incomplete.store(hangs, Ordering::SeqCst);
        let found = results.into_iter().filter_map(Result::ok);
        // An island follows from the links of all boards.
        let (mut boards, links): (Vec<BoardInfo>, Vec<Links>) = found.unzip();
        for (board, island) in boards.iter_mut().zip(nvlink::islands(&links)) {
            board.nvlink_island = island;
        }
        let mut answered = lock(&self.boards);
        for board in boards.iter().filter(|board| board.silent.is_none()) {
            answered.insert(board.index, board.clone());
        }
        Ok(boards)
    }

    fn linked_board(
        &self,
        calls: &NvmlCalls,
        index: u32,
        by: Instant,
    ) -> Result<(BoardInfo, Links), GpuError> {
        let board = self.board(calls, index, by)?;
        let links = self.links(calls, &board, by);
        Ok((board, links))
    }

    /// The board at an index. The failure of one board must not hide the others.
    fn board(&self, calls: &NvmlCalls, index: u32, by: Instant) -> Result<BoardInfo, GpuError> {
        let known = lock(&self.boards).get(&index).cloned();
        let executor = known.as_ref().map_or_else(|| format!("board {index}"), |board| board.uuid.clone());
        let uuid = calls.run_until(&executor, calls.deadlines.read, by, FindUuid { index });
        let board = uuid.and_then(|uuid| {
            // A board that answers no reading gets no change, and nobody waits for it behind a change.
            if calls.is_stuck(&uuid) {
                return Err(GpuError::Unresponsive);
            }
            let executor = changes(&uuid);
            calls.run_until(&executor, calls.deadlines.change, by, ReadBoard { index, gpu_uuid: uuid })
        });
        match (board, known) {
            (Ok(board), _) => Ok(board),
            (Err(error), Some(known)) => Ok(known.silenced(&error)),
            (Err(error), None) => {
                tracing::warn!(index, %error, "a board is not readable and is ignored");
                Err(error)
            }
        }
    }

    /// The links of a board, or its last known ones if it does not answer.
    fn links(&self, calls: &NvmlCalls, board: &BoardInfo, by: Instant) -> Links {
        let request = ReadLinks { gpu_uuid: board.uuid.clone() };
        if board.silent.is_none()
            && let Ok(links) = calls.run_until(&board.uuid, calls.deadlines.read, by, request)
        {
            lock(&self.links).insert(board.uuid.clone(), links.clone());
            return links;
        }
        lock(&self.links).get(&board.uuid).cloned().unwrap_or_default()
    }
}
