//! Starts a program like `std::process::Command` with a hook, but without a copy of this process's memory: the copy
//! would cost a shim more than all its files. The child shares its parent's memory until it is the program, and the
//! parent stands still meanwhile.
//!
//! A process with a second thread must not call this module.

#![expect(unsafe_code, reason = "a child that has its parent's memory can only be made by an unsafe call")]

use std::collections::BTreeMap;
use std::ffi::{CString, NulError};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use nix::libc;
use nix::sched::{CloneFlags, clone};
use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use nix::unistd::{chdir, dup2_stderr, dup2_stdin, dup2_stdout};
use rustix::process::{Pid, WaitOptions, WaitStatus};

/// The stack of the child, which writes a few small files.
const STACK_BYTES: usize = 256 << 10;

unsafe extern "C" {
    /// The environment of this process: `execvp` reads `PATH` here and passes the whole on.
    static mut environ: *const *const libc::c_char;
}

/// The program of a child, with its arguments and environment.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program and its arguments. Without a directory in its name, the `PATH` of `env` finds it.
    pub argv: &'a [String],
    /// The complete environment.
    pub env: BTreeMap<&'a str, &'a str>,
    pub cwd: &'a Path,
    pub stdin: BorrowedFd<'a>,
    /// Also the standard error.
    pub stdout: BorrowedFd<'a>,
}

/// A running program. Only the caller collects it.
#[derive(Debug)]
pub struct Child(Pid);

impl Child {
    pub const fn pid(&self) -> i32 {
        self.0.as_raw_pid()
    }

    /// The exit code as a shell has it: 128 + n for signal n. `None` while the program runs. The caller must not ask
    /// again after the end.
    pub fn try_wait(&self) -> io::Result<Option<i32>> {
        let ended = rustix::process::waitpid(Some(self.0), WaitOptions::NOHANG)?;
        let code = |status: WaitStatus| {
            status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
        };
        Ok(ended.map(|(_, status)| code(status)))
    }
}

/// Strings as the kernel takes them: pointers with a null at the end.
struct CStringArray {
    /// The owner of the memory behind the pointers.
    _texts: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl CStringArray {
    fn new(texts: impl Iterator<Item = Vec<u8>>) -> Result<Self, NulError> {
        let texts: Vec<CString> = texts.map(CString::new).collect::<Result<_, _>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { _texts: texts, pointers })
    }
}

/// Starts the program. The child calls `before` first, which may change whatever belongs to the process.
///
/// # Errors
/// An error of `before` or of the start; then no child is left.
pub fn spawn(program: &Program<'_>, mut before: impl FnMut() -> io::Result<()>) -> io::Result<Child> {
    let args = CStringArray::new(program.argv.iter().map(|arg| arg.clone().into_bytes()))?;
    let first = args.pointers.first().copied().filter(|first| !first.is_null());
    let first = first.ok_or(io::ErrorKind::InvalidInput)?;
    let env =
        CStringArray::new(program.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()))?;
    let mut begin = || -> io::Result<()> {
        // Rust ignores this signal, and a program would inherit that.
        // SAFETY: the child has its own handlers, and the default handler is the kernel's.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        dup2_stdin(program.stdin)?;
        dup2_stdout(program.stdout)?;
        dup2_stderr(program.stdout)?;
        chdir(program.cwd)?;
        before()?;
        SigSet::empty().thread_set_mask()?;
        // SAFETY: the strings outlive their use in the child, and the parent restores its own environment.
        unsafe {
            environ = env.pointers.as_ptr();
            libc::execvp(first, args.pointers.as_ptr());
        }
        Err(io::Error::last_os_error())
    };
    // The child shares this memory and writes its error here.
    let mut failed: Option<io::Error> = None;
    let child = Box::new(|| {
        failed = begin().err();
        127
    });
    let mut stack = vec![0; STACK_BYTES];
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    // SAFETY: this process has one thread, which stands still until the child has its own memory or is gone. The
    // stack is larger than the child's need.
    let pid = unsafe {
        let own = environ;
        let pid = clone(child, &mut stack, flags, Some(Signal::SIGCHLD as i32));
        environ = own;
        pid
    }?;
    let pid = Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::InvalidData)?;
    match failed {
        None => Ok(Child(pid)),
        Some(error) => {
            // The child has ended. An error means that it is collected already.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Err(error)
        }
    }
}
