//! Starts a program as `std::process::Command` does with a hook before it, without a copy of this process's memory,
//! which would cost a shim more than all its files: until the child is the program it has its parent's, which
//! stands still meanwhile.
//!
//! Must not be used by a process with a second thread, and knows nothing of what it starts.

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

/// What the child needs of a stack: it writes a few small files.
const STACK_BYTES: usize = 256 << 10;

unsafe extern "C" {
    /// Where `execvp` finds the `PATH` by which it looks for a program, and what it hands on.
    static mut environ: *const *const libc::c_char;
}

/// What is to be started.
#[derive(Debug)]
pub struct Program<'a> {
    /// The program, looked for by the `PATH` of `env` when it names no directory, and its arguments.
    pub argv: &'a [String],
    /// All its variables.
    pub env: BTreeMap<&'a str, &'a str>,
    pub cwd: &'a Path,
    pub stdin: BorrowedFd<'a>,
    /// Its error output too.
    pub stdout: BorrowedFd<'a>,
}

/// A program that was started. Nobody waits for it by itself.
#[derive(Debug)]
pub struct Child(Pid);

impl Child {
    pub const fn pid(&self) -> i32 {
        self.0.as_raw_pid()
    }

    /// How it ended, as a shell says it: its exit code, or 128 + n for signal n. `None` while it runs. To be asked
    /// until it has ended and not after that.
    pub fn try_wait(&self) -> io::Result<Option<i32>> {
        let ended = rustix::process::waitpid(Some(self.0), WaitOptions::NOHANG)?;
        let code = |status: WaitStatus| {
            status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0))
        };
        Ok(ended.map(|(_, status)| code(status)))
    }
}

/// Words as the kernel takes them.
struct Words {
    /// What the pointers point into.
    _texts: Vec<CString>,
    pointers: Vec<*const libc::c_char>,
}

impl Words {
    fn of(texts: impl Iterator<Item = Vec<u8>>) -> Result<Self, NulError> {
        let texts: Vec<CString> = texts.map(CString::new).collect::<Result<_, _>>()?;
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(Self { _texts: texts, pointers })
    }
}

/// Starts it, after `before` was done in its place: there it may change whatever is a process's own. An error of that,
/// or of the start itself, is this one's, and then nothing is left of the child.
pub fn spawn(program: &Program<'_>, mut before: impl FnMut() -> io::Result<()>) -> io::Result<Child> {
    let args = Words::of(program.argv.iter().map(|word| word.clone().into_bytes()))?;
    let first = args.pointers.first().copied().filter(|first| !first.is_null());
    let first = first.ok_or(io::ErrorKind::InvalidInput)?;
    let env = Words::of(program.env.iter().map(|(name, value)| format!("{name}={value}").into_bytes()))?;
    let mut begin = || -> io::Result<()> {
        // Rust ignores it, which a program would inherit.
        // SAFETY: handlers are the child's own, and this one is the kernel's.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }?;
        dup2_stdin(program.stdin)?;
        dup2_stdout(program.stdout)?;
        dup2_stderr(program.stdout)?;
        chdir(program.cwd)?;
        before()?;
        SigSet::empty().thread_set_mask()?;
        // SAFETY: the texts outlive the child's use of them, and the parent puts its own variables back.
        unsafe {
            environ = env.pointers.as_ptr();
            libc::execvp(first, args.pointers.as_ptr());
        }
        Err(io::Error::last_os_error())
    };
    // Written by the child, whose memory this is.
    let mut failed: Option<io::Error> = None;
    let child = Box::new(|| {
        failed = begin().err();
        127
    });
    let mut stack = vec![0; STACK_BYTES];
    let flags = CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK;
    // SAFETY: this process has one thread, which stands still until the child has its own memory or is gone. The
    // stack is larger than what is done on it.
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
            // It has ended; an error means that it is collected already.
            let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
            Err(error)
        }
    }
}
