//! Badges of states with colour, shape and text, and the mark of Berth.

use berth_service_types::revisions::RevisionState;
use berth_service_types::services::{ServiceReplica, ServiceState};
use berth_types::invoices::InvoiceState;
use berth_types::jobs::JobState;
use berth_types::nodes::NodeState;
use berth_types::payments::PaymentState;
use berth_types::quotas::QuotaRequestState;
use berth_types::reservations::ReservationState;
use berth_types::webhooks::DeliveryState;
use leptos::prelude::*;

/// The shape of a badge, common to several states.
#[derive(Clone, Copy)]
enum Shape {
    Ring,
    HalfRing,
    Disc,
    Pulse,
    Tick,
    Cross,
    Bar,
    Clock,
}

fn icon(shape: Shape) -> AnyView {
    match shape {
        Shape::Ring => {
            view! { <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle> }
                .into_any()
        }
        Shape::HalfRing => view! {
            <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5" stroke-opacity=".3"></circle>
            <path d="M6 1.75a4.25 4.25 0 0 1 0 8.5" fill="none" stroke="currentColor" stroke-width="1.75"></path>
        }
        .into_any(),
        Shape::Disc => view! { <circle cx="6" cy="6" r="5" fill="currentColor"></circle> }.into_any(),
        Shape::Pulse => view! {
            <circle cx="6" cy="6" r="4.25" fill="none" stroke="currentColor" stroke-width="1.5"></circle>
            <circle cx="6" cy="6" r="1.75" fill="currentColor"></circle>
        }
        .into_any(),
        Shape::Tick => {
            view! { <path d="M1.75 6.5 4.75 9.5 10.25 3" fill="none" stroke="currentColor" stroke-width="1.75"></path> }
                .into_any()
        }
        Shape::Cross => {
            view! { <path d="m2.5 2.5 7 7m0-7-7 7" fill="none" stroke="currentColor" stroke-width="1.75"></path> }
                .into_any()
        }
        Shape::Bar => {
            view! { <rect x="1.5" y="4.9" width="9" height="2.2" fill="currentColor"></rect> }.into_any()
        }
        Shape::Clock => view! {
            <circle cx="6" cy="6" r="4.5" fill="none" stroke="currentColor" stroke-width="1.4"></circle>
            <path d="M6 3.25V6l1.9 1.4" fill="none" stroke="currentColor" stroke-width="1.4"></path>
        }
        .into_any(),
    }
}

fn badge(name: &'static str, shape: Shape) -> impl IntoView {
    named_badge(name, name.replace('_', " "), shape)
}

/// Returns a badge with another text than the name of its state.
fn named_badge(name: &'static str, text: String, shape: Shape) -> impl IntoView {
    view! {
        <span class=format!("state state--{name}")>
            <svg class="state__icon" viewBox="0 0 12 12" width="12" height="12" aria-hidden="true" focusable="false">
                {icon(shape)}
            </svg>
            {text}
        </span>
    }
}

/// The state of a job.
#[component]
pub fn StateBadge(state: JobState) -> impl IntoView {
    let shape = match state {
        JobState::Queued => Shape::Ring,
        JobState::Assigned | JobState::Starting => Shape::HalfRing,
        JobState::Running => Shape::Disc,
        JobState::Stopping => Shape::Pulse,
        JobState::Succeeded => Shape::Tick,
        JobState::Failed => Shape::Cross,
        JobState::Cancelled => Shape::Bar,
        JobState::TimedOut => Shape::Clock,
    };
    badge(state.name(), shape)
}

/// The state of a node.
#[component]
pub fn NodeBadge(state: NodeState) -> impl IntoView {
    let shape = match state {
        NodeState::Joining => Shape::HalfRing,
        NodeState::AwaitingApproval => Shape::Ring,
        NodeState::Ready => Shape::Disc,
        NodeState::Draining => Shape::Pulse,
        NodeState::Cordoned => Shape::Bar,
        NodeState::Unreachable => Shape::Cross,
    };
    named_badge(state.name(), state.word().to_owned(), shape)
}

/// The health of a board: healthy, suspect, or out of service for any reason.
#[component]
pub fn BoardBadge(
    in_service: bool,
    /// True for a board in service with signs of a fault.
    suspect: bool,
) -> impl IntoView {
    let (name, text, shape) = match (in_service, suspect) {
        (true, false) => ("ready", "healthy", Shape::Disc),
        (true, true) => ("queued", "suspect", Shape::Ring),
        (false, _) => ("failed", "out of service", Shape::Cross),
    };
    named_badge(name, text.to_owned(), shape)
}

