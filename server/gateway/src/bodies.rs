//! The bodies of requests: read as a whole within limits, or passed on as they come.

mod kept;

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::refusals::{Lack, Refusal};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep, timeout};

pub use self::kept::KeptBody;

use self::kept::AgainBody;

/// An error of a body.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// Bytes of a unit of memory for bodies.
const UNIT_BYTES: usize = 1 << 10;
/// The Retry-After of a refusal for want of memory, in seconds.
const RETRY_AFTER_S: u64 = 1;

/// The memory for the bodies that are held as a whole.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<Semaphore>);

impl BodyMemory {
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / UNIT_BYTES).min(Semaphore::MAX_PERMITS))))
    }

    /// Room for some bytes, until the drop of the permit.
    fn find(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Refusal> {
        let full = Refusal::Gateway { lack: Lack::Room, retry_after_s: RETRY_AFTER_S };
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).map_err(|_| full.clone())?;
        self.0.clone().try_acquire_many_owned(units).map_err(|_| full)
    }
}

/// A whole body with its memory.
pub struct WholeBody {
    pub bytes: Bytes,
    pub room: Option<OwnedSemaphorePermit>,
}

/// Reads a whole body of at most `max_bytes`. `idle` is the longest wait for its next part.
///
/// # Errors
/// The body is too large or too slow, or the gateway has no memory for it.
pub async fn read_whole(
    mut body: Incoming,
    max_bytes: u64,
    memory: &BodyMemory,
    idle: Duration,
) -> Result<WholeBody, Refusal> {
    let too_large = Refusal::BodyTooLarge { max_bytes };
    // A stated length is refused before a byte is read.
    if body.size_hint().lower() > max_bytes {
        return Err(too_large);
    }
    let mut parts: Vec<Bytes> = Vec::new();
    let (mut count, mut room): (u64, Option<OwnedSemaphorePermit>) = (0, None);
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = match timeout(idle, next).await {
            Err(_) => return Err(Refusal::BodyTimeout),
            Ok(Some(Err(_))) => return Err(Refusal::BodyBroken),
            Ok(None) => break,
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(part) = frame.into_data() else { continue };
        count = count.saturating_add(part.len() as u64);
        if count > max_bytes {
            return Err(too_large);
        }
        let more = memory.find(part.len())?;
        match &mut room {
            Some(room) => room.merge(more),
            None => room = Some(more),
        }
        if !part.is_empty() {
            parts.push(part);
        }
    }
    let bytes = match parts.as_slice() {
        [only] => only.clone(),
        several => Bytes::from(several.concat()),
    };
    Ok(WholeBody { bytes, room })
}

/// The fault of a caller in a body that is passed on.
#[derive(Debug, Default)]
pub struct CallerFault(AtomicU8);

const TOO_LARGE: u8 = 1;
const TOO_SLOW: u8 = 2;
const BROKEN: u8 = 3;

impl CallerFault {
    /// The refusal for the fault; `None` without one.
    pub fn refusal(&self, max_bytes: u64) -> Option<Refusal> {
        match self.0.load(Ordering::Relaxed) {
            TOO_LARGE => Some(Refusal::BodyTooLarge { max_bytes }),
            TOO_SLOW => Some(Refusal::BodyTimeout),
            BROKEN => Some(Refusal::BodyBroken),
            _ => None,
        }
    }
}

/// A body that is passed on as it comes.
pub struct PassedBody {
    body: Incoming,
    /// Bytes that may still come.
    left: u64,
    idle: Duration,
    /// The end of the present wait for the caller.
    end: Option<Pin<Box<Sleep>>>,
    fault: Arc<CallerFault>,
}

impl PassedBody {
    fn failed(&self, fault: u8, reason: &'static str) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.fault.0.store(fault, Ordering::Relaxed);
        Poll::Ready(Some(Err(io::Error::other(reason).into())))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                let idle = self.idle;
                let end = self.end.get_or_insert_with(|| Box::pin(sleep(idle)));
                match end.as_mut().poll(cx) {
                    Poll::Ready(()) => self.failed(TOO_SLOW, "the caller stopped in its body"),
                    Poll::Pending => Poll::Pending,
                }
            }
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Ready(Some(Err(_))) => self.failed(BROKEN, "the caller broke off its body"),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.left.checked_sub(bytes) else {
                    return self.failed(TOO_LARGE, "the body is too large");
                };
                self.left = left;
                self.end = None;
                Poll::Ready(Some(Ok(frame)))
            }
        }
    }
}

/// The body of a request to a replica.
pub enum RequestBody {
    Whole(Bytes),
    Passed(Box<PassedBody>),
    /// A body that another replica did not begin.
    Again(Box<AgainBody>),
}

impl RequestBody {
    /// Passes on a body of at most `max_bytes`, with its fault.
    ///
    /// # Errors
    /// The body states a larger length.
    pub fn passed(
        body: Incoming,
        max_bytes: u64,
        idle: Duration,
    ) -> Result<(Self, Arc<CallerFault>), Refusal> {
        if body.size_hint().lower() > max_bytes {
            return Err(Refusal::BodyTooLarge { max_bytes });
        }
        let fault = Arc::new(CallerFault::default());
        if body.is_end_stream() {
            return Ok((Self::Whole(Bytes::new()), fault));
        }
        let passed = PassedBody { body, left: max_bytes, idle, end: None, fault: fault.clone() };
        Ok((Self::Passed(Box::new(passed)), fault))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Passed(body) => body.poll_next(cx),
            Self::Again(body) => body.poll_next(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Whole(bytes) => bytes.is_empty(),
            Self::Passed(body) => body.body.is_end_stream(),
            Self::Again(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Passed(body) => body.body.size_hint(),
            Self::Again(body) => body.size_hint(),
        }
    }
}
