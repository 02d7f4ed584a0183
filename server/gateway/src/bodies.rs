//! The bodies of requests: read as a whole within limits, or passed on as they come.

mod kept;

use std::error::Error;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use berth_serving::refusals::{Lack, Refusal};
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep, sleep, timeout_at};

pub use self::kept::KeptBody;

use self::kept::AgainBody;
use crate::clock::now_ms;
use crate::shares::{Owner, Share, Shares};

/// An error of a body.
pub type BodyError = Box<dyn Error + Send + Sync>;

/// Bytes of a unit of memory for bodies.
const UNIT_BYTES: usize = 1 << 10;
/// Bytes of the entry of a part of a body.
const PART_BYTES: usize = 64;
/// The Retry-After of a refusal for want of memory, in seconds.
const RETRY_AFTER_S: u64 = 1;
/// The least bytes a second of a body that is read as a whole, after its first wait.
const LEAST_BYTES_A_SECOND: u64 = 16 << 10;

/// The memory for the bodies that are held as a whole.
#[derive(Debug, Clone)]
pub struct BodyMemory(Arc<Shares>);

impl BodyMemory {
    pub fn new(bytes: usize) -> Self {
        Self(Shares::new(bytes / UNIT_BYTES))
    }

    /// Room for some units more, until the drop of the share.
    fn grow(&self, room: &mut Option<Share>, owner: Owner, units: usize) -> Result<(), Refusal> {
        let fits = match room {
            Some(room) => room.grow(units),
            None => {
                *room = self.0.find(owner, units);
                room.is_some()
            }
        };
        let full = Refusal::Gateway { lack: Lack::Room, retry_after_s: RETRY_AFTER_S };
        if fits { Ok(()) } else { Err(full) }
    }
}

/// A whole body with its memory.
pub struct WholeBody {
    pub bytes: Bytes,
    pub room: Option<Share>,
}

/// The units of memory of a body in parts, with the entries of the parts.
fn units_of(bytes: u64, parts: usize) -> usize {
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    bytes.saturating_add(parts.saturating_mul(PART_BYTES)).div_ceil(UNIT_BYTES)
}

/// The longest time in all of a body with these bytes until now.
const fn longest(idle: Duration, bytes: u64) -> Duration {
    idle.saturating_add(Duration::from_secs(bytes / LEAST_BYTES_A_SECOND))
}

