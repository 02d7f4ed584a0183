//! The XIDs that the kernel's log tells of: NVML tells them only to whoever listens, and nobody does while no
//! daemon is there.
//!
//! Only reads; which of them are news is `ward`'s to know. The log is `/dev/kmsg`, one record for each line.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// Where the kernel has its log.
pub const KMSG: &str = "/dev/kmsg";
/// More than one record ever has.
const RECORD: usize = 16 << 10;
/// Records that are taken in one look; more than a kernel keeps.
const MOST: usize = 1 << 20;

/// Where a board is: domain, bus and device.
type Place = (u32, u32, u32);

/// An XID that the log tells of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raised {
    /// The number of its record, which grows as long as the host is up.
    pub seq: u64,
    pub xid: u64,
    place: Place,
}

impl Raised {
    /// The XID that a record tells of: `4,812,5093215,-;NVRM: Xid (PCI:0000:3b:00): 79, …`.
    pub fn read(record: &str) -> Option<Self> {
        let (head, words) = record.split_once(';')?;
        let mut head = head.split(',');
        let (level, seq) = (head.next()?.parse::<u32>().ok()?, head.next()?.parse::<u64>().ok()?);
        // What programs write into the log has another facility than the kernel's own.
        if level >> 3 != 0 {
            return None;
        }
        let (at, rest) = words.strip_prefix("NVRM: Xid (PCI:")?.split_once("):")?;
        // The instance may stand behind the board.
        let place = place(at.split_whitespace().next()?)?;
        let code = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self { seq, xid: code.parse().ok()?, place })
    }

    /// Whether it is of the board at this PCI address, as NVML writes it.
    pub fn is_of(&self, pci_bus_id: &str) -> bool {
        place(pci_bus_id) == Some(self.place)
    }
}

/// From `0000:3b:00`, with or without a function behind it.
fn place(text: &str) -> Option<Place> {
    let device = text.split('.').next()?;
    let mut parts = device.split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let place = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(place)
}

/// The log, as far as it was not read yet.
#[derive(Debug)]
pub struct KernelLog {
    path: PathBuf,
    file: Option<File>,
    /// The beginning of a line.
    rest: String,
}

impl KernelLog {
    pub const fn at(path: PathBuf) -> Self {
        Self { path, file: None, rest: String::new() }
    }

    /// The XIDs since the last look, at first all that it still has; `None` when it cannot be read.
    pub fn news(&mut self) -> Option<Vec<Raised>> {
        if self.file.is_none() {
            let nonblocking = OFlag::O_NONBLOCK.bits();
            self.file = OpenOptions::new().read(true).custom_flags(nonblocking).open(&self.path).ok();
        }
        let file = self.file.as_mut()?;
        let mut buffer = vec![0u8; RECORD];
        let mut out = Vec::new();
        for _ in 0..MOST {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    self.rest.push_str(&String::from_utf8_lossy(buffer.get(..n).unwrap_or_default()));
                    let Some((whole, begun)) = self.rest.rsplit_once('\n') else { continue };
                    out.extend(whole.lines().filter_map(Raised::read));
                    self.rest = begun.to_owned();
                }
                // Some were overwritten before they were read.
                Err(error) if error.raw_os_error() == Some(Errno::EPIPE as i32) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.file = None;
                    return None;
                }
            }
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const FALLEN: &str = "4,812,5093215,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.";

    #[test]
    fn a_record_is_an_xid_or_nothing() {
        let found = Raised::read(FALLEN).unwrap();
        assert_eq!((found.seq, found.xid), (812, 79));
        assert!(found.is_of("00000000:3B:00.0") && found.is_of("0000:3b:00"));
        for other in ["00000001:3B:00.0", "00000000:3C:00.0", "00000000:3B:01.0", "", "x", "0:0:0:0"] {
            assert!(!found.is_of(other), "{other}");
        }
        let of_slice = "4,9,1,-;NVRM: Xid (PCI:0000:10:00 GPU-I:05): 94, pid=7, name=python, Contained";
        assert_eq!(Raised::read(of_slice).map(|r| (r.xid, r.is_of("00000000:10:00.0"))), Some((94, true)));
        for other in [
            "12,812,5093215,-;NVRM: Xid (PCI:0000:3b:00): 79, written by a program",
            "4,812,5093215,-;NVRM: GPU at PCI:0000:3b:00: GPU-1",
            "4,812,5093215,-;NVRM: Xid (PCI:0000:3b:00): , no number",
            "4,812,5093215,-;NVRM: Xid (PCI:0000:3b): 79, no device",
            "4,x,5093215,-;NVRM: Xid (PCI:0000:3b:00): 79, no number",
            "4,812,5093215,-;nvme: NVRM: Xid (PCI:0000:3b:00): 79, somebody else",
            " SUBSYSTEM=pci",
            "",
            ";",
        ] {
            assert_eq!(Raised::read(other), None, "{other}");
        }
    }

    #[test]
    fn it_is_read_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        let mut log = KernelLog::at(path.clone());
        assert_eq!(log.news(), None, "there is none");
        let (begin, end) = FALLEN.split_at(30);
        std::fs::write(&path, format!("6,811,1,-;up\n DEVICE=+pci:1\n{FALLEN}\n{begin}")).unwrap();
        assert_eq!(log.news().unwrap().len(), 1);
        assert_eq!(log.news(), Some(vec![]));
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(format!("{end}\n").as_bytes()).unwrap();
        assert_eq!(log.news().unwrap().len(), 1, "with its rest");
    }
}
