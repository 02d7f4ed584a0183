//! The devices that a process sees, from the boards of the simulated NVML.

use std::io::ErrorKind;
use std::path::PathBuf;

use serde::Deserialize;

use crate::fault::Fault;

/// The memory of a device without a known size.
const DEFAULT_BYTES: u64 = 16 << 30;
/// The memory of a slice of a MIG board: an eighth of the board for each.
const SLICES: u64 = 8;

/// The part of `boards.json` that a device needs.
#[derive(Debug, Deserialize)]
struct Boards {
    boards: Vec<SimBoard>,
}

#[derive(Debug, Deserialize)]
struct SimBoard {
    model: String,
    uuid: String,
    #[serde(default)]
    instances: Vec<GpuInstance>,
}

#[derive(Debug, Deserialize)]
struct GpuInstance {
    placed: Placed,
    compute: Option<Compute>,
}

#[derive(Debug, Deserialize)]
struct Placed {
    start: u32,
}

#[derive(Debug, Deserialize)]
struct Compute {
    uuid: String,
}

/// A device that the process sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VisibleDevice {
    pub uuid: String,
    /// The board, whose file has the memory.
    pub board: String,
    /// The place of the device's memory in that of its board.
    pub offset: u64,
    pub total_bytes: u64,
    pub dir: PathBuf,
}

impl VisibleDevice {
    pub fn uuid_bytes(&self) -> Result<[u8; 16], Fault> {
        let digits: String = self.uuid.chars().skip(4).filter(char::is_ascii_hexdigit).collect();
        u128::from_str_radix(&digits, 16).map(u128::to_be_bytes).map_err(|_| Fault::InvalidDevice)
    }
}

/// The memory of a model by its name, such as `H100-80GB`.
fn memory_bytes(model: &str) -> u64 {
    let gib = model.rsplit('-').next().and_then(|last| last.strip_suffix("GB"));
    gib.and_then(|gib| gib.parse::<u64>().ok()).map_or(DEFAULT_BYTES, |gib| gib << 30)
}

fn read(dir: PathBuf) -> Result<Vec<VisibleDevice>, Fault> {
    let text = match std::fs::read(dir.join("boards.json")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(Fault::NoDevice),
        Err(_) => return Err(Fault::OperatingSystem),
    };
    let known: Boards = serde_json::from_slice(&text).map_err(|_| Fault::Unknown)?;
    let mut devices = Vec::new();
    for board in known.boards {
        let board_bytes = memory_bytes(&board.model);
        let slice = board_bytes / SLICES;
        for instance in board.instances {
            let Some(compute) = instance.compute else { continue };
            // Every instance has one slice of memory here, at the place of its first one.
            devices.push(VisibleDevice {
                uuid: compute.uuid,
                board: board.uuid.clone(),
                offset: u64::from(instance.placed.start).min(SLICES - 1) * slice,
                total_bytes: slice,
                dir: dir.clone(),
            });
        }
        devices.push(VisibleDevice {
            uuid: board.uuid.clone(),
            board: board.uuid,
            offset: 0,
            total_bytes: board_bytes,
            dir: dir.clone(),
        });
    }
    Ok(devices)
}

/// The devices that `CUDA_VISIBLE_DEVICES` names, in its order. An unknown name ends the list, as in CUDA.
pub fn visible() -> Result<Vec<VisibleDevice>, Fault> {
    let dir = std::env::var_os("BERTH_NVML_SIM_DIR").ok_or(Fault::NotInitialized)?;
    let names = std::env::var("CUDA_VISIBLE_DEVICES").map_err(|_| Fault::NoDevice)?;
    let all = read(PathBuf::from(dir))?;
    let find = |name: &str| all.iter().find(|device| device.uuid == name).cloned();
    let seen: Vec<VisibleDevice> = names.split(',').map_while(find).collect();
    if seen.is_empty() { Err(Fault::NoDevice) } else { Ok(seen) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_those_of_the_boards() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path().to_owned()), Err(Fault::NoDevice));
        let boards = r#"{"made": 3, "boards": [
            {"model": "H100-80GB", "uuid": "GPU-00112233-4455-6677-8899-aabbccddeeff", "mig": false,
             "mig_pending": false, "instances": []},
            {"model": "T4", "uuid": "GPU-1", "instances": [
                {"id": 1, "placed": {"profile_id": 19, "start": 6}, "compute": {"id": 0, "profile_id": 0, "uuid": "MIG-1"}},
                {"id": 2, "placed": {"profile_id": 19, "start": 0}, "compute": null}]}]}"#;
        std::fs::write(dir.path().join("boards.json"), boards).unwrap();
        let found = read(dir.path().to_owned()).unwrap();
        let short: Vec<_> =
            found.iter().map(|d| (d.uuid.len(), d.offset >> 30, d.total_bytes >> 30)).collect();
        assert_eq!(short, [(40, 0, 80), (5, 12, 2), (5, 0, 16)]);
        let uuid = found[0].uuid_bytes().unwrap();
        assert_eq!((uuid[0], uuid[1], uuid[15]), (0, 0x11, 0xff));
    }
}
