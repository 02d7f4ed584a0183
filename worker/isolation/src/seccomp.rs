//! The system calls that no job needs, as programs for the kernel's filter.
//!
//! All other calls are allowed: the filter narrows a job's access to the kernel and decides no access to data. Calls
//! on processes (`ptrace`, `process_vm_readv`) stay: a job's PID namespace has only the job, and debuggers and
//! message passing need them. Pure.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use nix::libc;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, sock_filter,
};

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// The number of programs. All of them apply.
pub const PROGRAMS: usize = 2;

/// Calls that no job needs; refused as forbidden.
const FORBIDDEN: &[libc::c_long] = &[
    // Mounts and related calls.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_nfsservctl,
    libc::SYS_open_by_handle_at,
    // Other namespaces.
    libc::SYS_setns,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    // The kernel itself.
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_reboot,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_adjtimex,
    libc::SYS_clock_adjtime,
    // Large interfaces with a history of faults.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    // Namespaces do not separate keys.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
];

#[cfg(target_arch = "x86_64")]
const FORBIDDEN_HERE: &[libc::c_long] = &[libc::SYS_ioperm, libc::SYS_iopl, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const FORBIDDEN_HERE: &[libc::c_long] = &[];

/// Refused as unknown to this kernel, so libraries use the older calls. The flags of `clone3` are in memory, which a
/// filter cannot read.
const UNKNOWN: &[libc::c_long] =
    &[libc::SYS_clone3, libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];

/// `CLONE_NEW*`: mount, cgroup, host name, IPC, user, PID and network namespaces.
const NAMESPACES: [u64; 7] =
    [0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000];
/// `CLONE_NEWTIME` of `unshare`: for `clone` this bit is part of a signal number.
const TIME_NAMESPACE: u64 = 0x80;
/// `TIOCSTI` types into a terminal, `TIOCLINUX` into a console.
const TYPING: [u64; 2] = [0x5412, 0x541C];
/// `AF_VSOCK` reaches the hypervisor and the virtual machines of the host. No network namespace separates it.
const HYPERVISOR: [u64; 1] = [40];
/// Linux and 32-bit Linux, each with and without the old version number, and the query.
const PERSONALITIES: [u64; 5] = [0, 0x0008, 0x0002_0000, 0x0002_0008, 0xffff_ffff];

/// The first number of the x32 calls of x86-64.
const X32: u32 = 0x4000_0000;

fn condition(argument: u8, operator: SeccompCmpOp, value: u64) -> Result<SeccompCondition, BackendError> {
    // The kernel reads only the lower half of these arguments.
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value)
}

/// A rule for each bit; a set bit matches.
fn any_bit(argument: u8, bits: impl IntoIterator<Item = u64>) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |bit| SeccompRule::new(vec![condition(argument, SeccompCmpOp::MaskedEq(bit), bit)?]);
    bits.into_iter().map(rule).collect()
}

fn any_value(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let rule = |value: &u64| SeccompRule::new(vec![condition(argument, SeccompCmpOp::Eq, *value)?]);
    values.iter().map(rule).collect()
}

fn none_of(argument: u8, values: &[u64]) -> Result<Vec<SeccompRule>, BackendError> {
    let differs = |value: &u64| condition(argument, SeccompCmpOp::Ne, *value);
    Ok(vec![SeccompRule::new(values.iter().map(differs).collect::<Result<_, _>>()?)?])
}

fn compile(rules: Rules, errno: i32, arch: TargetArch) -> Result<BpfProgram, BackendError> {
    let refuse = SeccompAction::Errno(errno.unsigned_abs());
    // A call by another architecture's table kills the process: the filter knows only this one.
    SeccompFilter::new(rules, SeccompAction::Allow, refuse, arch)?.try_into()
}

