//! The driver's libraries and programs of this host, for containers without them.
//!
//! The libraries of a driver must have exactly the version of its kernel module, so an image cannot have them for all
//! hosts. Each file is mounted by itself and read-only. No hook of NVIDIA's container toolkit runs: its hooks run on
//! the host as root, before the container's start. The list is that of the toolkit or, without it, from the cache of
//! the loader.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use berth_isolation::sandbox::BindMount;

/// The directory of the driver's libraries in a container. NVIDIA's images search it already.
pub const LIBRARY_DIR: &str = "/usr/local/nvidia/lib64";
/// The variable with the directories that the loader searches.
pub const SEARCH_PATH: &str = "LD_LIBRARY_PATH";
/// The program that prints the loader's cache.
const LDCONFIG: &str = "/sbin/ldconfig";
/// The library whose file name has the driver's version.
const CUDA: &str = "libcuda.so.1";
/// The mark of this architecture in the loader's cache.
const ARCHITECTURE: &str = if cfg!(target_arch = "aarch64") { "AArch64" } else { "x86-64" };
/// The libraries for computation, video and readings, without those for screens.
const LIBRARIES: [&str; 15] = [
    "libcuda",
    "libcudadebugger",
    "libnvcuvid",
    "libnvidia-allocator",
    "libnvidia-cfg",
    "libnvidia-encode",
    "libnvidia-gpucomp",
    "libnvidia-ml",
    "libnvidia-nscq",
    "libnvidia-nvvm",
    "libnvidia-opencl",
    "libnvidia-opticalflow",
    "libnvidia-pkcs11",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler",
];
/// The programs of the driver for a job.
const PROGRAMS: [&str; 2] = ["nvidia-smi", "nvidia-debugdump"];
/// The directory of programs, on the host and in a container.
const PROGRAM_DIR: &str = "/usr/bin";
/// The most files. Each is a mount, with up to three names for one library.
const MOST_FILES: usize = 64;
/// The same for a list of the toolkit, which has the libraries for screens too.
const MOST_LISTED_FILES: usize = 256;

/// The driver's files of this host, or the reason why they are unknown.
fn list() -> Result<Vec<BindMount>, String> {
    let mut command = Command::new(LDCONFIG);
    command.arg("-p").env_clear().current_dir("/").stdin(Stdio::null());
    let output = command.output().map_err(|e| format!("{LDCONFIG} cannot be started: {e}"))?;
    list_by(&String::from_utf8_lossy(&output.stdout), Path::new(PROGRAM_DIR))
}

/// The driver's files of this host. Without a driver the libraries of the image remain; the log has the reason.
pub fn list_or_warn() -> Vec<BindMount> {
    list().unwrap_or_else(|reason| {
        tracing::warn!(reason, "containers get no libraries of the driver");
        Vec::new()
    })
}

/// The driver's files by the text of the loader's cache, or the reason why they are unknown.
fn list_by(cache: &str, programs: &Path) -> Result<Vec<BindMount>, String> {
    let listed: Vec<(&str, &Path)> = cache.lines().filter_map(cache_entry).collect();
    let cuda = listed.iter().find(|(name, _)| *name == CUDA);
    let (_, cuda) = cuda.ok_or_else(|| format!("{CUDA} is not in the cache of the loader"))?;
    let cuda = cuda.canonicalize().map_err(|e| format!("{} is unreadable: {e}", cuda.display()))?;
    let version = version(&cuda).ok_or_else(|| format!("{} names no version", cuda.display()))?;
    // Some libraries have no entry in the cache, and the names without a number are often only links.
    let beside = cuda.parent().and_then(|dir| fs::read_dir(dir).ok()).into_iter().flatten().flatten();
    let beside = beside.map(|entry| entry.path());
    let mut files = BTreeMap::new();
    for path in listed.iter().map(|(_, path)| path.to_path_buf()).chain(beside) {
        let Some((stem, name)) = library_name(&path) else { continue };
        let Ok(real) = path.canonicalize() else { continue };
        // A library of another version does not work with this driver.
        let expected = format!("{stem}.so.{version}");
        if real.file_name().is_some_and(|file| file == expected.as_str()) {
            files.insert(Path::new(LIBRARY_DIR).join(name), real.clone());
            files.insert(Path::new(LIBRARY_DIR).join(expected), real);
        }
    }
    for name in PROGRAMS {
        if let Ok(real) = programs.join(name).canonicalize() {
            files.insert(Path::new(PROGRAM_DIR).join(name), real);
        }
    }
    let mounts = files.into_iter().map(|(to, from)| BindMount { from, to, writable: false });
    Ok(mounts.take(MOST_FILES).collect())
}

