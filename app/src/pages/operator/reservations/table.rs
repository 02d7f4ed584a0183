//! Reservations as rows with what the operator can do to each, and the question before it is done.
//!
//! Must not offer what is over: the portal would refuse it.

use berth_types::jobs::Device;
use berth_types::money::money_text;
use berth_types::reservations::{Reservation, ReservationState, SpanKind};
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::super::words::{counted, offering_text};
use super::merge;
use crate::api;
use crate::ui::*;

/// What cannot be undone, and is asked about first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It waits for approval and gets none.
    Decline,
    /// It is promised, and is not any more.
    TakeBack,
}

/// What the rows share.
#[derive(Clone, Copy)]
pub struct Desk {
    /// Every reservation; an answer replaces its own.
    pub all: RwSignal<Vec<Reservation>>,
    /// Approving, which needs no question.
    pub call: Call,
    /// False until the page is alive.
    pub ready: ReadSignal<bool>,
    /// What is asked about.
    chosen: RwSignal<Option<(Reservation, End)>>,
    asking: RwSignal<bool>,
}

impl Desk {
    /// One where nothing is asked yet.
    pub fn of(all: RwSignal<Vec<Reservation>>, ready: ReadSignal<bool>) -> Self {
        let (chosen, asking) = (RwSignal::new(None), RwSignal::new(false));
        Self { all, call: Call::idle(), ready, chosen, asking }
    }

    fn approve(self, reservation: &Reservation) {
        let all = self.all;
        self.call.run(api::operator_reservations::approve(reservation.id), move |fresh: Reservation| {
            all.update(|all| merge(all, fresh));
        });
    }

    fn ask(self, reservation: &Reservation, end: End) {
        self.chosen.set(Some((reservation.clone(), end)));
        self.asking.set(true);
    }
}

/// The rows under their head.
pub fn table(reservations: &[Reservation], caption: &'static str, desk: Desk) -> AnyView {
    let rows: Vec<AnyView> = reservations.iter().map(|reservation| row(reservation, desk)).collect();
    table_of(
        caption,
        &[
            ("Reservation", ""),
            STATE,
            ("Devices", ""),
            ("From", "nowrap"),
            ("Until", "nowrap"),
            ("Cost", "num"),
            ACTIONS,
        ],
        rows,
    )
}

/// The nodes of some devices: `pier-01`, `pier-01, pier-02 and 3 more`.
fn nodes_text(devices: &[Device]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for device in devices {
        if !names.contains(&device.node_name.as_str()) {
            names.push(&device.node_name);
        }
    }
    let shown: Vec<&str> = names.iter().take(2).copied().collect();
    match names.len().saturating_sub(shown.len()) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// What is reserved: `h100-80gb × 8`, `2 boards`.
fn devices_text(reservation: &Reservation) -> String {
    if reservation.kind == SpanKind::Maintenance {
        return counted(reservation.devices.len(), "board", "boards");
    }
    let devices = reservation.nodes.saturating_mul(reservation.gpus_per_node);
    offering_text(&reservation.offering, devices)
}

fn cost(reservation: &Reservation) -> AnyView {
    if reservation.kind == SpanKind::Maintenance {
        return "–".into_any();
    }
    let text = |micros: i64| money_text(micros, &reservation.currency);
    let posted = (reservation.posted_micros > 0).then(|| {
        let text = format!("{} of it posted", text(reservation.posted_micros));
        view! { <span class="table__sub">{text}</span> }
    });
    view! { {text(reservation.total_micros)} {posted} }.into_any()
}

fn row(reservation: &Reservation, desk: Desk) -> AnyView {
    let name = reservation.name.clone();
    let whose = if reservation.kind == SpanKind::Maintenance {
        "maintenance".to_owned()
    } else {
        reservation.org_name.clone()
    };
    let cause = (!reservation.cause.is_empty()).then(|| {
        let cause = reservation.cause.clone();
        view! { <span class="table__sub">{cause}</span> }
    });
    let broken = (reservation.degraded_milli > 0).then(|| {
        let text = format!("{} out of order", percent(reservation.degraded_milli));
        view! { " " <span class="tag tag--warn">{text}</span> }
    });
    let nodes = nodes_text(&reservation.devices);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{broken}<span class="table__sub">{whose}</span>{cause}</th>
            <td role="cell" class="table__state" data-label="State">
                <ReservationBadge state=reservation.state/>
            </td>
            <td role="cell" data-label="Devices">{devices_text(reservation)}<span class="table__sub">{nodes}</span></td>
            <td role="cell" class="nowrap" data-label="From"><When at=reservation.starts_at/></td>
            <td role="cell" class="nowrap" data-label="Until"><When at=reservation.ends_at/></td>
            <td role="cell" class="num" data-label="Cost">{cost(reservation)}</td>
            <td role="cell" class="table__actions">{actions(reservation, desk)}</td>
        </tr>
    }
    .into_any()
}

