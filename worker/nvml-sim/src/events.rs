//! NVML calls about events: who waits is told of XIDs and ECC errors as `faults.json` names them.
//!
//! A set is a number dressed as a pointer, like every other handle; what it names lives here, since events
//! are told to a process and not to a board.

use std::collections::HashMap;
use std::ffi::{c_uint, c_ulonglong};
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{self, nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};

use crate::boards::{Handle, nvml};
use crate::fault::Fault;
use crate::faults::{Ecc, Faults};
use crate::world::look;
use crate::{answer, put};

const SINGLE_BIT: u64 = bindings::nvmlEventTypeSingleBitEccError as u64;
const DOUBLE_BIT: u64 = bindings::nvmlEventTypeDoubleBitEccError as u64;
const XID: u64 = bindings::nvmlEventTypeXidCriticalError as u64;
/// What can be waited for here.
const KNOWN: u64 = SINGLE_BIT | DOUBLE_BIT | XID;
/// The kind of handle that a set is; the others are in `boards`.
const KIND: usize = 5;
/// Between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One board of a set.
struct Registered {
    uuid: String,
    types: u64,
    /// The newest XID that was told, or was there before.
    at: u64,
    ecc: Ecc,
}

#[derive(Default)]
struct Sets {
    made: usize,
    sets: HashMap<usize, HashMap<usize, Registered>>,
}

fn sets() -> MutexGuard<'static, Sets> {
    static SETS: OnceLock<Mutex<Sets>> = OnceLock::new();
    SETS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

fn read(set: nvmlEventSet_t) -> Result<usize, Fault> {
    let value = set.addr();
    if value >> 28 == KIND { Ok(value & 0xfff_ffff) } else { Err(Fault::InvalidArgument) }
}

/// The next thing to tell of a board: type, data, and the start of the slice that it happened on.
fn next(faults: &Faults, of: &mut Registered) -> Option<(u64, u64, Option<u32>)> {
    let now = faults.ecc.get(&of.uuid).copied().unwrap_or_default();
    if of.types & XID != 0
        && let Some(xid) = faults.next_after(&of.uuid, of.at)
    {
        of.at = xid.at;
        return Some((XID, xid.xid, xid.start));
    }
    let before = std::mem::replace(&mut of.ecc, now);
    if of.types & DOUBLE_BIT != 0 && now.uncorrected > before.uncorrected {
        // The other is told the next time.
        of.ecc.corrected = before.corrected;
        return Some((DOUBLE_BIT, 0, None));
    }
    (of.types & SINGLE_BIT != 0 && now.corrected > before.corrected).then_some((SINGLE_BIT, 0, None))
}

/// What the first board of a set with something to tell has to tell.
fn untold(id: usize) -> Result<Option<(usize, u64, u64, Option<u32>)>, Fault> {
    let dir = std::env::var("BERTH_NVML_SIM_DIR").map_err(|_| Fault::Uninitialized)?;
    let faults = Faults::read(Path::new(&dir))?;
    let mut sets = sets();
    let set = sets.sets.get_mut(&id).ok_or(Fault::InvalidArgument)?;
    let told = set.iter_mut().find_map(|(index, of)| next(&faults, of).map(|told| (*index, told)));
    Ok(told.map(|(index, (kind, data, start))| (index, kind, data, start)))
}

/// The GPU instance at a start of a board that may be off the bus.
fn instance_at(index: usize, start: Option<u32>) -> Result<c_uint, Fault> {
    look(|world| {
        let board = world.boards.get(index).ok_or(Fault::InvalidArgument)?;
        let found = board.instances.iter().find(|i| Some(i.placed.start) == start);
        Ok(found.map_or(c_uint::MAX, |i| i.id))
    })
}

nvml! {
    fn nvmlEventSetCreate(out: *mut nvmlEventSet_t) {
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        look(|_| Ok(()))?;
        let mut sets = sets();
        sets.made += 1;
        let id = sets.made;
        sets.sets.insert(id, HashMap::new());
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, without_provenance_mut(KIND << 28 | (id & 0xfff_ffff))) }
    }
    fn nvmlEventSetFree(set: nvmlEventSet_t) {
        let id = read(set)?;
        sets().sets.remove(&id).map(|_| ()).ok_or(Fault::InvalidArgument)
    }
    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, out: *mut c_ulonglong) {
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::NotSupported) };
        look(|world| world.board(index).map(|_| ()))?;
        // SAFETY: null or valid, by NVML's contract.
        unsafe { put(out, KNOWN) }
    }
    fn nvmlDeviceRegisterEvents(device: nvmlDevice_t, types: c_ulonglong, set: nvmlEventSet_t) {
        let id = read(set)?;
        let Handle::Board(index) = Handle::read(device)? else { return Err(Fault::NotSupported) };
        if types & !KNOWN != 0 {
            return Err(Fault::NotSupported);
        }
        let fresh = look(|world| {
            let uuid = world.board(index)?.uuid.clone();
            // What was before is told to nobody.
            let at = world.faults.latest(&uuid);
            let ecc = world.faults.ecc.get(&uuid).copied().unwrap_or_default();
            Ok(Registered { uuid, types, at, ecc })
        })?;
        let mut sets = sets();
        let set = sets.sets.get_mut(&id).ok_or(Fault::InvalidArgument)?;
        match set.get_mut(&index) {
            Some(known) => known.types |= types,
            None => {
                set.insert(index, fresh);
            }
        }
        Ok(())
    }
    fn nvmlEventSetWait_v2(set: nvmlEventSet_t, out: *mut nvmlEventData_t, timeout_ms: c_uint) {
        let id = read(set)?;
        if out.is_null() {
            return Err(Fault::InvalidArgument);
        }
        let deadline = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
        let (index, kind, data, start) = loop {
            if let Some(told) = untold(id)? {
                break told;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Fault::Timeout);
            }
            std::thread::sleep(left.min(LOOK_EVERY));
        };
        let event = nvmlEventData_t {
            device: Handle::Board(index).dress(),
            eventType: kind,
            eventData: data,
            gpuInstanceId: instance_at(index, start)?,
            computeInstanceId: if start.is_some() { 0 } else { c_uint::MAX },
        };
        // SAFETY: not null, and valid by NVML's contract.
        unsafe { put(out, event) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::Xid;

    #[test]
    fn each_event_is_told_once_and_in_order() {
        let mut of = Registered { uuid: "a".into(), types: KNOWN, at: 1, ecc: Ecc::default() };
        let xid = |xid, at| Xid { gpu: "a".into(), xid, at, start: None };
        let mut faults = Faults { xid: vec![xid(79, 3), xid(13, 2), xid(48, 1)], ..Faults::default() };
        faults.ecc.insert("a".into(), Ecc { corrected: 4, uncorrected: 1 });
        let told: Vec<_> = std::iter::from_fn(|| next(&faults, &mut of)).collect();
        assert_eq!(told, [(XID, 13, None), (XID, 79, None), (DOUBLE_BIT, 0, None), (SINGLE_BIT, 0, None)]);
        of.types = XID;
        faults.ecc.insert("a".into(), Ecc { corrected: 9, uncorrected: 9 });
        assert_eq!(next(&faults, &mut of), None, "nobody asked for those");
    }
}
