//! The daemon's side of the dialer of a replica.

#![expect(unsafe_code, reason = "registering a descriptor with the runtime promises that it stays open")]

use std::collections::HashMap;
use std::io;
use std::net::TcpStream as StdStream;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use berth_system::sync::lock;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::dial_messages::{DialRefusal, DialerMessage, receive_answer, send_request};
use super::dialer::MOST_DIALS;

/// The time limit for a connection, with the start of a dialer.
const DIAL_WITHIN: Duration = Duration::from_secs(4);
/// The time limit for an answer of the dialer, which gives a port less time. A slower dialer hangs and is ended.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The shortest time between the starts of two dialers of an attempt, which may still be starting.
const START_PACE: Duration = Duration::from_millis(200);
/// The program of this process, also after its replacement by a newer one.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Opens connections to ports of one running attempt. It starts the dialer with the first connection, and again after
/// its end. Its drop ends the dialer.
pub struct AttemptDialer {
    program: PathBuf,
    dir: PathBuf,
    /// Each sent request begins at once.
    permits: Semaphore,
    slot: tokio::sync::Mutex<DialerSlot>,
}

#[derive(Default)]
struct DialerSlot {
    process: Option<Arc<DialerProcess>>,
    started: Option<Instant>,
}

/// The reason for the end of a dialer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DialerEnd {
    /// It could not enter the attempt, with the reason as a sentence.
    Failed(String),
    /// It has ended or hung.
    Lost,
}

impl DialerEnd {
    fn text(self) -> String {
        match self {
            Self::Failed(why) => why,
            Self::Lost => "The process for connections to the job has ended.".to_owned(),
        }
    }
}

impl AttemptDialer {
    /// For the attempt in this directory.
    pub fn new(dir: &Path) -> Self {
        Self::with_program(OWN_PROGRAM.into(), dir)
    }

    /// With another program than this one as `berth-worker`.
    pub fn with_program(program: PathBuf, dir: &Path) -> Self {
        let permits = Semaphore::new(MOST_DIALS);
        Self { program, dir: dir.to_owned(), permits, slot: tokio::sync::Mutex::default() }
    }

    /// Opens a connection to a port of the attempt.
    ///
    /// # Errors
    /// The reason for the missing connection, as a sentence.
    pub async fn dial(&self, port: u16) -> Result<TcpStream, String> {
        let file = timeout(DIAL_WITHIN, self.dial_twice(port)).await;
        let stream = StdStream::from(file.map_err(|_| DialRefusal::NoAnswer.text(port))??);
        let ready = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
        ready.map_err(|e| format!("Port {port} of the job cannot be used: {e}."))
    }

    async fn dial_twice(&self, port: u16) -> Result<OwnedFd, String> {
        let _permit = self.permits.acquire().await.map_err(|e| e.to_string())?;
        let mut end = DialerEnd::Lost;
        for _ in 0..2 {
            let process = self.process().await?;
            match process.dial(port).await {
                Ok(result) => return result.map_err(|refusal| refusal.text(port)),
                Err(DialerEnd::Failed(why)) => return Err(why),
                // A new dialer may answer.
                Err(lost) => end = lost,
            }
        }
        Err(end.text())
    }

    /// The running dialer, or a new one.
    async fn process(&self) -> Result<Arc<DialerProcess>, String> {
        let mut slot = self.slot.lock().await;
        if let Some(process) = slot.process.as_ref().filter(|process| process.is_running()) {
            return Ok(process.clone());
        }
        if let Some(started) = slot.started {
            sleep_until(started + START_PACE).await;
        }
        slot.started = Some(Instant::now());
        let process = DialerProcess::start(&self.program, &self.dir);
        let process = process.map_err(|e| format!("No process can be started: {e}."))?;
        slot.process = Some(process.clone());
        Ok(process)
    }
}

impl Drop for AttemptDialer {
    fn drop(&mut self) {
        if let Some(process) = &self.slot.get_mut().process {
            process.end(DialerEnd::Lost);
        }
    }
}

type DialAnswer = Result<OwnedFd, DialRefusal>;

