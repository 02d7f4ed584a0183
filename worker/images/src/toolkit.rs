//! NVIDIA's container toolkit as a source of the driver's files.
//!
//! Its specification lists the files of the installed driver, whatever its release. The worker reads this list only:
//! the nodes of an attempt come from the driver, and no hook and no variable of the toolkit is used. Blocking.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use berth_isolation::sandbox::BindMount;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Deserialize;

use super::driver_files;

/// The places of the program on a host.
const PROGRAMS: [&str; 2] = ["/usr/bin/nvidia-ctk", "/usr/local/bin/nvidia-ctk"];
/// The request for a specification with boards and slices by their UUIDs. It changes nothing on the host.
const GENERATE: [&str; 4] = ["cdi", "generate", "--format=json", "--device-name-strategy=uuid"];
/// The directories of programs of the toolkit.
const SEARCHED: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The kind of NVIDIA's devices.
const KIND: &str = "nvidia.com/gpu";
/// The time limit of one run.
const LIMIT: Duration = Duration::from_secs(10);
/// The pause after a failure.
const PAUSE: Duration = Duration::from_secs(60);
/// The largest output.
const MOST_BYTES: usize = 1 << 20;
/// The most listed files.
const MOST_PATHS: usize = 1_024;
/// The distance between two looks at an ending run.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The parts of a specification that list files of the driver.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Generated {
    kind: String,
    devices: Vec<GeneratedDevice>,
    #[serde(default)]
    container_edits: GeneratedEdits,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeneratedDevice {
    name: String,
    #[serde(default)]
    container_edits: GeneratedEdits,
}

#[derive(Default, Deserialize)]
struct GeneratedEdits {
    #[serde(default)]
    mounts: Vec<GeneratedMount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GeneratedMount {
    host_path: PathBuf,
}

/// The program `nvidia-ctk` of this host.
#[derive(Debug)]
pub(super) struct Toolkit {
    program: PathBuf,
    limit: Duration,
    /// The time of the last failure.
    failed: Mutex<Option<Instant>>,
}

impl Toolkit {
    fn new(program: PathBuf) -> Self {
        Self { program, limit: LIMIT, failed: Mutex::default() }
    }

    pub fn find() -> Option<Self> {
        PROGRAMS.map(PathBuf::from).into_iter().find(|program| program.exists()).map(Self::new)
    }

    /// The driver's files for the boards and slices with these UUIDs. `None`: the toolkit gives none now; the log has
    /// the reason. One run is at work at a time, and a failure pauses all for a minute.
    pub fn files(&self, uuids: &[&str], now: Instant) -> Option<Vec<BindMount>> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.is_some_and(|at| now.saturating_duration_since(at) < PAUSE) {
            return None;
        }
        let listed = run(&self.program, self.limit)
            .and_then(|output| listed_paths(&output, uuids))
            .and_then(|paths| driver_files::mounts_of(&paths));
        match listed {
            Ok(mounts) => {
                *failed = None;
                Some(mounts)
            }
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "nvidia-ctk lists no files of the driver; the cache of the loader does"
                );
                *failed = Some(now);
                None
            }
        }
    }
}

/// The paths of the driver's files in an output of the toolkit, or the reason why it has none for these devices.
fn listed_paths(output: &[u8], uuids: &[&str]) -> Result<Vec<PathBuf>, String> {
    // Newer versions may write several documents. The error has no text of the output, which may be long.
    let documents: Result<Vec<Generated>, serde_json::Error> =
        serde_json::Deserializer::from_slice(output).into_iter().collect();
    let documents = documents
        .map_err(|e| format!("line {}, column {} of its output is no specification", e.line(), e.column()))?;
    let has = |document: &Generated, uuid: &str| document.devices.iter().any(|device| device.name == uuid);
    let document = documents
        .into_iter()
        .find(|document| document.kind == KIND && uuids.iter().all(|uuid| has(document, uuid)))
        .ok_or("its output does not name the devices of the attempt")?;
    let own = document.devices.into_iter().filter(|device| uuids.contains(&device.name.as_str()));
    let edits = std::iter::once(document.container_edits).chain(own.map(|device| device.container_edits));
    let paths: Vec<PathBuf> = edits.flat_map(|edits| edits.mounts).map(|mount| mount.host_path).collect();
    if paths.len() > MOST_PATHS {
        return Err(format!("its output lists more than {MOST_PATHS} files"));
    }
    if !paths.iter().all(|path| is_plain(path)) {
        return Err("its output lists a relative path".to_owned());
    }
    Ok(paths)
}