/// Reads a whole body of at most `max_bytes`, with memory of its owner. `idle` is the longest wait for its next part.
///
/// # Errors
/// The body is too large or too slow, or the gateway has no memory for it.
pub async fn read_whole(
    mut body: Incoming,
    max_bytes: u64,
    (memory, owner): (&BodyMemory, Owner),
    idle: Duration,
) -> Result<WholeBody, Refusal> {
    let too_large = Refusal::BodyTooLarge { max_bytes };
    // A stated length is refused before a byte is read.
    if body.size_hint().lower() > max_bytes {
        return Err(too_large);
    }
    let mut parts: Vec<Bytes> = Vec::new();
    let (mut count, mut units, mut room): (u64, usize, Option<Share>) = (0, 0, None);
    let began = Instant::now();
    loop {
        let next = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let end = (Instant::now() + idle).min(began + longest(idle, count));
        let frame = match timeout_at(end, next).await {
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
        if part.is_empty() {
            continue;
        }
        parts.push(part);
        let needed = units_of(count, parts.len());
        memory.grow(&mut room, owner, needed.saturating_sub(units))?;
        units = needed;
    }
    let bytes = match parts.as_slice() {
        [only] => only.clone(),
        several => Bytes::from(several.concat()),
    };
    Ok(WholeBody { bytes, room })
}

/// The fault of a caller in a body that is passed on.
#[derive(Debug, Default)]
pub struct CallerFault {
    fault: AtomicU8,
    /// The end of the last wait for the caller; 0 without one.
    waited_until_ms: AtomicU64,
}

const NONE: u8 = 0;
const TOO_LARGE: u8 = 1;
const TOO_SLOW: u8 = 2;
const BROKEN: u8 = 3;
/// No fault yet: the next part has not come.
const AWAITED: u8 = 4;

impl CallerFault {
    /// The refusal for the fault; `None` without one. `late` is the time limit of a replica that is late. The caller has
    /// the fault then if its body is awaited, or came so late that the replica had less than half of this time.
    pub fn refusal(&self, max_bytes: u64, late: Option<Duration>) -> Option<Refusal> {
        let had_no_time = |limit: Duration| {
            let own_ms = now_ms().saturating_sub(self.waited_until_ms.load(Ordering::Relaxed));
            u128::from(own_ms) < limit.as_millis() / 2
        };
        match self.fault.load(Ordering::Relaxed) {
            TOO_LARGE => Some(Refusal::BodyTooLarge { max_bytes }),
            TOO_SLOW => Some(Refusal::BodyTimeout),
            AWAITED if late.is_some() => Some(Refusal::BodyTimeout),
            BROKEN => Some(Refusal::BodyBroken),
            NONE if self.has_waited() && late.is_some_and(had_no_time) => Some(Refusal::BodyTimeout),
            _ => None,
        }
    }

    fn has_waited(&self) -> bool {
        self.waited_until_ms.load(Ordering::Relaxed) > 0
    }

    fn note(&self, fault: u8) {
        if self.fault.swap(fault, Ordering::Relaxed) == AWAITED && fault == NONE {
            self.waited_until_ms.store(now_ms().max(1), Ordering::Relaxed);
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
        self.fault.note(fault);
        Poll::Ready(Some(Err(io::Error::other(reason).into())))
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match Pin::new(&mut self.body).poll_frame(cx) {
            Poll::Pending => {
                self.fault.note(AWAITED);
                let idle = self.idle;
                let end = self.end.get_or_insert_with(|| Box::pin(sleep(idle)));
                match end.as_mut().poll(cx) {
                    Poll::Ready(()) => self.failed(TOO_SLOW, "the caller stopped in its body"),
                    Poll::Pending => Poll::Pending,
                }
            }
            Poll::Ready(None) => {
                self.fault.note(NONE);
                Poll::Ready(None)
            }
            Poll::Ready(Some(Err(_))) => self.failed(BROKEN, "the caller broke off its body"),
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                let Some(left) = self.left.checked_sub(bytes) else {
                    return self.failed(TOO_LARGE, "the body is too large");
                };
                self.fault.note(NONE);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_has_a_time_in_all_that_follows_its_bytes() {
        let idle = Duration::from_secs(30);
        for (bytes, seconds) in [(0, 30), ((16 << 10) - 1, 30), (1 << 20, 94), (64 << 20, 4_126)] {
            assert_eq!(longest(idle, bytes), Duration::from_secs(seconds), "{bytes}");
        }
    }

    #[test]
    fn a_late_replica_waits_for_a_caller_whose_body_is_awaited() {
        let (fault, late) = (CallerFault::default(), Some(Duration::from_secs(300)));
        assert_eq!(fault.refusal(5, late), None, "the replica has the whole body");
        fault.note(NONE);
        assert_eq!(fault.refusal(5, late), None, "the replica does not read");
        fault.note(AWAITED);
        assert_eq!([fault.refusal(5, None), fault.refusal(5, late)], [None, Some(Refusal::BodyTimeout)]);
        fault.note(NONE);
        assert_eq!(
            [fault.refusal(5, None), fault.refusal(5, late), fault.refusal(5, Some(Duration::ZERO))],
            [None, Some(Refusal::BodyTimeout), None],
            "the body came a moment ago"
        );
        fault.note(TOO_LARGE);
        assert_eq!(fault.refusal(5, late), Some(Refusal::BodyTooLarge { max_bytes: 5 }));
    }

    #[test]
    fn small_parts_of_a_body_share_units() {
        for (bytes, parts, units) in [(0, 0, 0), (1, 1, 1), (960, 1, 1), (961, 1, 2), (1 << 20, 8_192, 1_536)]
        {
            assert_eq!(units_of(bytes, parts), units, "{bytes} in {parts}");
        }
    }
}
