//! The body of a request by HTTP/2, which can be sent again from its begin while it is short.
//!
//! HTTP/2 says after the begin of a body that a replica did not begin the request, so the first parts are kept until the
//! head of the answer.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use http::HeaderMap;
use hyper::body::{Body, Bytes, Frame, SizeHint};

use super::{BodyError, RequestBody};

/// Bytes of a body that are kept.
const MAX_KEPT: usize = 16 << 10;
/// Parts of a body that are kept.
const MAX_PARTS: usize = 64;

/// A part that was sent.
enum Part {
    Data(Bytes),
    Trailers(HeaderMap),
}

impl Part {
    fn frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

/// A body that is sent again: its first parts, then the rest.
pub struct AgainBody {
    parts: VecDeque<Part>,
    bytes: u64,
    rest: RequestBody,
}

impl AgainBody {
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.parts.pop_front() {
            Some(Part::Data(data)) => {
                self.bytes = self.bytes.saturating_sub(data.len() as u64);
                Poll::Ready(Some(Ok(Frame::data(data))))
            }
            Some(part) => Poll::Ready(Some(Ok(part.frame()))),
            None => Pin::new(&mut self.rest).poll_frame(cx),
        }
    }

    pub fn is_end_stream(&self) -> bool {
        self.parts.is_empty() && self.rest.is_end_stream()
    }

    pub fn size_hint(&self) -> SizeHint {
        let exact = self.rest.size_hint().exact().and_then(|rest| rest.checked_add(self.bytes));
        exact.map(SizeHint::with_exact).unwrap_or_default()
    }
}

struct Kept {
    /// Absent after the body was taken back or closed.
    rest: Option<RequestBody>,
    /// The waker of the reader that waits for the next part.
    reader: Option<Waker>,
    parts: VecDeque<Part>,
    bytes: usize,
    /// All parts until now are kept.
    is_whole: bool,
}

impl Kept {
    fn keep(&mut self, frame: &Frame<Bytes>) {
        let part = match (frame.data_ref(), frame.trailers_ref()) {
            (Some(data), _) => Some(Part::Data(data.clone())),
            (None, Some(trailers)) => Some(Part::Trailers(trailers.clone())),
            (None, None) => None,
        };
        self.bytes = self.bytes.saturating_add(frame.data_ref().map_or(0, Bytes::len));
        match part.filter(|_| self.bytes <= MAX_KEPT && self.parts.len() < MAX_PARTS) {
            Some(part) => self.parts.push_back(part),
            None => self.forget(),
        }
    }

    fn forget(&mut self) {
        self.is_whole = false;
        self.parts.clear();
    }
}

/// The body of a request on its way. Its clones are the same body.
#[derive(Clone)]
pub struct KeptBody(Arc<Mutex<Kept>>);

impl KeptBody {
    pub fn new(body: RequestBody) -> Self {
        let kept = Kept { rest: Some(body), reader: None, parts: VecDeque::new(), bytes: 0, is_whole: true };
        Self(Arc::new(Mutex::new(kept)))
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps no parts any more.
    pub fn forget(&self) {
        self.lock().forget();
    }

    /// Ends the body before its end. Its reader gets an error, and resets the stream.
    pub fn close(&self) {
        let mut kept = self.lock();
        let (rest, reader) = (kept.rest.take(), kept.reader.take());
        kept.forget();
        drop(kept);
        drop(rest);
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// The body from its begin; `None` if it is no longer at hand.
    pub fn take_back(&self) -> Option<RequestBody> {
        let mut kept = self.lock();
        let rest = kept.rest.take()?;
        let parts = std::mem::take(&mut kept.parts);
        if !kept.is_whole {
            return None;
        }
        if parts.is_empty() {
            return Some(rest);
        }
        Some(RequestBody::Again(Box::new(AgainBody { parts, bytes: kept.bytes as u64, rest })))
    }
}

impl Body for KeptBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut kept = self.lock();
        let Some(rest) = &mut kept.rest else {
            return Poll::Ready(Some(Err(h2::Error::from(h2::Reason::CANCEL).into())));
        };
        let polled = Pin::new(rest).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(frame))) if kept.is_whole => kept.keep(frame),
            // A body with a fault is of no use for another replica.
            Poll::Ready(Some(Err(_))) => kept.forget(),
            Poll::Pending => kept.reader = Some(cx.waker().clone()),
            Poll::Ready(_) => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        // A closed body is not whole.
        self.lock().rest.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().rest.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    async fn next(body: &mut (impl Body<Data = Bytes, Error = BodyError> + Unpin)) -> Option<Bytes> {
        let frame = poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await?;
        Some(frame.ok()?.into_data().unwrap())
    }

    #[tokio::test]
    async fn a_short_body_comes_back_from_its_begin() {
        for length in [0, 1, MAX_KEPT, MAX_KEPT + 1] {
            for is_read in [false, true] {
                let text = Bytes::from(vec![b'a'; length]);
                let mut sent = KeptBody::new(RequestBody::Whole(text.clone()));
                if is_read {
                    assert_eq!(next(&mut sent).await.unwrap_or_default(), text);
                }
                let back = sent.take_back();
                assert_eq!(back.is_some(), !is_read || length <= MAX_KEPT, "{length}");
                if let Some(mut back) = back {
                    assert_eq!(back.size_hint().exact(), Some(length as u64));
                    assert_eq!(back.is_end_stream(), length == 0);
                    assert_eq!(next(&mut back).await.unwrap_or_default(), text);
                    assert!(next(&mut back).await.is_none());
                }
                assert!(next(&mut sent).await.is_none() && sent.take_back().is_none(), "it has one owner");
            }
        }
    }

    #[tokio::test]
    async fn a_closed_body_is_cancelled_and_not_whole() {
        for text in ["", "a"] {
            let mut sent = KeptBody::new(RequestBody::Whole(Bytes::from_static(text.as_bytes())));
            sent.close();
            assert!(!sent.is_end_stream());
            let frame = poll_fn(|cx| Pin::new(&mut sent).poll_frame(cx)).await;
            let error = frame.unwrap().err().unwrap();
            assert_eq!(error.downcast_ref::<h2::Error>().unwrap().reason(), Some(h2::Reason::CANCEL));
            assert!(sent.take_back().is_none());
        }
    }

    #[tokio::test]
    async fn a_body_whose_answer_has_come_is_kept_no_longer() {
        let mut sent = KeptBody::new(RequestBody::Whole(Bytes::from_static(b"a")));
        assert!(next(&mut sent).await.is_some());
        sent.forget();
        assert!(sent.take_back().is_none());
    }
}