fn actions(reservation: &Reservation, desk: Desk) -> Option<AnyView> {
    let busy = move || !desk.ready.get() || desk.call.pending.get();
    let end = |end: End, text: &'static str| {
        let label = format!("{text} {}", reservation.name);
        let this = reservation.clone();
        view! {
            <button
                class="btn btn--danger btn--small"
                type="button"
                aria-label=label
                disabled=busy
                on:click=move |_| desk.ask(&this, end)
            >
                {text}
            </button>
        }
    };
    match reservation.state {
        ReservationState::Pending => {
            let label = format!("Approve {}", reservation.name);
            let this = reservation.clone();
            Some(
                view! {
                    <button
                        class="btn btn--small"
                        type="button"
                        aria-label=label
                        disabled=busy
                        on:click=move |_| desk.approve(&this)
                    >
                        "Approve"
                    </button>
                    " "
                    {end(End::Decline, "Decline")}
                }
                .into_any(),
            )
        }
        ReservationState::Scheduled | ReservationState::Active => {
            Some(end(End::TakeBack, "Take back").into_any())
        }
        ReservationState::Ended | ReservationState::Cancelled | ReservationState::Expired => None,
    }
}

/// What ending it means, for its tenant and for money.
fn consequence(reservation: &Reservation, end: End) -> String {
    let whose = &reservation.org_name;
    let held = money_text(reservation.held_micros, &reservation.currency);
    if reservation.kind == SpanKind::Maintenance {
        return "The boards are free for others from now on. This cannot be undone; you can plan it again while they are free.".to_owned();
    }
    match (end, reservation.state) {
        (End::Decline, _) => format!(
            "{whose} loses the place and pays nothing: the {held} set aside come back to its balance. This cannot be undone; it can ask for a new quote."
        ),
        (End::TakeBack, ReservationState::Active) => format!(
            "Jobs of {whose} that run inside it are stopped, and those that wait for it never start. It pays for the time until now; the rest of the {held} set aside comes back to its balance. This cannot be undone."
        ),
        (End::TakeBack, _) => format!(
            "{whose} loses the place and pays nothing: the {held} set aside come back to its balance, and jobs that wait for it never start. This cannot be undone."
        ),
    }
}

/// Asks before a reservation is declined or taken back.
#[component]
pub fn EndDialog(
    /// What the rows share.
    desk: Desk,
) -> impl IntoView {
    let call = Call::idle();
    let Desk { all, chosen, asking, .. } = desk;
    let verb = move || {
        chosen.with(|chosen| match chosen {
            Some((_, End::Decline)) => "Decline",
            _ => "Take back",
        })
    };
    let title = Signal::derive(move || {
        let name = chosen.with(|chosen| chosen.as_ref().map(|(reservation, _)| reservation.name.clone()));
        format!("{} {}?", verb(), name.unwrap_or_default())
    });
    let words = move || {
        chosen.with(|chosen| chosen.as_ref().map(|(reservation, end)| consequence(reservation, *end)))
    };
    let end = move |()| {
        let Some((reservation, end)) = chosen.get_untracked() else { return };
        let done = move |fresh: Reservation| {
            all.update(|all| merge(all, fresh));
            asking.set(false);
        };
        match end {
            End::Decline => call.run(api::operator_reservations::decline(reservation.id), done),
            End::TakeBack => call.run(api::operator_reservations::take_back(reservation.id), done),
        }
    };
    view! {
        <ConfirmDialog
            id="end"
            title=title
            open=asking
            call=call
            keep="Leave it"
            verb=Signal::derive(move || verb().to_owned())
            confirm=Callback::new(end)
        >
            <p>{words}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::reservation;
    use super::*;

    #[test]
    fn a_row_says_what_is_reserved_and_where() {
        let mut some = reservation(1, "scheduled", 1);
        assert_eq!(devices_text(&some), "h100-80gb × 8");
        assert_eq!(nodes_text(&some.devices), "pier-01, pier-02");
        let mut third = some.devices[0].clone();
        third.node_name = "pier-03".to_owned();
        some.devices.push(third);
        assert_eq!(nodes_text(&some.devices), "pier-01, pier-02 and 1 more");
        some.kind = SpanKind::Maintenance;
        assert_eq!(devices_text(&some), "4 boards");
        assert_eq!(nodes_text(&[]), "");
    }

    #[test]
    fn ending_says_who_pays() {
        let mut some = reservation(1, "pending", 1);
        some.held_micros = 48_200_000;
        assert!(consequence(&some, End::Decline).contains("the $48.20 set aside come back"));
        some.state = ReservationState::Active;
        assert!(consequence(&some, End::TakeBack).starts_with("Jobs of Kelda Lab that run inside it"));
        some.kind = SpanKind::Maintenance;
        assert!(consequence(&some, End::TakeBack).contains("free for others"));
    }
}
