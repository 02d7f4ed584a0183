//! A directory as a tar archive (POSIX ustar, with pax records for long values), and back.
//!
//! The reader accepts only directories, files and links that stay inside. Blocking.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use berth_system::files::join_inside;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{UnlinkatFlags, symlinkat, unlinkat};
use sha2::{Digest, Sha256};

use super::tree::{self, TreeEntry, TreeEntryKind, TreeListing};

const BLOCK: usize = 512;
/// The highest number of eleven octal digits.
const MOST_OCTAL: u64 = 0o777_7777_7777;
/// The pax comment with the permissions of the packed directory itself, unless they are `OWN_MODE`, which every
/// directory of a worker has.
const MODE_COMMENT: &str = "berth-mode:";
const OWN_MODE: u32 = 0o700;
/// The longest pax header: two long paths fit.
const MOST_PAX: u64 = 4_096;

#[derive(Debug)]
pub enum PackError {
    /// The directory was changed meanwhile.
    Changed,
    TooLarge,
    Io(io::Error),
}

impl From<io::Error> for PackError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The length and hash of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSum {
    pub bytes: u64,
    pub sha256: Vec<u8>,
}

struct HashingWriter {
    to: io::BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl Write for HashingWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.to.write_all(data)?;
        self.hash.update(data);
        self.bytes += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the archive is damaged: {why}"))
}

/// Writes `text` into a header at `at`, cut to `width`.
fn set_field(header: &mut [u8; BLOCK], at: usize, width: usize, text: &[u8]) {
    let width = width.min(text.len());
    if let (Some(to), Some(from)) = (header.get_mut(at..at + width), text.get(..width)) {
        to.copy_from_slice(from);
    }
}

fn header(name: &str, kind: u8, bytes: u64, entry: &TreeEntry, link: &str) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    set_field(&mut header, 0, 100, name.as_bytes());
    set_field(&mut header, 100, 8, format!("{:07o}", entry.mode).as_bytes());
    set_field(&mut header, 108, 8, b"0000000");
    set_field(&mut header, 116, 8, b"0000000");
    set_field(&mut header, 124, 12, format!("{:011o}", bytes.min(MOST_OCTAL)).as_bytes());
    set_field(&mut header, 136, 12, format!("{:011o}", entry.modified_s.min(MOST_OCTAL)).as_bytes());
    // The checksum counts its own field as blanks.
    set_field(&mut header, 148, 8, b"        ");
    set_field(&mut header, 156, 1, &[kind]);
    set_field(&mut header, 157, 100, link.as_bytes());
    set_field(&mut header, 257, 8, b"ustar\x0000");
    let sum: u32 = header.iter().map(|b| u32::from(*b)).sum();
    set_field(&mut header, 148, 8, format!("{sum:06o}\0 ").as_bytes());
    header
}

/// A record `LENGTH key=value\n`, whose length counts itself.
fn pax_record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len() + 1;
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}")
}

fn pad(to: &mut impl Write, bytes: u64) -> io::Result<()> {
    let over = usize::try_from(bytes % BLOCK as u64).unwrap_or(0);
    let zeros = [0; BLOCK];
    to.write_all(zeros.get(..(BLOCK - over) % BLOCK).unwrap_or_default())
}

/// `root_mode` are the permissions of the packed directory, written before its first entry.
fn write_entry(
    to: &mut HashingWriter,
    root: &OwnedFd,
    entry: &TreeEntry,
    root_mode: Option<u32>,
) -> Result<(), PackError> {
    let (kind, link) = match &entry.kind {
        TreeEntryKind::Dir => (b'5', ""),
        TreeEntryKind::File => (b'0', ""),
        TreeEntryKind::Link(target) => (b'2', target.as_str()),
    };
    let mut records =
        root_mode.map_or_else(String::new, |mode| pax_record("comment", &format!("{MODE_COMMENT}{mode:o}")));
    if entry.path.len() > 100 {
        records.push_str(&pax_record("path", &entry.path));
    }
    if entry.bytes > MOST_OCTAL {
        records.push_str(&pax_record("size", &entry.bytes.to_string()));
    }
    if !records.is_empty() {
        to.write_all(&header("pax", b'x', records.len() as u64, entry, ""))?;
        to.write_all(records.as_bytes())?;
        pad(to, records.len() as u64)?;
    }
    to.write_all(&header(&entry.path, kind, entry.bytes, entry, link))?;
    if entry.kind == TreeEntryKind::File {
        let opened = tree::open_file(root, entry).map_err(|_| PackError::Changed)?;
        let file = opened.ok_or(PackError::Changed)?;
        let copied = io::copy(&mut file.take(entry.bytes), to)?;
        if copied != entry.bytes {
            return Err(PackError::Changed);
        }
        pad(to, entry.bytes)?;
    }
    Ok(())
}

