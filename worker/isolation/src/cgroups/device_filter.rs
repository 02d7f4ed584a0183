//! The filter of device nodes for a cgroup of version 2, which has no controller `devices`: a BPF program. The kernel
//! runs it whenever a process of the cgroup opens or makes a node, and removes it with the cgroup.
//!
//! The program reads the kernel's `struct bpf_cgroup_dev_ctx`, three numbers of 32 bits: the access, the major number
//! and the minor number of the node. The lower half of the access is the kind of the node (1 block, 2 character), the
//! upper half has the bits 1 make, 2 read and 4 write. The program returns 1 to permit the access and 0 to deny it
//! (EPERM).

#![expect(unsafe_code, reason = "the kernel's calls for BPF programs have no wrapper")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr;

use nix::libc;

use super::device_rules::DeviceRule;

/// The codes of instructions.
const LOAD: u8 = 0x61;
const AND: u8 = 0x57;
const JUMP_IF_EQUAL: u8 = 0x15;
const JUMP_UNLESS_EQUAL: u8 = 0x55;
const SET: u8 = 0xb7;
const EXIT: u8 = 0x95;

/// The registers: the answer, the address of the input, and the three numbers of it.
const ANSWER: u8 = 0;
const INPUT: u8 = 1;
const ACCESS: u8 = 2;
const MAJOR: u8 = 3;
const MINOR: u8 = 4;

/// The bits of an access that decide: the kind of the node and the bit for its making.
const KIND_AND_MAKING: i32 = 0x1_ffff;
/// These bits at the opening of a character device.
const CHARACTER_OPENED: i32 = 2;

/// The commands of `bpf(2)`.
const PROGRAM_LOAD: libc::c_int = 5;
const PROGRAM_ATTACH: libc::c_int = 8;
/// The kind of the program, and of its place at a cgroup.
const CGROUP_DEVICE_PROGRAM: u32 = 15;
const CGROUP_DEVICE_PLACE: u32 = 6;
/// Filters of cgroups above and below also count.
const ALLOW_MULTI: u32 = 2;
/// The kernel wants the license of each program. This program calls no function of the kernel.
const LICENSE: &CStr = c"Apache-2.0";
/// The name in lists of programs, such as `bpftool prog`.
const NAME: [u8; 16] = *b"berth_devices\0\0\0";
/// The most tries of a load, which a signal to the thread interrupts.
const MAX_TRIES: u32 = 5;

/// The kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Instruction {
    code: u8,
    /// The source in the upper half and the target in the lower half, as on all processors of boards.
    registers: u8,
    offset: i16,
    value: i32,
}

/// The first fields of the kernel's `union bpf_attr` for the load of a program.
#[repr(C)]
struct LoadAttributes {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
}

/// The same for the attachment of a program.
#[repr(C)]
struct AttachAttributes {
    target: libc::c_int,
    program: libc::c_int,
    place: u32,
    flags: u32,
}

/// The instruction that loads the number at an offset of the input.
const fn load(target: u8, offset: i16) -> Instruction {
    Instruction { code: LOAD, registers: (INPUT << 4) | target, offset, value: 0 }
}

/// An instruction with one register and a value. A jump skips `offset` instructions.
const fn with_value(code: u8, target: u8, offset: i16, value: i32) -> Instruction {
    Instruction { code, registers: target, offset, value }
}

/// The end of a program with its answer.
const fn answer(value: i32) -> [Instruction; 2] {
    [with_value(SET, ANSWER, 0, value), with_value(EXIT, 0, 0, 0)]
}

/// The program that permits these character devices for reading and writing, and nothing else.
fn program(rules: &[DeviceRule]) -> Vec<Instruction> {
    let unless = |register, number: u32, skipped| {
        with_value(JUMP_UNLESS_EQUAL, register, skipped, number.cast_signed())
    };
    let mut all = vec![
        load(ACCESS, 0),
        load(MAJOR, 4),
        load(MINOR, 8),
        with_value(AND, ACCESS, 0, KIND_AND_MAKING),
        with_value(JUMP_IF_EQUAL, ACCESS, 2, CHARACTER_OPENED),
    ];
    all.extend(answer(0));
    for DeviceRule { major, minor } in rules {
        // Each jump leads behind this rule.
        match minor {
            Some(minor) => all.extend([unless(MAJOR, *major, 3), unless(MINOR, *minor, 2)]),
            None => all.push(unless(MAJOR, *major, 2)),
        }
        all.extend(answer(1));
    }
    all.extend(answer(0));
    all
}

