//! XIDs in the kernel's log. NVML reports an XID only to a running listener, so those of the time without a daemon
//! come from here; `board_health` knows which are new. The log is `/dev/kmsg`, one record in each line.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use nix::errno::Errno;
use nix::fcntl::OFlag;

/// The path of the kernel's log.
pub const KMSG: &str = "/dev/kmsg";
/// More bytes than a record has.
const RECORD: usize = 16 << 10;
/// The most records of one read; more than a kernel keeps.
const MOST: usize = 1 << 20;

/// The address of a board: domain, bus and device.
type LoggedAddress = (u32, u32, u32);

/// The result of one read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRead {
    pub xids: Vec<LoggedXid>,
    /// NVML may have reported only some of them, because nothing listened to its events for a time.
    pub event_gap: bool,
}

/// An XID in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedXid {
    /// The number of its record, which grows until the next boot.
    pub seq: u64,
    pub xid: u64,
    address: LoggedAddress,
}

impl LoggedXid {
    /// Parses a record such as `4,812,5093215,-;NVRM: Xid (PCI:0000:3b:00): 79, …`.
    pub fn parse(record: &str) -> Option<Self> {
        let (head, message) = record.split_once(';')?;
        let mut head = head.split(',');
        let (level, seq) = (head.next()?.parse::<u32>().ok()?, head.next()?.parse::<u64>().ok()?);
        // Records of programs have another facility than the kernel's.
        if level >> 3 != 0 {
            return None;
        }
        let (at, rest) = message.strip_prefix("NVRM: Xid (PCI:")?.split_once("):")?;
        // The instance may follow the board.
        let address = parse_address(at.split_whitespace().next()?)?;
        let code = rest.trim_start().split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self { seq, xid: code.parse().ok()?, address })
    }

    /// True if the XID is of the board at this PCI address, in the form of NVML.
    pub fn is_from(&self, pci_bus_id: &str) -> bool {
        parse_address(pci_bus_id) == Some(self.address)
    }
}

/// Parses `0000:3b:00`, with or without a function after it.
fn parse_address(text: &str) -> Option<LoggedAddress> {
    let device = text.split('.').next()?;
    let mut parts = device.split(':').map(|part| u32::from_str_radix(part, 16).ok());
    let address = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(address)
}

/// The unread part of the log.
#[derive(Debug)]
pub struct KernelLog {
    path: PathBuf,
    file: Option<File>,
    /// The start of an incomplete line.
    rest: String,
}

impl KernelLog {
    pub const fn new(path: PathBuf) -> Self {
        Self { path, file: None, rest: String::new() }
    }

    /// The XIDs since the last read; at first all of the log. `None`: the log cannot be read.
    pub fn read_new(&mut self) -> Option<Vec<LoggedXid>> {
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
                    out.extend(whole.lines().filter_map(LoggedXid::parse));
                    self.rest = begun.to_owned();
                }
                // The kernel overwrote records before they were read.
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
        let found = LoggedXid::parse(FALLEN).unwrap();
        assert_eq!((found.seq, found.xid), (812, 79));
        assert!(found.is_from("00000000:3B:00.0") && found.is_from("0000:3b:00"));
        for other in ["00000001:3B:00.0", "00000000:3C:00.0", "00000000:3B:01.0", "", "x", "0:0:0:0"] {
            assert!(!found.is_from(other), "{other}");
        }
        let of_slice = "4,9,1,-;NVRM: Xid (PCI:0000:10:00 GPU-I:05): 94, pid=7, name=python, Contained";
        assert_eq!(
            LoggedXid::parse(of_slice).map(|r| (r.xid, r.is_from("00000000:10:00.0"))),
            Some((94, true))
        );
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
            assert_eq!(LoggedXid::parse(other), None, "{other}");
        }
    }

    #[test]
    fn it_is_read_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        let mut log = KernelLog::new(path.clone());
        assert_eq!(log.read_new(), None, "there is none");
        let (begin, end) = FALLEN.split_at(30);
        std::fs::write(&path, format!("6,811,1,-;up\n DEVICE=+pci:1\n{FALLEN}\n{begin}")).unwrap();
        assert_eq!(log.read_new().unwrap().len(), 1);
        assert_eq!(log.read_new(), Some(vec![]));
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        file.write_all(format!("{end}\n").as_bytes()).unwrap();
        assert_eq!(log.read_new().unwrap().len(), 1, "with its rest");
    }
}
