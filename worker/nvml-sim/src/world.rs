//! The boards as they are, kept in a locked file so that they survive the process, as boards do.
//!
//! Other processes change the file too, so every call reads it; what it says is made of it anew only when the
//! text is another.

mod kept;

use std::cell::Cell;

use berth_mig::{Board, Illegal, Instance, legal};
use nvml_wrapper_sys::bindings;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::faults::{Faults, now_ms};
use crate::models::sim_board;
pub use kept::{change, configured, look};

thread_local! {
    /// How long the call that this thread makes is to take, in milliseconds.
    static HANG_MS: Cell<u64> = const { Cell::new(0) };
}

/// The compute instance that makes a GPU instance usable, and its MIG device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compute {
    pub id: u32,
    pub profile_id: u32,
    pub uuid: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuInstance {
    pub id: u32,
    pub placed: Instance,
    pub compute: Option<Compute>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimBoard {
    pub model: String,
    pub uuid: String,
    pub mig: bool,
    pub mig_pending: bool,
    pub instances: Vec<GpuInstance>,
    /// When it was reset last, in milliseconds since the host started: what it counts begins then.
    #[serde(default)]
    pub since_ms: u64,
    /// The resets that were carried out.
    #[serde(default)]
    pub resets: u64,
    /// The last event before the reset, which mended everything up to it.
    #[serde(default)]
    pub mended: u64,
}

impl SimBoard {
    /// What a reset or a reboot does: instances go, and a mode that waited for it comes into force.
    pub fn reset(&mut self, faults: &Faults, reboot: bool) {
        let keeps_mode = !reboot || self.board().is_ok_and(|board| !board.live_toggle);
        // Boards that switch without a reset keep the mode only while the driver is loaded.
        self.mig = self.mig_pending && keeps_mode;
        self.mig_pending = self.mig;
        self.instances.clear();
        self.since_ms = now_ms();
        self.mended = faults.latest(&self.uuid);
    }

    pub fn board(&self) -> Result<&'static Board, Fault> {
        sim_board(&self.model).ok_or(Fault::Unknown)
    }

    pub fn placed(&self) -> Vec<Instance> {
        self.instances.iter().map(|i| i.placed).collect()
    }

    pub fn instance(&self, id: u32) -> Result<&GpuInstance, Fault> {
        self.instances.iter().find(|i| i.id == id).ok_or(Fault::NotFound)
    }

    pub fn instance_mut(&mut self, id: u32) -> Result<&mut GpuInstance, Fault> {
        self.instances.iter_mut().find(|i| i.id == id).ok_or(Fault::NotFound)
    }

    /// Creates a GPU instance at a start; NVML's answer when it may not be.
    pub fn create(&mut self, profile_id: u32, start: u32) -> Result<u32, Fault> {
        if !self.mig {
            return Err(Fault::NotSupported);
        }
        let placed = Instance { profile_id, start };
        legal(self.board()?, &self.placed(), placed).map_err(|why| match why {
            Illegal::UnknownProfile | Illegal::Start => Fault::InvalidArgument,
            Illegal::Overlap | Illegal::Count | Illegal::Group => Fault::InsufficientResources,
        })?;
        let id = self.id_at(placed)?;
        self.instances.push(GpuInstance { id, placed, compute: None });
        Ok(id)
    }

    /// The id of a GPU instance, which follows from its place as on recorded boards: 0 for all of a board, 1 and 2
    /// for its halves, 3 to 6 for its quarters, and 7 to 14 for its eighths.
    fn id_at(&self, placed: Instance) -> Result<u32, Fault> {
        let board = self.board()?;
        let size = board.profile(placed.profile_id).ok_or(Fault::InvalidArgument)?.size.max(1);
        Ok((board.memory_slices / size).saturating_sub(1) + placed.start / size)
    }

    /// Destroys a GPU instance; refused while it has a compute instance.
    pub fn destroy(&mut self, id: u32) -> Result<(), Fault> {
        if self.instance(id)?.compute.is_some() {
            return Err(Fault::InUse);
        }
        self.instances.retain(|i| i.id != id);
        Ok(())
    }

    /// Switches MIG mode. Hopper and later at once; older boards remember it until a reset. A board that is not
    /// idle keeps its mode, and the new one is pending. The activation status: 0, or NVML's "in use" or "reset
    /// required".
    pub fn switch_mig(&mut self, on: bool, idle: bool) -> Result<u32, Fault> {
        if !self.instances.is_empty() && !on {
            return Err(Fault::InUse);
        }
        self.mig_pending = on;
        if self.mig == on {
            return Ok(0);
        }
        if !idle {
            return Ok(bindings::nvmlReturn_enum_NVML_ERROR_IN_USE);
        }
        if !self.board()?.live_toggle {
            return Ok(bindings::nvmlReturn_enum_NVML_ERROR_RESET_REQUIRED);
        }
        self.mig = on;
        Ok(0)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct World {
    pub boards: Vec<SimBoard>,
    /// What goes wrong at present.
    #[serde(skip)]
    pub faults: Faults,
    /// The reboots that were carried out.
    #[serde(default)]
    reboots: u64,
    /// Counts everything that got a UUID, so that none comes back.
    made: u64,
}

impl World {
    /// True if the file says the same of both.
    fn is_kept_as(&self, other: &Self) -> bool {
        self.made == other.made && self.reboots == other.reboots && self.boards == other.boards
    }

    /// A board that answers.
    pub fn board(&self, index: usize) -> Result<&SimBoard, Fault> {
        let board = self.boards.get(index).ok_or(Fault::InvalidArgument)?;
        let hang_ms = self.faults.hang_ms.get(&board.uuid).copied().unwrap_or(0);
        HANG_MS.set(HANG_MS.get().max(hang_ms));
        if self.faults.is_lost(&board.uuid, board.mended) { Err(Fault::GpuIsLost) } else { Ok(board) }
    }

    pub fn board_mut(&mut self, index: usize) -> Result<&mut SimBoard, Fault> {
        self.board(index)?;
        self.boards.get_mut(index).ok_or(Fault::InvalidArgument)
    }

    /// True if a reset or a reboot is asked for that was not carried out yet.
    fn owes_reset(&self) -> bool {
        let asked = |board: &SimBoard| self.faults.reset.get(&board.uuid).is_some_and(|n| *n != board.resets);
        self.reboots != self.faults.reboot || self.boards.iter().any(asked)
    }

    /// Carries out the resets and reboots that are asked for and were not carried out yet.
    fn reset_boards(&mut self) {
        let rebooted = self.reboots != self.faults.reboot;
        self.reboots = self.faults.reboot;
        for board in &mut self.boards {
            let asked = self.faults.reset.get(&board.uuid).copied().unwrap_or(board.resets);
            if rebooted || asked != board.resets {
                board.reset(&self.faults, rebooted);
            }
            board.resets = asked;
        }
    }

    /// Refuses what only an administrator may do.
    pub fn may_administer(&self) -> Result<(), Fault> {
        if self.faults.no_permission { Err(Fault::NoPermission) } else { Ok(()) }
    }

    /// Refuses what only an administrator may do, and what somebody holds.
    pub fn may_change(&self, uuids: &[String]) -> Result<(), Fault> {
        self.may_administer()?;
        if uuids.iter().any(|uuid| self.faults.holds(uuid)) { Err(Fault::InUse) } else { Ok(()) }
    }

    /// A UUID that no device of this world had before.
    pub fn new_uuid(&mut self, prefix: &str, seed: u64) -> String {
        self.made += 1;
        let word = |n: u64| (seed ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let (a, b) = (word(self.made), word(self.made.wrapping_mul(0x1_0000_0001)));
        let tail = b & 0xffff_ffff_ffff;
        format!(
            "{prefix}-{:08x}-{:04x}-4{:03x}-8{:03x}-{tail:012x}",
            a >> 32,
            (a >> 16) & 0xffff,
            a & 0xfff,
            b >> 52
        )
    }
}

/// A board of a fleet at its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetBoard {
    pub board: &'static Board,
    pub mig: bool,
}

/// Reads `2xH100-80GB,1xA30,1xA30/off`: board models with their counts, 64 boards at most. Boards that switch only by
/// a reset are delivered in MIG mode, as an operator prepares them, and without it after `/off`.
pub fn parse_fleet(text: &str) -> Result<Vec<FleetBoard>, String> {
    let mut out = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        let (count, model) = match part.split_once('x') {
            Some((count, model)) if count.bytes().all(|b| b.is_ascii_digit()) && !count.is_empty() => {
                (count.parse::<usize>().map_err(|_| format!("{part}: too many"))?, model)
            }
            _ => (1, part),
        };
        let (model, off) = model.strip_suffix("/off").map_or((model, false), |model| (model, true));
        let board = sim_board(model).ok_or_else(|| format!("there is no board model {model:?}"))?;
        let mig = !board.profiles.is_empty() && !board.live_toggle && !off;
        if count == 0 || out.len() + count > 64 {
            return Err(format!("{part}: a simulated host has 1 to 64 boards"));
        }
        out.extend(std::iter::repeat_n(FleetBoard { board, mig }, count));
    }
    if out.is_empty() { Err("name at least one board, such as 2xH100-80GB".to_owned()) } else { Ok(out) }
}

fn new_world(dir: &str) -> Result<World, Fault> {
    let fleet = std::env::var("BERTH_NVML_SIM_FLEET").map_err(|_| Fault::Uninitialized)?;
    let boards = parse_fleet(&fleet).map_err(|_| Fault::Uninitialized)?;
    // Two simulated hosts differ by their directories, so their boards differ too.
    let seed =
        dir.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut world = World::default();
    for FleetBoard { board, mig } in boards {
        let uuid = world.new_uuid("GPU", seed);
        world.boards.push(SimBoard {
            model: board.model.clone(),
            uuid,
            mig,
            mig_pending: mig,
            instances: vec![],
            since_ms: now_ms(),
            resets: 0,
            mended: 0,
        });
    }
    Ok(world)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fleets_are_read_or_refused() {
        let models = |text: &str| {
            parse_fleet(text).map(|f| f.iter().map(|b| b.board.model.as_str()).collect::<Vec<_>>())
        };
        assert_eq!(models("2xH100-80GB, 1xA30").unwrap(), ["H100-80GB", "H100-80GB", "A30-24GB"]);
        assert_eq!(models("A30").unwrap(), ["A30-24GB"]);
        let modes = |text: &str| parse_fleet(text).map(|f| f.iter().map(|b| b.mig).collect::<Vec<_>>());
        assert_eq!(modes("A30,A30/off,H100-80GB,L40S").unwrap(), [true, false, false, false]);
        for bad in ["", "A30/on", "0xA30", "65xA30", "2xVoodoo", "99999999999999999999xA30", "-1xA30"] {
            assert!(parse_fleet(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_board_is_as_strict_as_the_tables() {
        let mut board = SimBoard {
            model: "H100-80GB".into(),
            uuid: "GPU-x".into(),
            mig: false,
            mig_pending: false,
            instances: vec![],
            since_ms: 0,
            resets: 0,
            mended: 0,
        };
        assert_eq!(board.create(19, 0), Err(Fault::NotSupported));
        assert_eq!(board.switch_mig(true, false), Ok(19));
        assert_eq!((board.mig, board.mig_pending), (false, true), "a busy board keeps its mode");
        assert_eq!(board.switch_mig(false, false), Ok(0));
        assert!(!board.mig_pending, "its own mode takes the pending one back");
        assert_eq!(board.switch_mig(true, true), Ok(0));
        let first = board.create(19, 6).unwrap();
        assert_eq!(first, 13);
        assert_eq!(board.create(19, 6), Err(Fault::InsufficientResources));
        assert_eq!(board.create(19, 7), Err(Fault::InvalidArgument));
        assert_eq!(board.create(77, 0), Err(Fault::InvalidArgument));
        assert_eq!(board.switch_mig(false, true), Err(Fault::InUse));
        assert!(board.mig_pending, "a refused change leaves nothing pending");
        board.instance_mut(first).unwrap().compute =
            Some(Compute { id: 0, profile_id: 0, uuid: "MIG-x".into() });
        assert_eq!(board.destroy(first), Err(Fault::InUse));
        board.instance_mut(first).unwrap().compute = None;
        assert_eq!(board.destroy(first), Ok(()));
        assert_eq!(board.destroy(first), Err(Fault::NotFound));
        let mut old = SimBoard { model: "A30-24GB".into(), ..board };
        assert_eq!(old.switch_mig(false, true), Ok(16));
        assert!(old.mig && !old.mig_pending);
    }

    #[test]
    fn the_id_of_an_instance_follows_from_its_place() {
        let made = |model: &str| SimBoard {
            model: model.into(),
            uuid: "GPU-x".into(),
            mig: true,
            mig_pending: true,
            instances: vec![],
            since_ms: 0,
            resets: 0,
            mended: 0,
        };
        let ids = |model: &str, places: &[(u32, u32)]| {
            let mut board = made(model);
            places.iter().map(|(profile, start)| board.create(*profile, *start).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(ids("H100-80GB", &[(9, 0), (15, 4), (19, 6)]), [1, 5, 13]);
        assert_eq!(ids("H100-80GB", &[(19, 0), (19, 1), (19, 5)]), [7, 8, 12]);
        assert_eq!(ids("H100-80GB", &[(0, 0)]), [0]);
        assert_eq!(ids("A30-24GB", &[(5, 0), (14, 2), (14, 3)]), [1, 5, 6]);
    }

    #[test]
    fn a_reset_empties_a_board_and_a_reboot_ends_the_mode_of_newer_ones() {
        let made = |model: &str| SimBoard {
            model: model.into(),
            uuid: format!("GPU-{model}"),
            mig: true,
            mig_pending: true,
            instances: vec![GpuInstance {
                id: 1,
                placed: Instance { profile_id: 19, start: 6 },
                compute: None,
            }],
            since_ms: 0,
            resets: 0,
            mended: 0,
        };
        let mut world = World { boards: vec![made("H100-80GB"), made("A30-24GB")], ..World::default() };
        world.reset_boards();
        assert_eq!(world.boards[0].instances.len(), 1, "nobody asked for one");
        assert!(!world.owes_reset());
        world.boards[1].mig_pending = false;
        world.faults.reset = world.boards.iter().map(|b| (b.uuid.clone(), 1)).collect();
        assert!(world.owes_reset());
        world.reset_boards();
        assert!(!world.owes_reset());
        let modes = |world: &World| world.boards.iter().map(|b| (b.mig, b.mig_pending)).collect::<Vec<_>>();
        assert!(world.boards.iter().all(|b| b.instances.is_empty() && b.since_ms > 0));
        assert_eq!(modes(&world), [(true, true), (false, false)]);
        world.boards[1].mig_pending = true;
        world.reset_boards();
        assert_eq!(modes(&world), [(true, true), (false, true)], "once is once");
        world.faults.reboot = 1;
        world.reset_boards();
        assert_eq!(modes(&world), [(false, false), (true, true)]);
    }
}