/// The mounts of listed files of the driver: the libraries with all their names, and the programs. Other files are left
/// out.
///
/// # Errors
/// The list has no usable library of CUDA.
pub(super) fn mounts_of(paths: &[PathBuf]) -> Result<Vec<BindMount>, String> {
    let mut files = BTreeMap::new();
    let (mut libraries, mut stems, mut dirs) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for path in paths {
        let Ok(real) = path.canonicalize() else { continue };
        let (Some(name), Some(real_name)) = (file_name(path), file_name(&real)) else { continue };
        if !real.is_file() {
            continue;
        }
        if let (Some(stem), Some(_)) = (library_stem(name), library_stem(real_name)) {
            stems.insert(stem.to_owned());
            dirs.extend([path, &real].into_iter().filter_map(|path| path.parent()).map(Path::to_owned));
            files.entry(Path::new(LIBRARY_DIR).join(name)).or_insert_with(|| real.clone());
            libraries.insert(real);
        } else if name.starts_with("nvidia-")
            && real_name == name
            && path.parent().is_some_and(is_program_dir)
        {
            files.entry(Path::new(PROGRAM_DIR).join(name)).or_insert(real);
        }
    }
    // A list has no links, and programs look for libraries by links.
    for path in dirs.iter().filter_map(|dir| fs::read_dir(dir).ok()).flatten().flatten().map(|e| e.path()) {
        let Some(name) = file_name(&path) else { continue };
        if library_stem(name).is_some_and(|stem| stems.contains(stem))
            && let Ok(real) = path.canonicalize()
            && libraries.contains(&real)
        {
            files.entry(Path::new(LIBRARY_DIR).join(name)).or_insert(real);
        }
    }
    if !files.contains_key(&Path::new(LIBRARY_DIR).join(CUDA)) {
        return Err(format!("{CUDA} is not in its list"));
    }
    let mounts = files.into_iter().map(|(to, from)| BindMount { from, to, writable: false });
    Ok(mounts.take(MOST_LISTED_FILES).collect())
}

fn file_name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// The name of a library without its number, such as `libcuda`.
fn library_stem(name: &str) -> Option<&str> {
    let is_plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._+-".contains(c));
    let (stem, _) = name.split_once(".so")?;
    (is_plain && stem.starts_with("lib")).then_some(stem)
}

fn is_program_dir(dir: &Path) -> bool {
    dir.ends_with("bin") || dir.ends_with("sbin")
}

/// The name and the path in a line `libcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1` of this architecture.
fn cache_entry(line: &str) -> Option<(&str, &Path)> {
    let (name, rest) = line.trim().split_once(" (")?;
    let (kind, path) = rest.split_once(") => ")?;
    kind.split(',').any(|part| part.trim() == ARCHITECTURE).then(|| (name, Path::new(path)))
}

/// The version in the name of the library of CUDA, such as 550.54.15.
fn version(cuda: &Path) -> Option<String> {
    let version = cuda.file_name()?.to_str()?.strip_prefix("libcuda.so.")?;
    let is_version = version.contains('.') && version.chars().all(|c| c.is_ascii_digit() || c == '.');
    is_version.then(|| version.to_owned())
}