fn forbidden() -> Result<Rules, BackendError> {
    let whole = FORBIDDEN.iter().chain(FORBIDDEN_HERE);
    let mut rules: Rules = whole.map(|call| (*call, Vec::new())).collect();
    let mut add = |call: libc::c_long, met: Vec<SeccompRule>| rules.insert(call, met);
    add(libc::SYS_clone, any_bit(0, NAMESPACES)?);
    add(libc::SYS_unshare, any_bit(0, NAMESPACES.into_iter().chain([TIME_NAMESPACE]))?);
    add(libc::SYS_ioctl, any_value(1, &TYPING)?);
    add(libc::SYS_socket, any_value(0, &HYPERVISOR)?);
    add(libc::SYS_personality, none_of(0, &PERSONALITIES)?);
    Ok(rules)
}

/// Makes the x32 calls unknown: their numbers would match no rule. Other machines have no such numbers.
fn without_x32(program: BpfProgram) -> BpfProgram {
    let step = |code, jf, k| sock_filter { code, jt: 0, jf, k };
    let unknown = libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs();
    // Load the number; unless it is at least X32, jump over the answer.
    let mut whole = vec![step(0x20, 0, 0), step(0x35, 1, X32), step(0x06, 0, unknown)];
    whole.extend(program);
    whole
}

/// The programs for the machine that this runs on.
fn programs() -> Result<[BpfProgram; PROGRAMS], BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let unknown: Rules = UNKNOWN.iter().map(|call| (*call, Vec::new())).collect();
    Ok([
        without_x32(compile(forbidden()?, libc::EPERM, arch)?),
        without_x32(compile(unknown, libc::ENOSYS, arch)?),
    ])
}

/// Applies the programs to this thread and its later programs, which can gain no privileges any more.
pub fn apply() -> Result<(), String> {
    for program in &programs().map_err(|e| format!("no filter of system calls: {e}"))? {
        seccompiler::apply_filter(program).map_err(|e| format!("no filter of system calls: {e}"))?;
    }
    Ok(())
}

