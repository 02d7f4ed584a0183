//! The daemon's end of the socket to one helper process.

use std::collections::HashMap;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::time::{Duration, Instant};

use berth_system::sync::lock;
use serde_json::Value;

use super::error::GpuError;
use super::frames::{AnswerMessage, RequestMessage, read_message, write_message};
use super::requests::NvmlRequest;

/// The time limit of the start of NVML in a process.
const START_LIMIT: Duration = Duration::from_secs(60);
/// The time limit for one message to the process, which reads all the time.
const WRITE_LIMIT: Duration = Duration::from_secs(5);

/// The end of a call.
pub enum CallEnd {
    Answered(Result<Value, GpuError>),
    /// No answer came in time.
    Late,
    /// The process has ended.
    Ended,
}

/// The calls that wait for their answers. `None`: the process has ended.
type WaitingCalls = Option<HashMap<u64, SyncSender<Result<Value, GpuError>>>>;

pub struct NvmlConnection {
    /// The number of the process.
    pub number: u64,
    socket: UnixStream,
    writer: Mutex<UnixStream>,
    waiting: Mutex<WaitingCalls>,
    next_id: AtomicU64,
}

impl NvmlConnection {
    pub fn new(number: u64, socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(START_LIMIT))?;
        socket.set_write_timeout(Some(WRITE_LIMIT))?;
        Ok(Self {
            number,
            writer: Mutex::new(socket.try_clone()?),
            socket,
            waiting: Mutex::new(Some(HashMap::new())),
            // The first message of the process has the number 0.
            next_id: AtomicU64::new(1),
        })
    }

    /// Waits for the start of NVML in the process.
    pub fn wait_for_start(&self) -> Result<(), GpuError> {
        let answer: AnswerMessage = read_message(&mut &self.socket).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => GpuError::Unresponsive,
            _ => GpuError::Nvml(format!("the helper process ended during its start: {error}")),
        })?;
        answer.result?;
        let unlimited = self.socket.set_read_timeout(None);
        unlimited.map_err(|error| GpuError::Nvml(format!("the helper process has no socket: {error}")))
    }

    /// Passes answers to the calls until the end of the process. A message that is no answer ends it too.
    pub fn pass_answers(&self) {
        while let Ok(AnswerMessage { id, result }) = read_message(&mut &self.socket) {
            let call = lock(&self.waiting).as_mut().and_then(|calls| calls.remove(&id));
            if let Some(call) = call {
                // A caller that gave up misses it.
                let _ = call.send(result);
            }
        }
    }

    /// Ends the connection. The supervisor of the process kills it then.
    pub fn end(&self) {
        // The process may have closed its end already.
        let _ = self.socket.shutdown(Shutdown::Both);
        // Without their senders all calls end.
        *lock(&self.waiting) = None;
    }

    /// Calls NVML, and waits for the answer until then.
    pub fn call(&self, executor: &str, request: NvmlRequest, until: Instant) -> CallEnd {
        let id = self.next_id.fetch_add(1, Ordering::SeqCst);
        let (sender, answer) = mpsc::sync_channel(1);
        match &mut *lock(&self.waiting) {
            Some(calls) => calls.insert(id, sender),
            None => return CallEnd::Ended,
        };
        let message = RequestMessage { id, executor: executor.to_owned(), request };
        let sent = write_message(&mut *lock(&self.writer), &message);
        if let Err(error) = sent {
            tracing::warn!(%error, "the helper process of NVML reads no request");
            self.end();
            return CallEnd::Ended;
        }
        match answer.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(result) => CallEnd::Answered(result),
            Err(RecvTimeoutError::Disconnected) => CallEnd::Ended,
            Err(RecvTimeoutError::Timeout) => {
                if let Some(calls) = &mut *lock(&self.waiting) {
                    calls.remove(&id);
                }
                CallEnd::Late
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::*;
    use crate::requests::ReadDriverVersion;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn calls_get_their_own_answers_in_any_order() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let connection = NvmlConnection::new(1, ours).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| connection.pass_answers());
            let ask = || connection.call("host", ReadDriverVersion {}.into(), Instant::now() + LONG);
            let calls = [scope.spawn(ask), scope.spawn(ask)];
            let asked: Vec<RequestMessage> = (0..2).map(|_| read_message(&mut theirs).unwrap()).collect();
            for message in asked.iter().rev() {
                let result = Ok(Value::from(message.id));
                write_message(&mut theirs, &AnswerMessage { id: message.id, result }).unwrap();
            }
            let mut answers: Vec<Option<u64>> = calls
                .into_iter()
                .map(|call| match call.join().unwrap() {
                    CallEnd::Answered(Ok(value)) => value.as_u64(),
                    _ => None,
                })
                .collect();
            answers.sort_unstable();
            assert_eq!(answers, [Some(1), Some(2)]);
            connection.end();
        });
    }

    #[test]
    fn a_call_ends_with_its_time_and_with_its_process() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let connection = NvmlConnection::new(1, ours).unwrap();
        let ask =
            |limit: Duration| connection.call("host", ReadDriverVersion {}.into(), Instant::now() + limit);
        assert!(matches!(ask(Duration::from_millis(20)), CallEnd::Late));
        let _: RequestMessage = read_message(&mut theirs).unwrap();
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                connection.pass_answers();
                connection.end();
            });
            let call = scope.spawn(|| ask(LONG));
            let _: RequestMessage = read_message(&mut theirs).unwrap();
            // A late answer is of no use to the next call.
            let result = Ok(Value::Null);
            write_message(&mut theirs, &AnswerMessage { id: 1, result }).unwrap();
            theirs.shutdown(Shutdown::Both).unwrap();
            assert!(matches!(call.join().unwrap(), CallEnd::Ended));
            reader.join().unwrap();
        });
        assert!(matches!(ask(LONG), CallEnd::Ended), "said at once");
        assert_eq!(theirs.read(&mut [0; 1]).unwrap(), 0, "nothing more is sent");
    }
}