/// The stem and the name of one of the driver's libraries.
fn library_name(path: &Path) -> Option<(&'static str, String)> {
    let name = path.file_name()?.to_str()?;
    let (stem, _) = name.split_once(".so")?;
    let stem = LIBRARIES.into_iter().find(|known| *known == stem)?;
    Some((stem, name.to_owned()))
}

/// The value of [`SEARCH_PATH`]: `present`, then the directory of the driver's libraries. An image with libraries for
/// compatibility names them first.
pub fn search_path(present: Option<&str>) -> String {
    match present.filter(|text| !text.is_empty()) {
        None => LIBRARY_DIR.to_owned(),
        Some(text) if text.split(':').any(|dir| dir == LIBRARY_DIR) => text.to_owned(),
        Some(text) => format!("{text}:{LIBRARY_DIR}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const VERSION: &str = "550.54.15";

    /// A host with a driver of this layout: the libraries in `real`, links to them in `linked`. Returns the text of
    /// the loader's cache.
    fn host(root: &Path, real: &str, linked: &str) -> String {
        let (real, linked, bin) = (root.join(real), root.join(linked), root.join("usr/bin"));
        for dir in [&real, &linked, &bin] {
            fs::create_dir_all(dir).unwrap();
        }
        let mut cache = "6 libs found in cache `/etc/ld.so.cache'\n".to_owned();
        let libraries = [
            ("libcuda", "1"),
            ("libnvidia-ml", "1"),
            ("libnvidia-ptxjitcompiler", "1"),
            ("libnvidia-nvvm", "4"),
            ("libGLX_nvidia", "0"),
        ];
        for (stem, number) in libraries {
            let file = real.join(format!("{stem}.so.{VERSION}"));
            fs::write(&file, stem).unwrap();
            let link = linked.join(format!("{stem}.so.{number}"));
            symlink(&file, &link).unwrap();
            cache += &format!("\t{stem}.so.{number} (libc6,{ARCHITECTURE}) => {}\n", link.display());
        }
        // Not in the cache, as the driver's installer leaves it.
        fs::write(real.join(format!("libcudadebugger.so.{VERSION}")), "").unwrap();
        symlink("libcuda.so.1", linked.join("libcuda.so")).unwrap();
        // Of another architecture, of another version, of another maker.
        cache += &format!("\tlibcuda.so.1 (libc6) => {}/lib32/libcuda.so.1\n", root.display());
        fs::write(real.join("libnvidia-opencl.so.470.1.1"), "").unwrap();
        symlink("libnvidia-opencl.so.470.1.1", real.join("libnvidia-opencl.so.1")).unwrap();
        fs::write(real.join("libz.so.1"), "").unwrap();
        fs::write(bin.join("nvidia-smi"), "").unwrap();
        cache
    }

    fn names(mounts: &[BindMount]) -> Vec<String> {
        mounts.iter().map(|mount| mount.to.display().to_string()).collect()
    }

    #[test]
    fn the_libraries_of_the_drivers_version_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let cache = host(&root, "usr/lib", "usr/lib");
        let mounts = list_by(&cache, &root.join("usr/bin")).unwrap();
        let expected = [
            "/usr/bin/nvidia-smi",
            "/usr/local/nvidia/lib64/libcuda.so",
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/usr/local/nvidia/lib64/libcuda.so.550.54.15",
            "/usr/local/nvidia/lib64/libcudadebugger.so.550.54.15",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.550.54.15",
            "/usr/local/nvidia/lib64/libnvidia-nvvm.so.4",
            "/usr/local/nvidia/lib64/libnvidia-nvvm.so.550.54.15",
            "/usr/local/nvidia/lib64/libnvidia-ptxjitcompiler.so.1",
            "/usr/local/nvidia/lib64/libnvidia-ptxjitcompiler.so.550.54.15",
        ];
        assert_eq!(names(&mounts), expected);
        assert!(mounts.iter().all(|mount| !mount.writable && mount.from.starts_with(&root)));
        let by_number = mounts.iter().find(|mount| mount.to.ends_with("libcuda.so.1")).unwrap();
        assert_eq!(by_number.from, root.join("usr/lib/libcuda.so.550.54.15"), "a file, not a link");
    }

    #[test]
    fn links_from_another_directory_are_followed() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        // The layout of Debian.
        let cache = host(&root, "usr/lib/nvidia/current", "usr/lib");
        let found = names(&list_by(&cache, &root.join("none")).unwrap());
        for name in ["libcuda.so.1", "libnvidia-nvvm.so.4", "libcudadebugger.so.550.54.15"] {
            assert!(found.contains(&format!("{LIBRARY_DIR}/{name}")), "{name}: {found:?}");
        }
        assert!(!found.iter().any(|name| name.contains("nvidia-smi") || name.contains("GLX")), "{found:?}");
    }

    #[test]
    fn listed_libraries_have_all_their_names_and_other_files_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        host(&root, "usr/lib", "usr/lib");
        for name in ["nvidia-smi.conf", "secret", "libodd,dst=.so.1"] {
            fs::write(root.join("usr/lib").join(name), "").unwrap();
        }
        symlink(root.join("usr/lib/secret"), root.join("usr/lib/libsecret.so")).unwrap();
        symlink(root.join("usr/lib/secret"), root.join("usr/bin/nvidia-secret")).unwrap();
        let in_lib = |name: &str| root.join("usr/lib").join(name);
        let bin = |name: &str| root.join("usr/bin").join(name);
        let cuda = in_lib("libcuda.so.550.54.15");
        let others = [
            in_lib("libnvidia-ml.so.550.54.15"),
            in_lib("nvidia-smi.conf"),
            in_lib("secret"),
            in_lib("libsecret.so"),
            in_lib("libodd,dst=.so.1"),
            in_lib("libnone.so.1"),
            root.join("usr/lib"),
            bin("nvidia-smi"),
            bin("nvidia-secret"),
        ];
        assert_eq!(mounts_of(&others).unwrap_err(), "libcuda.so.1 is not in its list");
        let paths = [&others[..], std::slice::from_ref(&cuda)].concat();
        let mounts = mounts_of(&paths).unwrap();
        let expected = [
            "/usr/bin/nvidia-smi",
            "/usr/local/nvidia/lib64/libcuda.so",
            "/usr/local/nvidia/lib64/libcuda.so.1",
            "/usr/local/nvidia/lib64/libcuda.so.550.54.15",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
            "/usr/local/nvidia/lib64/libnvidia-ml.so.550.54.15",
        ];
        assert_eq!(names(&mounts), expected);
        let by_number = mounts.iter().find(|mount| mount.to.ends_with("libcuda.so.1")).unwrap();
        assert_eq!(by_number.from, cuda, "a file, not a link");
    }

    #[test]
    fn a_host_without_a_driver_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("libcuda.so.1");
        let cache = format!("\tlibcuda.so.1 (libc6,{ARCHITECTURE}) => {}\n", path.display());
        let reason = |cache: &str| list_by(cache, dir.path()).unwrap_err();
        assert_eq!(reason(""), "libcuda.so.1 is not in the cache of the loader");
        assert!(reason(&cache).contains("is unreadable"));
        // A stub without a version, as toolkits have it.
        fs::write(&path, "").unwrap();
        assert!(reason(&cache).ends_with("libcuda.so.1 names no version"));
    }

    #[test]
    fn the_search_path_of_an_image_stays_first() {
        assert_eq!(search_path(None), LIBRARY_DIR);
        assert_eq!(search_path(Some("")), LIBRARY_DIR);
        assert_eq!(search_path(Some("/opt/lib")), "/opt/lib:/usr/local/nvidia/lib64");
        let image = "/usr/local/nvidia/lib:/usr/local/nvidia/lib64";
        assert_eq!(search_path(Some(image)), image);
    }
}
