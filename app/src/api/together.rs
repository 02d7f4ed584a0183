//! Requests that go out together. Pure.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// Awaits all futures at once and returns their outputs in the same order.
pub async fn all<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut slots: Vec<(Pin<Box<F>>, Option<F::Output>)> =
        futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    poll_fn(move |context| {
        let mut waits = false;
        for (future, output) in &mut slots {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *output = Some(value),
                    Poll::Pending => waits = true,
                }
            }
        }
        if waits {
            return Poll::Pending;
        }
        Poll::Ready(slots.iter_mut().filter_map(|(_, output)| output.take()).collect())
    })
    .await
}

/// Awaits two futures at once.
pub async fn both<A: Future, B: Future>(first: A, second: B) -> (A::Output, B::Output) {
    let (mut first, mut second) = (Box::pin(first), Box::pin(second));
    let (mut one, mut other) = (None, None);
    poll_fn(move |context| {
        if one.is_none()
            && let Poll::Ready(value) = first.as_mut().poll(context)
        {
            one = Some(value);
        }
        if other.is_none()
            && let Poll::Ready(value) = second.as_mut().poll(context)
        {
            other = Some(value);
        }
        if one.is_none() || other.is_none() {
            return Poll::Pending;
        }
        one.take().zip(other.take()).map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    /// Returns a future that is ready after `waits` other polls.
    fn after(waits: u32, value: u32) -> impl Future<Output = u32> {
        let mut left = waits;
        poll_fn(move |_| {
            if left == 0 {
                return Poll::Ready(value);
            }
            left -= 1;
            Poll::Pending
        })
    }

    /// Returns the number of polls until the output, with the output.
    fn polls<F: Future>(future: F) -> (u32, F::Output) {
        let mut future = Box::pin(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut count = 0;
        loop {
            count += 1;
            assert!(count < 100, "the future never ends");
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return (count, output);
            }
        }
    }

    #[test]
    fn futures_wait_at_the_same_time() {
        assert_eq!(polls(all(vec![after(2, 1), after(0, 2), after(1, 3)])), (3, vec![1, 2, 3]));
        assert_eq!(polls(all(Vec::<std::future::Ready<u32>>::new())), (1, vec![]));
        assert_eq!(polls(both(after(1, 1), after(2, 2))), (3, (1, 2)));
        assert_eq!(polls(both(after(0, 1), after(0, 2))), (1, (1, 2)));
    }
}