/// A running dialer.
struct DialerProcess {
    socket: AsyncFd<OwnedFd>,
    requests: Mutex<DialRequests>,
    /// Its end was decided here.
    closing: Notify,
}

/// The requests without an answer.
#[derive(Default)]
struct DialRequests {
    last: u32,
    answers: HashMap<u32, oneshot::Sender<DialAnswer>>,
    end: Option<DialerEnd>,
}

/// A request that is forgotten with its caller.
struct DialRequest<'a> {
    process: &'a DialerProcess,
    number: u32,
    answer: oneshot::Receiver<DialAnswer>,
}

impl Drop for DialRequest<'_> {
    fn drop(&mut self) {
        lock(&self.process.requests).answers.remove(&self.number);
    }
}

impl DialerProcess {
    fn start(program: &Path, dir: &Path) -> io::Result<Arc<Self>> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let mut command = Command::new(program);
        command.arg("enter").arg(dir).arg("--dialer").env_clear();
        command.stdin(Stdio::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn()?;
        // The command has a copy of the socket, which would hide the end of the process.
        drop(command);
        // SAFETY: the registered value owns the descriptor, never replaces it, and closes it at its own end.
        let socket = unsafe { AsyncFd::register(ours) }.map_err(io::Error::from)?;
        let process = Arc::new(Self { socket, requests: Mutex::default(), closing: Notify::new() });
        tokio::spawn(process.clone().read_answers(child));
        Ok(process)
    }

    fn is_running(&self) -> bool {
        lock(&self.requests).end.is_none()
    }

    /// Notes the end of the process, with the first reason. Its requests get no answer.
    fn end(&self, why: DialerEnd) {
        let mut requests = lock(&self.requests);
        if requests.end.is_none() {
            requests.end = Some(why);
        }
        requests.answers.clear();
        drop(requests);
        self.closing.notify_one();
    }

    /// Passes the answers of the process on, and collects it after its end.
    async fn read_answers(self: Arc<Self>, mut child: Child) {
        let end = tokio::select! {
            end = self.next_end() => end,
            () = self.closing.notified() => DialerEnd::Lost,
        };
        self.end(end);
        drop(self);
        // It has no state that a kill could damage.
        let _ = child.start_kill();
        let _ = child.wait().await;
    }

    /// Passes answers on until the end of the process.
    async fn next_end(&self) -> DialerEnd {
        loop {
            let read = self.socket.async_io(Interest::READABLE, |socket| receive_answer(socket.as_fd()));
            match read.await {
                Ok(Some(DialerMessage::Answer(number, result))) => {
                    let waiting = lock(&self.requests).answers.remove(&number);
                    if let Some(caller) = waiting {
                        // Without the caller the connection is closed.
                        let _ = caller.send(result);
                    }
                }
                Ok(Some(DialerMessage::Failed(why))) => return DialerEnd::Failed(why),
                Ok(Some(DialerMessage::Unknown) | None) | Err(_) => return DialerEnd::Lost,
            }
        }
    }

    fn register(&self) -> Result<DialRequest<'_>, DialerEnd> {
        let mut requests = lock(&self.requests);
        if let Some(end) = &requests.end {
            return Err(end.clone());
        }
        let number = requests.last.wrapping_add(1);
        let (sender, answer) = oneshot::channel();
        requests.last = number;
        requests.answers.insert(number, sender);
        drop(requests);
        Ok(DialRequest { process: self, number, answer })
    }

    async fn dial(&self, port: u16) -> Result<DialAnswer, DialerEnd> {
        let mut request = self.register()?;
        let number = request.number;
        let asked = async {
            let send = |socket: &OwnedFd| send_request(socket.as_fd(), number, port);
            // A dialer that has ended has no answer, and its last message has the reason.
            let _ = self.socket.async_io(Interest::WRITABLE, send).await;
            (&mut request.answer).await
        };
        match timeout(ANSWER_WITHIN, asked).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) => Err(lock(&self.requests).end.clone().unwrap_or(DialerEnd::Lost)),
            Err(_) => {
                self.end(DialerEnd::Lost);
                Err(DialerEnd::Lost)
            }
        }
    }
}