/// Writes the listed files to `to`, up to `most` bytes. Only a further listing proves that nothing was changed
/// meanwhile.
pub fn pack(root: &OwnedFd, listing: &TreeListing, to: File, most: u64) -> Result<ArchiveSum, PackError> {
    // A hole is written, and counts, with its full length.
    let estimate = listing.entries.iter().map(|e| e.bytes.saturating_add(BLOCK as u64));
    if estimate.fold(0u64, u64::saturating_add) > most {
        return Err(PackError::TooLarge);
    }
    let mut to =
        HashingWriter { to: io::BufWriter::with_capacity(1 << 20, to), hash: Sha256::new(), bytes: 0 };
    let mut root_mode = Some(tree::mode(root)?).filter(|mode| *mode != OWN_MODE);
    for entry in &listing.entries {
        write_entry(&mut to, root, entry, root_mode.take())?;
    }
    to.write_all(&[0; 2 * BLOCK])?;
    to.flush()?;
    Ok(ArchiveSum { bytes: to.bytes, sha256: to.hash.finalize().to_vec() })
}

fn parse_octal(field: Option<&[u8]>) -> io::Result<u64> {
    let text = std::str::from_utf8(field.unwrap_or_default()).map_err(|_| invalid("a number"))?;
    u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).map_err(|_| invalid("a number"))
}

fn parse_text(field: Option<&[u8]>) -> io::Result<String> {
    let field = field.unwrap_or_default().split(|b| *b == 0).next().unwrap_or_default();
    String::from_utf8(field.to_vec()).map_err(|_| invalid("a name"))
}

/// The values of a pax header for the next entry, and for the packed directory.
#[derive(Default)]
struct PaxValues {
    path: Option<String>,
    bytes: Option<u64>,
    root_mode: Option<u32>,
}

