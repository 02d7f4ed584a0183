//! The daemon's side of the forker: requests for shims, and their ends. The end of a forker is not the end of its
//! shims.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use berth_system::sync::lock;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use tokio::sync::oneshot;

use super::protocol::{EVENT, ShimEvent, encode_request, receive, send};
use crate::waiter::wait_until_gone;

/// Forks shims through a forker process, which it starts, and starts again after a loss.
pub struct Forker {
    program: PathBuf,
    connection: Mutex<Option<Arc<ForkerConnection>>>,
    /// The next number of a shim. Numbers are unique, so events are too.
    next_number: AtomicU64,
}

/// A forked shim, whose end can be waited for.
pub struct ForkedShim {
    /// Absent if the forker ended before its answer.
    pub pid: Option<i32>,
    dir: PathBuf,
    ended: oneshot::Receiver<()>,
}

/// The connection to one forker, with a thread that receives its events.
struct ForkerConnection {
    socket: OwnedFd,
    /// The receivers of events, by number. `None`: no more events come.
    waiting: Mutex<Option<HashMap<u64, EventReceivers>>>,
}

struct EventReceivers {
    started: mpsc::Sender<io::Result<i32>>,
    ended: oneshot::Sender<()>,
}

impl Forker {
    /// `program` is the worker's own program.
    pub fn new(program: PathBuf) -> Self {
        Self { program, connection: Mutex::default(), next_number: AtomicU64::default() }
    }

    /// Starts the process now. Without this the first shim does so.
    pub fn start(&self) -> io::Result<()> {
        self.connection().map(|_| ())
    }

    /// Forks the shim of an attempt that is ready in `dir`, and passes it the pipe for its secrets. Blocking.
    pub fn fork_shim(&self, dir: &Path, secrets: Option<OwnedFd>) -> io::Result<ForkedShim> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let packet = encode_request(number, dir)?;
        let secrets = secrets.as_ref().map(AsFd::as_fd);
        let request = || self.connection()?.request(number, &packet, secrets);
        // A request that failed did not reach the forker, so another forker gets it.
        let (started, ended) = request().or_else(|_| request())?;
        // If the forker ended before its answer, the lock of the directory shows whether there is a shim.
        let pid = started.recv().ok().transpose()?;
        Ok(ForkedShim { pid, dir: dir.to_owned(), ended })
    }

    fn connection(&self) -> io::Result<Arc<ForkerConnection>> {
        let mut connection = lock(&self.connection);
        if let Some(open) = connection.as_ref().filter(|open| lock(&open.waiting).is_some()) {
            return Ok(open.clone());
        }
        let new = ForkerConnection::open(&self.program)?;
        *connection = Some(new.clone());
        Ok(new)
    }
}

impl Drop for Forker {
    fn drop(&mut self) {
        if let Some(connection) = lock(&self.connection).take() {
            connection.close();
        }
    }
}

impl ForkedShim {
    /// Waits for the end of the shim.
    pub async fn wait(self) {
        if self.ended.await.is_err() {
            // The forker is gone; the shim may go on.
            wait_until_gone(self.dir).await;
        }
    }
}

impl ForkerConnection {
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
        let connection = Arc::new(Self { socket, waiting: Mutex::new(Some(HashMap::new())) });
        let receiving = connection.clone();
        let receive = move || receiving.receive_events(forker);
        std::thread::Builder::new().name("forker".to_owned()).spawn(receive)?;
        Ok(connection)
    }

    /// Requests a shim.
    ///
    /// # Errors
    /// The request did not reach the forker; the connection is closed then.
    fn request(
        &self,
        number: u64,
        packet: &[u8],
        secrets: Option<BorrowedFd<'_>>,
    ) -> io::Result<(mpsc::Receiver<io::Result<i32>>, oneshot::Receiver<()>)> {
        let (started_sender, started) = mpsc::channel();
        let (ended_sender, ended) = oneshot::channel();
        let receivers = EventReceivers { started: started_sender, ended: ended_sender };
        match lock(&self.waiting).as_mut() {
            Some(waiting) => waiting.insert(number, receivers),
            None => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        send(self.socket.as_fd(), packet, secrets).inspect_err(|_| self.close())?;
        Ok((started, ended))
    }

    fn receive_events(&self, mut forker: Child) {
        let mut packet = [0; EVENT];
        while let Ok((length, _)) = receive(self.socket.as_fd(), &mut packet)
            && let Some((number, event)) = packet.get(..length).and_then(ShimEvent::decode)
        {
            self.deliver(number, event);
        }
        self.close();
        // The forker ends with its connection at the latest.
        let _ = forker.wait();
    }

    fn deliver(&self, number: u64, event: ShimEvent) {
        let mut waiting = lock(&self.waiting);
        let Some(waiting) = waiting.as_mut() else { return };
        // A receiver may have stopped waiting.
        match event {
            ShimEvent::Started(pid) => {
                if let Some(one) = waiting.get(&number) {
                    let _ = one.started.send(Ok(pid));
                }
            }
            ShimEvent::Failed(errno) => {
                if let Some(one) = waiting.remove(&number) {
                    let _ = one.started.send(Err(io::Error::from_raw_os_error(errno)));
                }
            }
            ShimEvent::Ended => {
                if let Some(one) = waiting.remove(&number) {
                    let _ = one.ended.send(());
                }
            }
        }
    }

    /// Closes the connection: the forker ends, and all waits end.
    fn close(&self) {
        // An error means that the other side is gone.
        let _ = shutdown(&self.socket, Shutdown::Both);
        *lock(&self.waiting) = None;
    }
}