/// True for an absolute path without `..`.
fn is_plain(path: &Path) -> bool {
    path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Runs the program to its end. Returns its whole output.
fn run(program: &Path, limit: Duration) -> Result<Vec<u8>, String> {
    let until = Instant::now() + limit;
    let mut command = Command::new(program);
    // The environment of the worker may have a join token.
    command.args(GENERATE).env_clear().env("PATH", SEARCHED).current_dir("/");
    // A process group of its own, so its helpers end with it.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|e| format!("it cannot be started: {e}"))?;
    let ended = read_output(&mut child, until).and_then(|output| match output {
        Some(output) => Ok(wait(&mut child, until)?.map(|status| (status, output))),
        None => Ok(None),
    });
    match ended {
        Ok(Some((status, output))) if status.success() => Ok(output),
        Ok(Some((status, _))) => Err(format!("it ended with {status}")),
        Ok(None) => {
            end(child);
            Err(format!("it did not end within {} seconds", limit.as_secs()))
        }
        Err(reason) => {
            end(child);
            Err(reason)
        }
    }
}

/// The whole output. `None`: it has no end yet.
fn read_output(child: &mut Child, until: Instant) -> Result<Option<Vec<u8>>, String> {
    let mut pipe = child.stdout.take().ok_or("it has no output")?;
    let mut output = Vec::new();
    let mut buffer = [0u8; 4_096];
    while Instant::now() < until {
        let mut fds = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait is no error.
        if !matches!(poll(&mut fds, PollTimeout::from(100u16)), Ok(n) if n > 0) {
            continue;
        }
        match pipe.read(&mut buffer) {
            Ok(0) => return Ok(Some(output)),
            Ok(read) => output.extend_from_slice(buffer.get(..read).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(format!("its output cannot be read: {error}")),
        }
        if output.len() > MOST_BYTES {
            return Err(format!("its output has more than {MOST_BYTES} bytes"));
        }
    }
    Ok(None)
}

/// Waits for the end of a program that has closed its output. `None`: it runs still.
fn wait(child: &mut Child, until: Instant) -> Result<Option<ExitStatus>, String> {
    loop {
        match child.try_wait().map_err(|e| e.to_string())? {
            None if Instant::now() < until => thread::sleep(LOOK_EVERY),
            ended => return Ok(ended),
        }
    }
}

/// Kills a program that nothing has waited for, with its children. A process in a call of the driver may stay for
/// long, so a thread waits for it.
fn end(mut child: Child) {
    if let Ok(group) = i32::try_from(child.id()) {
        // The group may have ended meanwhile.
        let _ = killpg(Pid::from_raw(group), Signal::SIGKILL);
    }
    let _ = thread::Builder::new().name("toolkit end".to_owned()).spawn(move || child.wait());
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::{Value, json};

    use super::*;

    /// A host with a library of CUDA. Returns its canonical directory.
    fn host(dir: &Path) -> PathBuf {
        let root = dir.canonicalize().unwrap();
        for (name, link) in
            [("libcuda.so.550.54.15", "libcuda.so.1"), ("libnvoptix.so.550.54.15", "libnvoptix.so.1")]
        {
            fs::write(root.join(name), name).unwrap();
            symlink(name, root.join(link)).unwrap();
        }
        fs::write(root.join("shadow"), "root:x").unwrap();
        symlink("shadow", root.join("libshadow.so")).unwrap();
        root
    }

    fn mounts(paths: &[PathBuf]) -> Vec<Value> {
        let mount =
            |path: &PathBuf| json!({"hostPath": path, "containerPath": "/etc/passwd", "options": ["rw"]});
        paths.iter().map(mount).collect()
    }

    fn generated(common: &[PathBuf]) -> Value {
        let node = |path: &str| json!({"deviceNodes": [{"path": path}]});
        json!({
            "cdiVersion": "0.5.0",
            "kind": "nvidia.com/gpu",
            "devices": [
                {"name": "GPU-1", "containerEdits": node("/dev/nvidia0")},
                {"name": "MIG-2", "containerEdits": node("/dev/nvidia1")},
                {"name": "all", "containerEdits": node("/dev/nvidia7")},
            ],
            "containerEdits": {
                "env": ["NVIDIA_VISIBLE_DEVICES=void"],
                "hooks": [{"hookName": "createContainer", "path": "/bin/sh", "args": ["sh", "-c", "id"]}],
                "mounts": mounts(common),
            },
        })
    }

    /// A toolkit that does `text`, with the file `output` beside it.
    fn toolkit(dir: &Path, text: &str) -> Toolkit {
        let (text_file, program) = (dir.join("script"), dir.join("nvidia-ctk"));
        let script = format!("#!/bin/sh\ncd {}\necho run \"$@\" >> asked\n{text}\n", dir.display());
        fs::write(&text_file, script).unwrap();
        // This process never has the program open for writing, and so no child of another test has it.
        let installed = Command::new("install").args(["-m", "755"]).arg(&text_file).arg(&program).status();
        assert!(installed.unwrap().success());
        Toolkit { limit: Duration::from_secs(20), ..Toolkit::new(program) }
    }

    fn runs(dir: &Path) -> usize {
        fs::read_to_string(dir.join("asked")).unwrap_or_default().lines().count()
    }

    #[test]
    fn the_files_come_from_the_toolkit_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let root = host(dir.path());
        let listed = ["libcuda.so.550.54.15", "libnvoptix.so.550.54.15", "libshadow.so", "shadow", "none"];
        let output = generated(&listed.map(|name| root.join(name)));
        fs::write(root.join("output"), output.to_string()).unwrap();
        let toolkit = toolkit(&root, "cat output");
        let found = toolkit.files(&["GPU-1", "MIG-2"], Instant::now()).unwrap();
        let names: Vec<String> = found.iter().map(|mount| mount.to.display().to_string()).collect();
        let expected = [
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/usr/local/nvidia/lib64/libcuda.so.550.54.15",
            "/usr/local/nvidia/lib64/libnvoptix.so.1",
            "/usr/local/nvidia/lib64/libnvoptix.so.550.54.15",
        ];
        assert_eq!(names, expected);
        assert!(found.iter().all(|mount| !mount.writable && mount.from.starts_with(&root)));
        let asked = fs::read_to_string(root.join("asked")).unwrap();
        assert_eq!(asked, "run cdi generate --format=json --device-name-strategy=uuid\n");
    }

    #[test]
    fn a_hostile_specification_offers_nothing() {
        let good = generated(&[PathBuf::from("/lib/libcuda.so.1")]);
        let reason = |text: &str, uuid: &str| listed_paths(text.as_bytes(), &[uuid]).unwrap_err();
        assert_eq!(listed_paths(good.to_string().as_bytes(), &["GPU-1"]).map(|paths| paths.len()), Ok(1));
        for other in ["GPU-9", "gpu-1", ""] {
            assert!(reason(&good.to_string(), other).contains("does not name"), "{other}");
        }
        let mut foreign = good.clone();
        foreign["kind"] = json!("other.com/gpu");
        assert!(reason(&foreign.to_string(), "GPU-1").contains("does not name"));
        for odd in ["lib/libcuda.so.1", "/lib/../etc/libcuda.so.1", ""] {
            assert!(reason(&generated(&[odd.into()]).to_string(), "GPU-1").contains("relative"), "{odd}");
        }
        let many = generated(&vec![PathBuf::from("/lib/libcuda.so.1"); MOST_PATHS + 1]);
        assert!(reason(&many.to_string(), "GPU-1").contains("more than 1024 files"));
        let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
        let (mut devices, mut mounts) = (good.clone(), good.clone());
        devices["devices"] = json!("GPU-1");
        mounts["containerEdits"]["mounts"] = json!([{"hostPath": 7}]);
        let (devices, mounts, cut) = (devices.to_string(), mounts.to_string(), good.to_string());
        let cut = cut.get(..cut.len() - 1).unwrap();
        for text in [deep.as_str(), &devices, &mounts, cut, "{", "GPU-1", &format!("{good} x")] {
            assert!(reason(text, "GPU-1").ends_with("is no specification"), "{}", reason(text, "GPU-1"));
        }
        assert!(reason("", "GPU-1").contains("does not name"));
        // Newer versions write a second document for some boards.
        assert!(listed_paths(format!("{good}\n{foreign}").as_bytes(), &["MIG-2"]).is_ok());
    }

    #[test]
    fn a_toolkit_without_an_answer_is_left_alone_for_a_minute() {
        let without_cuda = generated(&[PathBuf::from("/lib/libnvoptix.so.1")]).to_string();
        let endless = "while :; do echo 0123456789012345678901234567890123456789; done";
        let failures = ["exit 3", "echo nonsense", "cat output; exit 1", "cat output", endless];
        for text in failures {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join("output"), &without_cuda).unwrap();
            let toolkit = toolkit(dir.path(), text);
            let start = Instant::now();
            let at = |s: u64| start + Duration::from_secs(s);
            for (s, expected) in [(0, 1), (59, 1), (60, 2)] {
                assert_eq!(toolkit.files(&["GPU-1"], at(s)), None, "{text}");
                assert_eq!(runs(dir.path()), expected, "{text} at {s}");
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{text}: {:?}", start.elapsed());
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Toolkit::new(dir.path().join("none")).files(&["GPU-1"], Instant::now()), None);
    }

    #[test]
    fn a_hanging_toolkit_is_killed_with_its_helpers() {
        // With an open output, with a closed one, and with a helper that alone keeps it open.
        let helper = "sleep 600 & echo $! > helper";
        for text in [format!("{helper}; wait"), format!("exec >&-; {helper}; wait"), helper.to_owned()] {
            let dir = tempfile::tempdir().unwrap();
            let reason = run(&toolkit(dir.path(), &text).program, Duration::from_secs(3)).unwrap_err();
            assert_eq!(reason, "it did not end within 3 seconds", "{text}");
            let helper = fs::read_to_string(dir.path().join("helper")).unwrap();
            let stat = format!("/proc/{}/stat", helper.trim());
            let is_alive = || fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z "));
            let until = Instant::now() + Duration::from_secs(30);
            while is_alive() {
                assert!(Instant::now() < until, "{text}: the helper runs");
                thread::sleep(LOOK_EVERY);
            }
        }
    }
}