/// The programs as the kernel takes them, made once. A fork of a process that has called this has them already.
pub fn filters() -> Result<&'static [Vec<u8>; PROGRAMS], String> {
    static FILTERS: LazyLock<Result<[Vec<u8>; PROGRAMS], String>> = LazyLock::new(|| {
        let bytes = |program: &BpfProgram| {
            let step = |s: &sock_filter| {
                let ([a, b], [c, d, e, f]) = (s.code.to_ne_bytes(), s.k.to_ne_bytes());
                [a, b, s.jt, s.jf, c, d, e, f]
            };
            program.iter().flat_map(step).collect::<Vec<u8>>()
        };
        let programs = programs().map_err(|e| format!("no filter of system calls: {e}"))?;
        Ok(programs.each_ref().map(bytes))
    });
    FILTERS.as_ref().map_err(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The answer of a program, by the kernel's rules for the steps that occur.
    fn answer(program: &[sock_filter], arch: u32, call: u32, args: [u64; 6]) -> u32 {
        let mut data = Vec::new();
        data.extend(call.to_ne_bytes());
        data.extend(arch.to_ne_bytes());
        data.extend([0; 8]);
        args.iter().for_each(|arg| data.extend(arg.to_ne_bytes()));
        let (mut at, mut acc) = (0, 0u32);
        loop {
            let step = &program[at];
            at += 1;
            let met = match step.code {
                0x20 => {
                    let from = step.k as usize;
                    acc = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                    continue;
                }
                0x54 => {
                    acc &= step.k;
                    continue;
                }
                0x05 => {
                    at += step.k as usize;
                    continue;
                }
                0x06 => return step.k,
                0x15 => acc == step.k,
                0x25 => acc > step.k,
                0x35 => acc >= step.k,
                other => panic!("a step that is not known here: {other:#x}"),
            };
            at += usize::from(if met { step.jt } else { step.jf });
        }
    }

    const HERE: u32 = if cfg!(target_arch = "x86_64") { 0xC000_003E } else { 0xC000_00B7 };
    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;

    /// The strictest answer of all programs, as the kernel takes it.
    fn verdict(call: libc::c_long, args: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let call = u32::try_from(call).unwrap();
        programs().unwrap().iter().map(|p| answer(p, HERE, call, all)).min().unwrap()
    }

    fn refused(errno: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | errno.unsigned_abs()
    }

    #[test]
    fn what_no_job_needs_is_refused() {
        for call in FORBIDDEN.iter().chain(FORBIDDEN_HERE) {
            assert_eq!(verdict(*call, &[]), refused(libc::EPERM), "{call}");
        }
        for call in UNKNOWN {
            assert_eq!(verdict(*call, &[]), refused(libc::ENOSYS), "{call}");
        }
    }

    #[test]
    fn what_jobs_need_is_allowed() {
        for call in [
            libc::SYS_read,
            libc::SYS_execve,
            libc::SYS_ptrace,
            libc::SYS_process_vm_readv,
            libc::SYS_memfd_create,
            libc::SYS_mbind,
            libc::SYS_sched_setaffinity,
            libc::SYS_prctl,
        ] {
            assert_eq!(verdict(call, &[]), ALLOWED, "{call}");
        }
    }

    #[test]
    fn processes_and_threads_are_made_but_no_namespaces() {
        // The flags of glibc for a thread and for a fork.
        for flags in [0x003d_0f00, 0x0120_0011] {
            assert_eq!(verdict(libc::SYS_clone, &[flags]), ALLOWED, "{flags:#x}");
        }
        for bit in NAMESPACES {
            assert_eq!(verdict(libc::SYS_clone, &[bit | 17]), refused(libc::EPERM), "{bit:#x}");
            // Bits above the lower half change nothing.
            assert_eq!(verdict(libc::SYS_unshare, &[bit | 1 << 40]), refused(libc::EPERM), "{bit:#x}");
        }
        assert_eq!(verdict(libc::SYS_unshare, &[TIME_NAMESPACE]), refused(libc::EPERM));
        assert_eq!(verdict(libc::SYS_unshare, &[0x200]), ALLOWED, "open files may be had alone");
    }

    #[test]
    fn sockets_reach_no_hypervisor() {
        for family in HYPERVISOR {
            assert_eq!(verdict(libc::SYS_socket, &[family, 1]), refused(libc::EPERM), "{family}");
        }
        // Unix, both versions of IP, and netlink.
        for family in [1, 2, 10, 16] {
            assert_eq!(verdict(libc::SYS_socket, &[family, 40]), ALLOWED, "{family}");
        }
    }

    #[test]
    fn terminals_and_personalities() {
        assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5412]), refused(libc::EPERM));
        assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5412 | 1 << 32]), refused(libc::EPERM));
        assert_eq!(verdict(libc::SYS_ioctl, &[0x5412, 0x5413]), ALLOWED);
        for known in PERSONALITIES {
            assert_eq!(verdict(libc::SYS_personality, &[known]), ALLOWED, "{known:#x}");
        }
        for other in [0x0004_0000, 0x0040_0000, 1] {
            assert_eq!(verdict(libc::SYS_personality, &[other]), refused(libc::EPERM), "{other:#x}");
        }
    }

    #[test]
    fn other_tables_of_calls_are_shut() {
        let [first, _] = programs().unwrap();
        let call = u32::try_from(libc::SYS_mount).unwrap();
        // The 32-bit tables of both machines.
        for arch in [0x4000_0003, 0x4000_0028] {
            assert_eq!(answer(&first, arch, call, [0; 6]), libc::SECCOMP_RET_KILL_PROCESS);
        }
        assert_eq!(answer(&first, HERE, X32 | call, [0; 6]), refused(libc::ENOSYS));
        assert_eq!(answer(&first, HERE, u32::MAX, [0; 6]), refused(libc::ENOSYS));
    }

    #[test]
    fn the_kernel_gets_eight_bytes_a_step() {
        let filters = filters().unwrap();
        for (bytes, program) in filters.iter().zip(&programs().unwrap()) {
            assert_eq!(bytes.len(), program.len() * 8);
            assert!(program.len() < 4_096);
        }
    }
}