/// Calls the kernel's `bpf`.
///
/// # Safety
/// `attributes` has the layout of the kernel for this command, and its addresses are valid during the call.
unsafe fn bpf<T>(command: libc::c_int, attributes: &T) -> io::Result<libc::c_int> {
    // SAFETY: the caller promises the layout. The kernel only reads the attributes, and not beyond their size.
    let done = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attributes), size_of::<T>()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    libc::c_int::try_from(done).map_err(io::Error::other)
}

/// Loads a program into the kernel.
fn load_program(instructions: &[Instruction]) -> io::Result<OwnedFd> {
    let attributes = LoadAttributes {
        kind: CGROUP_DEVICE_PROGRAM,
        count: u32::try_from(instructions.len()).map_err(io::Error::other)?,
        instructions: instructions.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        log_level: 0,
        log_bytes: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: NAME,
    };
    let mut tries = 1;
    loop {
        // SAFETY: the layout is that of the kernel, and the instructions and the license outlive the call.
        match unsafe { bpf(PROGRAM_LOAD, &attributes) } {
            // SAFETY: the kernel made this descriptor for the caller.
            Ok(descriptor) => return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && tries < MAX_TRIES => tries += 1,
            Err(error) => return Err(error),
        }
    }
}

/// Attaches a filter to the cgroup in this directory: its processes may open these devices only, and make none.
///
/// # Errors
/// The kernel refuses the filter: it has no BPF programs for cgroups, or this process has no right to them.
pub(super) fn attach(dir: &Path, rules: &[DeviceRule]) -> io::Result<()> {
    let cgroup = File::open(dir)?;
    let program = load_program(&program(rules))?;
    let attributes = AttachAttributes {
        target: cgroup.as_raw_fd(),
        program: program.as_raw_fd(),
        place: CGROUP_DEVICE_PLACE,
        flags: ALLOW_MULTI,
    };
    // SAFETY: the layout is that of the kernel, and both descriptors are open.
    unsafe { bpf(PROGRAM_ATTACH, &attributes) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::process::Command;

    use super::super::device_rules::device_rules;
    use super::super::directory::{Allowance, Controller};
    use super::super::hierarchies::Cgroups;
    use super::*;
    use crate::left_out::left_out;

    /// The kinds of nodes, and the bits of accesses.
    const BLOCK: u32 = 1;
    const CHARACTER: u32 = 2;
    const MAKE: u32 = 1 << 16;
    const READ: u32 = 2 << 16;
    const WRITE: u32 = 4 << 16;

    /// Runs a program as the kernel does.
    fn run(program: &[Instruction], input: [u32; 3]) -> i64 {
        let mut registers = [0_i64; 5];
        let mut at = 0;
        loop {
            let Instruction { code, registers: both, offset, value } = program[at];
            let target = usize::from(both & 0xf);
            let skipped = usize::try_from(offset).unwrap();
            at += 1;
            match code {
                LOAD => registers[target] = i64::from(input[skipped / 4]),
                AND => registers[target] &= i64::from(value),
                SET => registers[target] = i64::from(value),
                JUMP_IF_EQUAL if registers[target] == i64::from(value) => at += skipped,
                JUMP_UNLESS_EQUAL if registers[target] != i64::from(value) => at += skipped,
                JUMP_IF_EQUAL | JUMP_UNLESS_EQUAL => {}
                EXIT => return registers[usize::from(ANSWER)],
                other => panic!("an unknown code {other}"),
            }
        }
    }

    #[test]
    fn the_program_permits_its_rules_and_nothing_else() {
        let mut rules = device_rules(&[]).unwrap();
        rules.push(DeviceRule { major: 195, minor: Some(255) });
        let program = program(&rules);
        let permits = |access, major, minor| run(&program, [access, major, minor]) == 1;
        for (major, minor) in [(1, 3), (5, 2), (136, 0), (136, 7), (195, 255)] {
            for access in [READ, WRITE, READ | WRITE] {
                assert!(permits(CHARACTER | access, major, minor), "{access:x} {major}:{minor}");
                assert!(!permits(BLOCK | access, major, minor), "{access:x} {major}:{minor}");
                assert!(!permits(CHARACTER | MAKE | access, major, minor), "{access:x} {major}:{minor}");
            }
        }
        for (major, minor) in [(1, 11), (1, 255), (5, 1), (195, 0), (255, 195), (3, 1)] {
            assert!(!permits(CHARACTER | READ, major, minor), "{major}:{minor}");
        }
    }

    /// Real cgroups of version 2 alone. `None`: no root rights, no version 2, or a kernel that refuses.
    fn second_version(root: &Path) -> Option<Cgroups> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let second = mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let second: String = second.map(|line| format!("{line}\n")).collect();
        let found = Cgroups::from_mounts(&second, "berth-test", root);
        if found.version_text(Controller::Devices).is_some() {
            return Some(found);
        }
        let why = found.device_filter_refusal().unwrap_or("no cgroup of version 2 can be made");
        left_out(format!("no filter of device nodes on this machine: {why}"));
        None
    }

    /// Makes a node of a device that does not exist. `None`: this machine makes or opens no such nodes.
    fn make_node(path: PathBuf, minor: &str) -> Option<PathBuf> {
        let made = Command::new("mknod").arg(&path).args(["c", "240", minor]).status().unwrap();
        let opened = File::open(&path).map_err(|error| error.raw_os_error());
        let works = made.success() && opened.is_err_and(|error| error == Some(libc::ENXIO));
        if !works {
            left_out("this machine makes no device nodes");
        }
        works.then_some(path)
    }

    #[test]
    fn the_filter_keeps_nodes_apart_by_itself() {
        let root = tempfile::tempdir().unwrap();
        let Some(cgroups) = second_version(root.path()) else { return };
        assert_eq!(cgroups.version_text(Controller::Devices), Some("cgroup v2 (BPF)"));
        let node = |name: &str, minor| make_node(root.path().join(name), minor);
        let (Some(own), Some(other)) = (node("own", "210"), node("other", "211")) else { return };
        let allowance = Allowance { pids: 64, devices: vec![own.clone()], ..Allowance::default() };
        let group = cgroups.create("filtered", &allowance).unwrap();
        let joined: Vec<String> =
            group.places.iter().map(|p| format!("echo 0 > {}/cgroup.procs", p.dir.display())).collect();
        let made = root.path().join("made");
        let text = format!(
            "exec 2>&1\n{}\ncat {}\ncat {}\nmknod {} c 1 3\ncat /dev/null && echo usual\n",
            joined.join("\n"),
            own.display(),
            other.display(),
            made.display()
        );
        let output = Command::new("sh").args(["-c", &text]).env("LC_ALL", "C").output().unwrap();
        let log = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        assert_eq!(lines.len(), 4, "{log}");
        let denied = |line: &str| line.ends_with("Operation not permitted");
        assert!(lines[0].ends_with("No such device or address"), "permitted, but no device: {log}");
        assert!(denied(lines[1]), "the node of another: {log}");
        assert!(denied(lines[2]) && !made.exists(), "{log}");
        assert_eq!(lines[3], "usual", "{log}");
        cgroups.end(&group).unwrap();
        assert!(group.places.iter().all(|place| !place.dir.exists()));
    }

    #[test]
    fn a_directory_without_a_cgroup_takes_no_filter() {
        let dir = tempfile::tempdir().unwrap();
        assert!(attach(dir.path(), &device_rules(&[]).unwrap()).is_err());
        assert!(attach(&dir.path().join("absent"), &[]).is_err());
    }
}