/// The state of a reservation or of maintenance.
#[component]
pub fn ReservationBadge(state: ReservationState) -> impl IntoView {
    let shape = match state {
        ReservationState::Pending => Shape::Ring,
        ReservationState::Scheduled => Shape::HalfRing,
        ReservationState::Active => Shape::Disc,
        ReservationState::Ended => Shape::Tick,
        ReservationState::Cancelled => Shape::Bar,
        ReservationState::Expired => Shape::Clock,
    };
    badge(state.name(), shape)
}

/// The state of a request for another limit.
#[component]
pub fn RequestBadge(state: QuotaRequestState) -> impl IntoView {
    let shape = match state {
        QuotaRequestState::Pending => Shape::Ring,
        QuotaRequestState::Granted => Shape::Tick,
        QuotaRequestState::Declined => Shape::Bar,
    };
    badge(state.name(), shape)
}

/// The state of an invoice.
#[component]
pub fn InvoiceBadge(state: InvoiceState) -> impl IntoView {
    let shape = match state {
        InvoiceState::Open => Shape::Ring,
        InvoiceState::Paid => Shape::Tick,
        InvoiceState::Void => Shape::Bar,
        InvoiceState::Uncollectible => Shape::Cross,
    };
    badge(state.name(), shape)
}

/// The state of a card payment.
#[component]
pub fn PaymentBadge(state: PaymentState) -> impl IntoView {
    let shape = match state {
        PaymentState::Open => Shape::Ring,
        PaymentState::Paid => Shape::Tick,
        PaymentState::Failed => Shape::Cross,
    };
    badge(state.name(), shape)
}

/// The state of a delivery to a webhook.
#[component]
pub fn DeliveryBadge(state: DeliveryState) -> impl IntoView {
    let shape = match state {
        DeliveryState::Pending => Shape::Ring,
        DeliveryState::Delivered => Shape::Tick,
        DeliveryState::Failed => Shape::Cross,
    };
    badge(state.name(), shape)
}

/// The state of a service. A stopped service has no other state.
#[component]
pub fn ServiceBadge(state: ServiceState, stopped: bool) -> impl IntoView {
    let (name, shape) = match (stopped, state) {
        (true, _) => ("stopped", Shape::Bar),
        (false, ServiceState::Asleep) => ("asleep", Shape::Clock),
        (false, ServiceState::Waking) => ("waking", Shape::HalfRing),
        (false, ServiceState::Ready) => ("ready", Shape::Disc),
        (false, ServiceState::Degraded) => ("degraded", Shape::Ring),
        (false, ServiceState::Failed) => ("failed", Shape::Cross),
    };
    badge(name, shape)
}

/// The state of a revision of a service.
#[component]
pub fn RevisionBadge(state: RevisionState) -> impl IntoView {
    let shape = match state {
        RevisionState::Staging => Shape::HalfRing,
        RevisionState::Canary => Shape::Ring,
        RevisionState::Live => Shape::Disc,
        RevisionState::Draining => Shape::Pulse,
        RevisionState::Retired => Shape::Tick,
        RevisionState::RolledBack => Shape::Bar,
    };
    badge(state.name(), shape)
}

/// The state of a replica: whether it gets requests, before that the state of its job.
#[component]
pub fn ReplicaBadge(replica: ServiceReplica) -> impl IntoView {
    if replica.draining_since.is_some() && !replica.state.ended() {
        badge("draining", Shape::Pulse).into_any()
    } else if replica.ready_since.is_some() && !replica.state.ended() {
        badge("ready", Shape::Disc).into_any()
    } else {
        view! { <StateBadge state=replica.state/> }.into_any()
    }
}

/// The state of a window of a promise.
#[component]
pub fn PromiseBadge(kept: bool) -> impl IntoView {
    let (name, text, shape) =
        if kept { ("succeeded", "kept", Shape::Tick) } else { ("failed", "missed", Shape::Cross) };
    named_badge(name, text.to_owned(), shape)
}

/// The mark: a board between two quays.
#[component]
pub fn Mark(class: &'static str) -> impl IntoView {
    view! {
        <svg class=class viewBox="0 0 26 14" width="26" height="14" aria-hidden="true" focusable="false">
            <path
                d="M.75 1.75h3.5v10.5H.75zM21.75 1.75h3.5v10.5h-3.5z"
                fill="none"
                stroke="currentColor"
                stroke-width="1.5"
            ></path>
            <path d="M6 1h14v12H6z" fill="currentColor"></path>
        </svg>
    }
}
