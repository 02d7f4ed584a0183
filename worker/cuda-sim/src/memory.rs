//! The memory of a board: its content as ranges, and the allocations of processes.

use std::collections::BTreeMap;

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The address of the first byte of a board.
const BASE: u64 = 0x7000_0000_0000;
/// The alignment of allocations.
const ALIGNMENT: u64 = 512;
/// The most bytes of one copy.
const MAX_COPY_BYTES: u64 = 16 << 20;

/// The content of a range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Content {
    /// The byte at a place is that of the place modulo 4.
    Word([u8; 4]),
    Bytes(Vec<u8>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Extent {
    bytes: u64,
    content: Content,
}

impl Extent {
    /// The part from `from` to `until`, relative to the begin.
    fn part(&self, from: u64, until: u64) -> Self {
        let bytes = until.saturating_sub(from);
        let content = match &self.content {
            Content::Word(word) => Content::Word(*word),
            Content::Bytes(data) => {
                let range = usize::try_from(from).unwrap_or(0)..usize::try_from(until).unwrap_or(0);
                Content::Bytes(data.get(range).unwrap_or_default().to_vec())
            }
        };
        Self { bytes, content }
    }

    /// The byte at a place of the board; the extent begins at `start`.
    fn byte(&self, start: u64, place: u64) -> u8 {
        let found = match &self.content {
            Content::Word(word) => word.get((place % 4) as usize),
            Content::Bytes(data) => data.get(usize::try_from(place.saturating_sub(start)).unwrap_or(0)),
        };
        found.copied().unwrap_or_default()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Allocation {
    bytes: u64,
    pid: u32,
}

/// The memory of a board, as its file has it. Memory that was never written is zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoardMemory {
    extents: BTreeMap<u64, Extent>,
    allocations: BTreeMap<u64, Allocation>,
}

/// The memory of a device of a board: that of the board between two places.
#[derive(Debug, Clone)]
pub struct Memory {
    pub board: BoardMemory,
    pub start: u64,
    pub end: u64,
}

fn is_alive(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    kill(Pid::from_raw(pid), None) != Err(Errno::ESRCH)
}

impl Memory {
    /// Frees the memory of ended processes, as a driver does.
    pub fn free_ended(&mut self) {
        self.board.allocations.retain(|_, allocation| is_alive(allocation.pid));
    }

    /// Frees all memory of a process on this device.
    pub fn free_all(&mut self, pid: u32) {
        let places = self.start..self.end;
        self.board.allocations.retain(|at, found| found.pid != pid || !places.contains(at));
    }

    /// The free gaps of the device: begin and end.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let (mut out, mut at) = (Vec::new(), self.start);
        for (begin, allocation) in self.board.allocations.range(self.start..self.end) {
            out.push((at, *begin));
            at = (begin + allocation.bytes).next_multiple_of(ALIGNMENT);
        }
        out.push((at, self.end));
        out.retain(|(from, until)| from < until);
        out
    }

    pub fn free_bytes(&self) -> u64 {
        self.gaps().iter().map(|(from, until)| until - from).sum()
    }

    /// Allocates memory, with the content that it has.
    pub fn allocate(&mut self, bytes: u64, pid: u32) -> Result<u64, Fault> {
        if bytes == 0 {
            return Err(Fault::InvalidValue);
        }
        let fits = |(from, until): &(u64, u64)| until - from >= bytes;
        let (at, _) = self.gaps().into_iter().find(fits).ok_or(Fault::OutOfMemory)?;
        self.board.allocations.insert(at, Allocation { bytes, pid });
        Ok(BASE + at)
    }

    pub fn free(&mut self, address: u64, pid: u32) -> Result<(), Fault> {
        let at = address.checked_sub(BASE).ok_or(Fault::InvalidValue)?;
        if self.board.allocations.get(&at).is_none_or(|found| found.pid != pid) {
            return Err(Fault::InvalidValue);
        }
        self.board.allocations.remove(&at);
        Ok(())
    }

    /// The place of a range inside one allocation of a process.
    fn place(&self, address: u64, bytes: u64, pid: u32) -> Result<u64, Fault> {
        let at = address.checked_sub(BASE).ok_or(Fault::InvalidValue)?;
        let end = at.checked_add(bytes).ok_or(Fault::InvalidValue)?;
        let below = self.board.allocations.range(..=at).next_back();
        let holds = below.is_some_and(|(begin, found)| found.pid == pid && end <= begin + found.bytes);
        if holds { Ok(at) } else { Err(Fault::InvalidValue) }
    }

    /// Removes the content of a range.
    fn cut(&mut self, from: u64, until: u64) {
        let extents = &mut self.board.extents;
        let overlaps = |(at, extent): &(&u64, &Extent)| **at + extent.bytes > from;
        let hit: Vec<u64> = extents.range(..until).filter(overlaps).map(|(at, _)| *at).collect();
        for at in hit {
            let Some(extent) = extents.remove(&at) else { continue };
            let end = at + extent.bytes;
            if at < from {
                extents.insert(at, extent.part(0, from - at));
            }
            if end > until {
                extents.insert(until, extent.part(until - at, extent.bytes));
            }
        }
    }

    fn put(&mut self, at: u64, bytes: u64, content: Content) {
        if bytes > 0 {
            self.cut(at, at + bytes);
            self.board.extents.insert(at, Extent { bytes, content });
        }
    }

    /// Fills a range with a word. The range begins at a multiple of 4, or all bytes of the word are equal.
    pub fn fill(&mut self, address: u64, word: [u8; 4], bytes: u64, pid: u32) -> Result<(), Fault> {
        let at = self.place(address, bytes, pid)?;
        let [first, ..] = word;
        if at % 4 != 0 && word != [first; 4] {
            return Err(Fault::InvalidValue);
        }
        self.put(at, bytes, Content::Word(word));
        Ok(())
    }

    pub fn write(&mut self, address: u64, data: &[u8], pid: u32) -> Result<(), Fault> {
        let bytes = data.len() as u64;
        if bytes > MAX_COPY_BYTES {
            return Err(Fault::InvalidValue);
        }
        let at = self.place(address, bytes, pid)?;
        self.put(at, bytes, Content::Bytes(data.to_vec()));
        Ok(())
    }

    pub fn read(&self, address: u64, bytes: u64, pid: u32) -> Result<Vec<u8>, Fault> {
        if bytes > MAX_COPY_BYTES {
            return Err(Fault::InvalidValue);
        }
        let at = self.place(address, bytes, pid)?;
        let end = at + bytes;
        let mut out = vec![0; usize::try_from(bytes).unwrap_or(0)];
        for (start, extent) in self.board.extents.range(..end) {
            let (from, until) = ((*start).max(at), (start + extent.bytes).min(end));
            for place in from..until {
                if let Some(byte) = usize::try_from(place - at).ok().and_then(|i| out.get_mut(i)) {
                    *byte = extent.byte(*start, place);
                }
            }
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn memory() -> Memory {
        Memory { board: BoardMemory::default(), start: 0, end: 4 * GIB }
    }

    fn me() -> u32 {
        std::process::id()
    }

    #[test]
    fn content_stays_until_it_is_overwritten() {
        let mut memory = memory();
        let at = memory.allocate(GIB, me()).unwrap();
        memory.write(at + 10, b"a secret", me()).unwrap();
        memory.free(at, me()).unwrap();
        assert_eq!(memory.read(at, 4, me()), Err(Fault::InvalidValue), "it is nobody's");
        assert_eq!(memory.allocate(GIB, me()), Ok(at));
        assert_eq!(memory.read(at + 8, 12, me()).unwrap(), b"\0\0a secret\0\0");
        memory.fill(at, [1, 2, 3, 4], 12, me()).unwrap();
        assert_eq!(memory.read(at + 8, 12, me()).unwrap(), b"\x01\x02\x03\x04secret\0\0");
        memory.fill(at + 14, [9; 4], 2, me()).unwrap();
        assert_eq!(memory.read(at + 11, 8, me()).unwrap(), b"\x04se\x09\x09et\0");
        memory.fill(at, [0; 4], GIB, me()).unwrap();
        assert_eq!(memory.board.extents.len(), 1, "one range has all of it");
    }

    #[test]
    fn memory_is_bounded_and_has_owners() {
        let mut memory = memory();
        let (one, two) = (memory.allocate(GIB, me()).unwrap(), memory.allocate(3 * GIB, me()).unwrap());
        assert_eq!((two - one, memory.free_bytes()), (GIB, 0));
        assert_eq!(memory.allocate(1, me()), Err(Fault::OutOfMemory));
        assert_eq!(memory.free(one, me() + 1), Err(Fault::InvalidValue), "another process");
        assert_eq!(memory.fill(one, [0; 4], GIB + 1, me()), Err(Fault::InvalidValue), "past the end");
        assert_eq!(
            memory.fill(one + 1, [1, 2, 3, 4], 8, me()),
            Err(Fault::InvalidValue),
            "between two words"
        );
        assert_eq!(memory.read(0, 4, me()), Err(Fault::InvalidValue));
        memory.free(one, me()).unwrap();
        memory.free_all(me() + 1);
        assert_eq!(memory.free_bytes(), GIB);
        memory.free_all(me());
        assert_eq!(memory.free_bytes(), 4 * GIB);
    }

    #[test]
    fn an_ended_process_holds_nothing() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        child.wait().unwrap();
        let mut memory = memory();
        memory.allocate(GIB, pid).unwrap();
        memory.allocate(GIB, me()).unwrap();
        memory.free_ended();
        assert_eq!(memory.free_bytes(), 3 * GIB);
    }

    #[test]
    fn the_file_has_the_whole_memory() {
        let mut memory = memory();
        let at = memory.allocate(GIB, me()).unwrap();
        memory.fill(at, [7; 4], GIB, me()).unwrap();
        memory.write(at + 100, b"x", me()).unwrap();
        let text = serde_json::to_string(&memory.board).unwrap();
        assert_eq!(serde_json::from_str::<BoardMemory>(&text).unwrap(), memory.board);
    }
}
