//! The daemon's side of the forker: asks for shims, and hears when they have ended.
//!
//! Must not take the forker's end for that of its shims, which go on without it.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use tokio::sync::oneshot;

use super::{ANSWER, News, receive, request, send};
use crate::attending;

/// Has shims forked, by a process that it starts and, when that is lost, starts again.
pub struct Forker {
    program: PathBuf,
    line: Mutex<Option<Arc<Line>>>,
    /// Numbers are not used again, so that no news is taken for another's.
    asked: AtomicU64,
}

/// The end of a shim, which is to be waited for.
pub struct Ended {
    /// Unless its forker ended before it said that.
    pub pid: Option<i32>,
    dir: PathBuf,
    word: oneshot::Receiver<()>,
}

/// To one forker. A thread listens to it until it ends.
struct Line {
    socket: OwnedFd,
    /// Who waits for news, by number; `None` when none will come any more.
    waiting: Mutex<Option<HashMap<u64, Waiting>>>,
}

struct Waiting {
    started: mpsc::Sender<io::Result<i32>>,
    ended: oneshot::Sender<()>,
}

/// Nobody who holds one of these can panic half-way.
fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Forker {
    /// By this program, which is the worker's own.
    pub fn new(program: PathBuf) -> Self {
        Self { program, line: Mutex::default(), asked: AtomicU64::default() }
    }

    /// Starts the process now; the first shim does so otherwise.
    pub fn start(&self) -> io::Result<()> {
        self.line().map(|_| ())
    }

    /// Starts the shim of an attempt that is ready in `dir`, and hands it the pipe by which it is told secrets.
    /// Blocking.
    pub fn shim(&self, dir: &Path, told: Option<OwnedFd>) -> io::Result<Ended> {
        let number = self.asked.fetch_add(1, Ordering::Relaxed);
        let packet = request(number, dir)?;
        let told = told.as_ref().map(AsFd::as_fd);
        let ask = || self.line()?.ask(number, &packet, told);
        // What could not be said was not heard, so it is said to another.
        let (started, word) = ask().or_else(|_| ask())?;
        // Where the forker ended before it answered, there may be a shim or none: its lock tells, as it does
        // whenever nobody else can.
        let pid = started.recv().ok().transpose()?;
        Ok(Ended { pid, dir: dir.to_owned(), word })
    }

    fn line(&self) -> io::Result<Arc<Line>> {
        let mut line = held(&self.line);
        if let Some(open) = line.as_ref().filter(|line| held(&line.waiting).is_some()) {
            return Ok(open.clone());
        }
        let new = Line::open(&self.program)?;
        *line = Some(new.clone());
        Ok(new)
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        if let Some(line) = held(&self.line).take() {
            line.close();
        }
    }
}

impl Ended {
    pub async fn wait(self) {
        if self.word.await.is_err() {
            // Its forker is gone, which says nothing of the shim.
            attending::gone(self.dir).await;
        }
    }
}

impl Line {
    fn open(program: &Path) -> io::Result<Arc<Self>> {
        let (socket, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let forker = Command::new(program)
            .arg("forker")
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let line = Arc::new(Self { socket, waiting: Mutex::new(Some(HashMap::new())) });
        let listening = line.clone();
        std::thread::Builder::new().name("forker".to_owned()).spawn(move || listening.listen(forker))?;
        Ok(line)
    }

    /// Asks for a shim. On an error nobody was asked, and the line is given up.
    fn ask(
        &self,
        number: u64,
        packet: &[u8],
        told: Option<BorrowedFd<'_>>,
    ) -> io::Result<(mpsc::Receiver<io::Result<i32>>, oneshot::Receiver<()>)> {
        let (tell_started, started) = mpsc::channel();
        let (tell_ended, ended) = oneshot::channel();
        match held(&self.waiting).as_mut() {
            Some(waiting) => waiting.insert(number, Waiting { started: tell_started, ended: tell_ended }),
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        send(self.socket.as_fd(), packet, told).inspect_err(|_| self.close())?;
        Ok((started, ended))
    }

    fn listen(&self, mut forker: Child) {
        let mut packet = [0; ANSWER];
        while let Ok((length, _)) = receive(self.socket.as_fd(), &mut packet)
            && let Some((number, news)) = packet.get(..length).and_then(News::read)
        {
            self.hear(number, news);
        }
        self.close();
        // It ends with the line, if it has not done so before.
        let _ = forker.wait();
    }

    fn hear(&self, number: u64, news: News) {
        let mut waiting = held(&self.waiting);
        let Some(waiting) = waiting.as_mut() else { return };
        // Whoever waits no more need not be told.
        match news {
            News::Started(pid) => {
                if let Some(one) = waiting.get(&number) {
                    let _ = one.started.send(Ok(pid));
                }
            }
            News::Failed(errno) => {
                if let Some(one) = waiting.remove(&number) {
                    let _ = one.started.send(Err(io::Error::from_raw_os_error(errno)));
                }
            }
            News::Ended => {
                if let Some(one) = waiting.remove(&number) {
                    let _ = one.ended.send(());
                }
            }
        }
    }

    /// Gives the line up: the forker ends, and whoever waits is let go.
    fn close(&self) {
        // It fails when the other side is gone, which is as well.
        let _ = shutdown(&self.socket, Shutdown::Both);
        *held(&self.waiting) = None;
    }
}
