//! Content of a `Suspense` or a `Transition`.

use std::future::Future;

use leptos::prelude::*;

/// On the server a view that is made at its place in the HTML, and only there.
#[cfg(feature = "ssr")]
type Content = Unsuspend<AnyView>;
#[cfg(not(feature = "ssr"))]
type Content = AnyView;

#[cfg(feature = "ssr")]
fn content(draw: impl FnOnce() -> AnyView + Send + 'static) -> Content {
    Unsuspend::new(draw)
}

#[cfg(not(feature = "ssr"))]
fn content(draw: impl FnOnce() -> AnyView) -> Content {
    draw()
}

/// Awaits data and then makes its view. All content of a `Suspense` or a `Transition` comes from here.
///
/// On the server Leptos makes such content up to three times, with new resources each time. The browser would get the
/// data of the first one with the HTML of the last one, and its hydration would fail after a change between both.
pub fn suspended<D>(data: impl Future<Output = D> + Send + 'static) -> Suspend<Content>
where
    D: FnOnce() -> AnyView + Send + 'static,
{
    Suspend::new(async move { content(data.await) })
}
