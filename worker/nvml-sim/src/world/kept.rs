//! The file in which the boards are kept, looked at and changed.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg};

use super::{HANG_MS, World, new_world};
use crate::fault::Fault;
use crate::faults::Faults;
use crate::read_whole;

const BOARDS: &str = "boards.json";

/// What the files said when they were read last.
struct Known {
    boards: Vec<u8>,
    faults: Vec<u8>,
    world: Arc<World>,
}

/// The world that the texts of the files say. A reading of a whole host is hundreds of calls on the same texts, so
/// the last ones are remembered. They are compared themselves, as two changes may be of the same size and too
/// close to each other for the times of a file.
fn told(boards: &[u8], faults: &[u8]) -> Result<Arc<World>, Fault> {
    static KNOWN: Mutex<Option<Known>> = Mutex::new(None);
    let mut last = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = last.as_ref().filter(|known| known.boards == boards && known.faults == faults) {
        return Ok(Arc::clone(&known.world));
    }
    let mut world: World = if boards.is_empty() {
        World::default()
    } else {
        serde_json::from_slice(boards).map_err(|_| Fault::Unknown)?
    };
    world.faults = Faults::parse(faults)?;
    let world = Arc::new(world);
    *last = Some(Known { boards: boards.to_vec(), faults: faults.to_vec(), world: Arc::clone(&world) });
    Ok(world)
}

/// The world as the files say it now; `None` when there is none yet.
fn seen(dir: &Path) -> Result<Option<Arc<World>>, Fault> {
    let file = match File::open(dir.join(BOARDS)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(_) => return Err(Fault::OperatingSystem),
    };
    // Beside others who look, but never in the middle of a change.
    let file = Flock::lock(file, FlockArg::LockShared).map_err(|_| Fault::OperatingSystem)?;
    let mut buffer = Vec::new();
    let text = read_whole(&file, &mut buffer).map_err(|_| Fault::OperatingSystem)?;
    drop(file);
    if text.is_empty() { Ok(None) } else { told(text, &Faults::text(dir)?).map(Some) }
}

/// The file, and nobody else reads or changes it.
fn locked(dir: &Path) -> Result<Flock<File>, Fault> {
    let open =
        || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(dir.join(BOARDS));
    let file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            std::fs::create_dir_all(dir).and_then(|()| open())
        }
        opened => opened,
    };
    let file = file.map_err(|_| Fault::OperatingSystem)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|_| Fault::OperatingSystem)
}

pub fn configured() -> Result<String, Fault> {
    std::env::var("BERTH_NVML_SIM_DIR").map_err(|_| Fault::Uninitialized)
}

/// Makes a call take as long as the boards that it is about.
fn slowed<T>(call: impl FnOnce() -> Result<T, Fault>) -> Result<T, Fault> {
    let result = call();
    // No lock is held any more: its neighbours answer meanwhile.
    match HANG_MS.take() {
        0 => {}
        hang_ms => std::thread::sleep(Duration::from_millis(hang_ms)),
    }
    result
}

/// Runs `work` on the world as it is when this is called. No lock is held during the work, which may look at every
/// process of the host.
pub fn look<T>(work: impl FnOnce(&World) -> Result<T, Fault>) -> Result<T, Fault> {
    let dir = configured()?;
    let world = loop {
        match seen(Path::new(&dir))?.filter(|world| !world.owes_reset()) {
            Some(world) => break world,
            // What is made and what is reset is kept in the file.
            None => change(|_| Ok(()))?,
        }
    };
    slowed(|| work(&world))
}

/// Runs `work` on the world under the file's lock, and keeps what it changed.
pub fn change<T>(work: impl FnOnce(&mut World) -> Result<T, Fault>) -> Result<T, Fault> {
    let dir = configured()?;
    let os = |_| Fault::OperatingSystem;
    slowed(|| {
        let file = locked(Path::new(&dir))?;
        let mut buffer = Vec::new();
        let text = read_whole(&file, &mut buffer).map_err(os)?;
        let before = told(text, &Faults::text(Path::new(&dir))?)?;
        let mut world = World::clone(&before);
        if text.is_empty() {
            world = World { faults: world.faults, ..new_world(&dir)? };
        }
        world.reset_boards();
        let result = work(&mut world);
        if result.is_ok() && !world.is_kept_as(&before) {
            let new = serde_json::to_string(&world).map_err(|_| Fault::Unknown)?;
            file.write_all_at(new.as_bytes(), 0).map_err(os)?;
            file.set_len(new.len() as u64).map_err(os)?;
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_remembered_is_what_the_texts_say() {
        let made = |boards: &str, faults: &str| told(boards.as_bytes(), faults.as_bytes()).map(|w| w.made);
        let (one, two) = (r#"{"boards":[],"made":1}"#, r#"{"boards":[],"made":2}"#);
        assert_eq!(made(one, "{}"), Ok(1));
        assert_eq!(made(one, "{}"), Ok(1));
        assert_eq!(made(two, "{}"), Ok(2));
        assert_eq!(made("nonsense", "{}"), Err(Fault::Unknown));
        assert_eq!(made(two, "nonsense"), Err(Fault::Unknown));
        assert_eq!(made(one, "{}"), Ok(1));
        assert!(told(one.as_bytes(), br#"{"no_permission": true}"#).unwrap().faults.no_permission);
        assert!(!told(one.as_bytes(), b"{}").unwrap().faults.no_permission);
    }

    #[test]
    fn a_change_by_somebody_else_is_seen_by_the_next_call() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(BOARDS);
        assert_eq!(seen(dir.path()), Ok(None));
        let put = |made: u64| std::fs::write(&file, format!(r#"{{"boards":[],"made":{made}}}"#)).unwrap();
        let made = || seen(dir.path()).unwrap().unwrap().made;
        put(1);
        let when = std::fs::metadata(&file).unwrap().modified().unwrap();
        assert_eq!(made(), 1);
        put(2);
        File::options().write(true).open(&file).unwrap().set_modified(when).unwrap();
        assert_eq!(made(), 2, "of the same size at the same instant");
        let owes = || seen(dir.path()).unwrap().unwrap().owes_reset();
        assert!(!owes());
        std::fs::write(dir.path().join("faults.json"), r#"{"reboot": 1}"#).unwrap();
        assert!(owes());
        std::fs::remove_file(dir.path().join("faults.json")).unwrap();
        assert!(!owes());
        // Whoever changes it has it alone; what is half written is read by nobody.
        let changing = locked(dir.path()).unwrap();
        changing.set_len(5).unwrap();
        let looking = std::thread::scope(|scope| {
            let looking = scope.spawn(made);
            changing.write_all_at(br#"{"boards":[],"made":3}"#, 0).unwrap();
            drop(changing);
            looking.join().unwrap()
        });
        assert_eq!(looking, 3);
    }
}