fn parse_pax(body: &str) -> io::Result<PaxValues> {
    let (mut values, mut rest) = (PaxValues::default(), body);
    while !rest.is_empty() {
        let (length, _) = rest.split_once(' ').ok_or_else(|| invalid("a record"))?;
        let end: usize = length.parse().map_err(|_| invalid("a record"))?;
        let record = rest.get(length.len() + 1..end).and_then(|r| r.strip_suffix('\n'));
        match record.and_then(|r| r.split_once('=')) {
            Some(("path", value)) => values.path = Some(value.to_owned()),
            Some(("size", value)) => values.bytes = Some(value.parse().map_err(|_| invalid("a size"))?),
            Some(("comment", value)) => {
                let mode = value.strip_prefix(MODE_COMMENT);
                values.root_mode = mode.and_then(|mode| u32::from_str_radix(mode, 8).ok());
            }
            Some(_) => {}
            None => return Err(invalid("a record")),
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    Ok(values)
}

fn skip_padding(from: &mut impl Read, bytes: u64) -> io::Result<()> {
    let over = (BLOCK as u64 - bytes % BLOCK as u64) % BLOCK as u64;
    io::copy(&mut from.take(over), &mut io::sink()).map(|_| ())
}

/// Copies `bytes` without stretches of zeros, so holes are restored.
fn write_sparse(from: &mut impl Read, file: &mut File, bytes: u64) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    let mut buffer = vec![0; 64 << 10];
    let mut at = 0;
    while at < bytes {
        let next = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(buffer.len());
        let Some(piece) = buffer.get_mut(..next) else { break };
        from.read_exact(piece)?;
        if piece.iter().any(|b| *b != 0) {
            file.write_all_at(piece, at)?;
        }
        at += next as u64;
    }
    file.set_len(bytes)
}

fn remove_existing(dir: &OwnedFd, name: &str) {
    // The later creation reports a name that could not be removed.
    let _ = unlinkat(dir, name, UnlinkatFlags::NoRemoveDir);
}

fn permissions(mode: u32) -> Mode {
    Mode::from_bits_truncate(mode & 0o777)
}

fn create_entry(root: &OwnedFd, path: &str, head: &EntryHeader, from: &mut impl Read) -> io::Result<()> {
    let mode = permissions(head.mode);
    match head.kind {
        b'5' => {
            let parts: Vec<&str> = path.split('/').collect();
            let dir = tree::descend(root, &parts, true)?;
            // Its content needs write permission until all of it is created.
            fchmod(&dir, mode | Mode::S_IRWXU)?;
        }
        b'2' => {
            let (dir, name) = tree::parent_of(root, path, true)?;
            if join_inside(Path::new(""), &head.link).is_none() {
                return Err(invalid("a link leads out of the directory"));
            }
            remove_existing(&dir, name);
            symlinkat(head.link.as_str(), &dir, name)?;
        }
        b'0' => {
            let (dir, name) = tree::parent_of(root, path, true)?;
            remove_existing(&dir, name);
            let flags =
                OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
            let mut file = File::from(openat(&dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
            write_sparse(from, &mut file, head.bytes)?;
            skip_padding(from, head.bytes)?;
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(head.modified_s))?;
            fchmod(&file, mode)?;
        }
        _ => return Err(invalid("an unknown kind of entry")),
    }
    Ok(())
}

/// A parsed header.
struct EntryHeader {
    path: String,
    kind: u8,
    mode: u32,
    bytes: u64,
    modified_s: u64,
    link: String,
}

/// The next header. `None`: the end of the archive.
fn read_header(from: &mut impl Read) -> io::Result<Option<EntryHeader>> {
    let mut block = [0; BLOCK];
    from.read_exact(&mut block)?;
    if block.iter().all(|b| *b == 0) {
        return Ok(None);
    }
    let expected = parse_octal(block.get(148..156))?;
    set_field(&mut block, 148, 8, b"        ");
    if block.iter().map(|b| u64::from(*b)).sum::<u64>() != expected {
        return Err(invalid("a header's sum"));
    }
    Ok(Some(EntryHeader {
        path: parse_text(block.get(..100))?,
        kind: block.get(156).copied().unwrap_or(0),
        mode: u32::try_from(parse_octal(block.get(100..108))?).unwrap_or(0),
        bytes: parse_octal(block.get(124..136))?,
        modified_s: parse_octal(block.get(136..148))?.min(1 << 40),
        link: parse_text(block.get(157..257))?,
    }))
}

/// Reads the values of a pax header.
fn read_pax(from: &mut impl Read, head: &EntryHeader) -> io::Result<PaxValues> {
    if head.bytes > MOST_PAX {
        return Err(invalid("a long record"));
    }
    let mut body = vec![0; usize::try_from(head.bytes).unwrap_or(0)];
    from.read_exact(&mut body)?;
    skip_padding(from, head.bytes)?;
    parse_pax(std::str::from_utf8(&body).map_err(|_| invalid("a record"))?)
}

/// Creates the content of an archive below `root`, in place of existing entries.
pub fn unpack(mut from: impl Read, root: &OwnedFd) -> io::Result<()> {
    let (mut pax, mut root_mode) = (PaxValues::default(), None);
    // Directories whose owner lacks a permission, with their permissions.
    let mut restricted: Vec<(String, u32)> = Vec::new();
    while let Some(mut head) = read_header(&mut from)? {
        if head.kind == b'x' {
            pax = read_pax(&mut from, &head)?;
            root_mode = pax.root_mode.or(root_mode);
            continue;
        }
        let values = std::mem::take(&mut pax);
        head.bytes = values.bytes.unwrap_or(head.bytes);
        let path = values.path.unwrap_or_else(|| std::mem::take(&mut head.path));
        if join_inside(Path::new(""), &path).is_none() || path.split('/').any(|part| matches!(part, "" | "."))
        {
            return Err(invalid("a path leads out of the directory"));
        }
        create_entry(root, &path, &head, &mut from)?;
        if head.kind == b'5' && !permissions(head.mode).contains(Mode::S_IRWXU) {
            restricted.push((path, head.mode));
        }
    }
    // The innermost first: its parents may lose the permission to enter.
    for (path, mode) in restricted.iter().rev() {
        let parts: Vec<&str> = path.split('/').collect();
        fchmod(tree::descend(root, &parts, false)?, permissions(*mode))?;
    }
    root_mode.map_or(Ok(()), |mode| Ok(fchmod(root, permissions(mode))?))
}

#[cfg(test)]
mod tests {
    use super::super::tree::{list, open_root};
    use super::*;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

    fn packed(dir: &Path, most: u64) -> Result<Vec<u8>, PackError> {
        let root = open_root(dir).unwrap();
        let out = tempfile::NamedTempFile::new().unwrap();
        let sum = pack(&root, &list(&root, None).unwrap(), out.reopen().unwrap(), most)?;
        let bytes = std::fs::read(out.path()).unwrap();
        assert_eq!((sum.bytes, sum.sha256), (bytes.len() as u64, Sha256::digest(&bytes).to_vec()));
        Ok(bytes)
    }

    fn unpacked(bytes: &[u8], dir: &Path) -> io::Result<()> {
        unpack(bytes, &open_root(dir).unwrap())
    }

    #[test]
    fn what_is_packed_comes_back() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let long = format!("{}/{}", "d".repeat(90), "f".repeat(90));
        std::fs::create_dir_all(from.path().join("d".repeat(90))).unwrap();
        std::fs::write(from.path().join(&long), "long").unwrap();
        std::fs::write(from.path().join("empty"), "").unwrap();
        std::fs::write(from.path().join("block"), vec![7; 512]).unwrap();
        std::fs::write(from.path().join("grüße"), "x").unwrap();
        std::fs::set_permissions(from.path().join("block"), std::fs::Permissions::from_mode(0o755)).unwrap();
        symlink("block", from.path().join("latest")).unwrap();
        let hole = std::fs::File::create(from.path().join("hole")).unwrap();
        hole.set_len(1 << 20).unwrap();
        let bytes = packed(from.path(), u64::MAX).unwrap();
        std::fs::write(to.path().join("block"), "what was there before").unwrap();
        unpacked(&bytes, to.path()).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join(&long)).unwrap(), "long");
        assert_eq!(std::fs::read(to.path().join("block")).unwrap(), vec![7; 512]);
        assert_eq!(to.path().join("block").metadata().unwrap().mode() & 0o777, 0o755);
        assert_eq!(std::fs::read_link(to.path().join("latest")).unwrap(), Path::new("block"));
        let hole = to.path().join("hole").metadata().unwrap();
        assert!(hole.len() == 1 << 20 && hole.blocks() < 64, "a hole is a hole again: {}", hole.blocks());
        let again = packed(to.path(), u64::MAX).unwrap();
        assert_eq!(again.len(), bytes.len());
        assert!(matches!(packed(from.path(), 1_000), Err(PackError::TooLarge)));
    }

    #[test]
    fn directories_come_back_with_their_permissions() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let modes = [("", 0o750), ("a", 0o755), ("a/closed", 0o500), ("a/closed/in", 0o300), ("own", 0o700)];
        let allow = |dir: &Path, mode: u32| {
            std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        for (name, _) in modes {
            std::fs::create_dir_all(from.path().join(name)).unwrap();
        }
        std::fs::write(from.path().join("a/closed/file"), "x").unwrap();
        for (name, mode) in modes.iter().rev() {
            allow(&from.path().join(name), *mode);
        }
        let root = open_root(from.path()).unwrap();
        let listing = list(&root, None).unwrap();
        // Only root can list an unreadable directory.
        let unread = listing.left_out.count;
        unpacked(&packed(from.path(), u64::MAX).unwrap(), to.path()).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join("a/closed/file")).unwrap(), "x");
        for (name, mode) in modes {
            let now = to.path().join(name).metadata().unwrap().mode() & 0o777;
            assert_eq!(format!("{name} {now:o}"), format!("{name} {mode:o}"), "{unread} unread");
        }
        for dir in [from.path(), to.path()] {
            ["a/closed", "a/closed/in"].iter().for_each(|name| allow(&dir.join(name), 0o700));
        }
    }

    #[test]
    fn other_programs_read_it() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        // The mode is in a pax comment, which other programs ignore.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
        std::fs::write(dir.path().join("sub").join("n".repeat(120)), "text").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), packed(dir.path(), u64::MAX).unwrap()).unwrap();
        let script = "import sys, tarfile\nt = tarfile.open(sys.argv[1])\nfor m in t: print(m.name, m.size)";
        let out =
            std::process::Command::new("python3").args(["-c", script]).arg(file.path()).output().unwrap();
        let output = String::from_utf8(out.stdout).unwrap();
        assert_eq!(output, format!("sub 0\nsub/{} 4\n", "n".repeat(120)));
    }

    #[test]
    fn what_is_broken_or_leads_out_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), vec![1; 2_000]).unwrap();
        let bytes = packed(dir.path(), u64::MAX).unwrap();
        let to = tempfile::tempdir().unwrap();
        for cut in [0, 100, 512, 1_500, bytes.len() - 1_024] {
            assert!(unpacked(&bytes[..cut], to.path()).is_err(), "cut at {cut}");
        }
        let mut wrong = bytes.clone();
        wrong[3] = b'z';
        assert!(unpacked(&wrong, to.path()).is_err());
        let entry = TreeEntry {
            path: String::new(),
            kind: TreeEntryKind::Dir,
            bytes: 0,
            mode: 0o755,
            modified_s: 0,
            stamp: (0, 0, 0),
        };
        for (name, kind, link) in [
            ("../x", b'0', ""),
            ("/x", b'0', ""),
            ("a/../../x", b'5', ""),
            ("", b'5', ""),
            ("x", b'2', "/etc"),
            ("x", b'2', "../y"),
            ("x", b'3', ""),
            ("x", b'1', "a"),
        ] {
            let mut archive = header(name, kind, 0, &entry, link).to_vec();
            archive.extend([0; 1_024]);
            assert!(unpacked(&archive, to.path()).is_err(), "{name} {kind} {link}");
        }
        // No entry is created through an existing link.
        symlink(dir.path(), to.path().join("l")).unwrap();
        let mut archive = header("l/x", b'0', 0, &entry, "").to_vec();
        archive.extend([0; 1_024]);
        assert!(unpacked(&archive, to.path()).is_err() && !dir.path().join("x").exists());
    }
}
