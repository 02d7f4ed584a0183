//! Table of reservations with the actions of the operator and their confirmation. Ended reservations have no
//! actions.

use berth_types::jobs::Device;
use berth_types::money::{column_decimals, column_text, reserved_text};
use berth_types::operators::OperatorRight;
use berth_types::reservations::{Reservation, ReservationState, SpanKind};
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::super::text::{counted, offering_text};
use super::super::may;
use super::merge;
use crate::api;
use crate::ui::*;

/// An irreversible end of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// A pending reservation is declined.
    Decline,
    /// A confirmed reservation is cancelled.
    Cancel,
}

/// The signals of the rows and the dialog.
#[derive(Clone, Copy)]
pub struct TableState {
    /// All reservations. An answer replaces its reservation.
    pub all: RwSignal<Vec<Reservation>>,
    /// The request of an approval, which has no confirmation.
    pub call: Call,
    /// False before hydration.
    pub ready: ReadSignal<bool>,
    /// The reservation of the dialog and its end.
    chosen: RwSignal<Option<(Reservation, End)>>,
    confirming: RwSignal<bool>,
}

impl TableState {
    /// Returns the state without a dialog.
    pub fn new(all: RwSignal<Vec<Reservation>>, ready: ReadSignal<bool>) -> Self {
        let (chosen, confirming) = (RwSignal::new(None), RwSignal::new(false));
        Self { all, call: Call::idle(), ready, chosen, confirming }
    }

    fn approve(self, reservation: &Reservation) {
        let all = self.all;
        self.call.run(api::operator_reservations::approve(reservation.id), move |fresh: Reservation| {
            all.update(|all| merge(all, fresh));
        });
    }

    fn open_dialog(self, reservation: &Reservation, end: End) {
        self.chosen.set(Some((reservation.clone(), end)));
        self.confirming.set(true);
    }
}

/// Returns the table of reservations.
pub fn table(reservations: &[Reservation], caption: &'static str, state: TableState) -> AnyView {
    let amounts = |reservation: &Reservation| [reservation.total_micros, reservation.posted_micros];
    let decimals = column_decimals(reservations.iter().flat_map(amounts));
    let rows: Vec<AnyView> =
        reservations.iter().map(|reservation| row(reservation, decimals, state)).collect();
    table_of(
        caption,
        &[
            ("Reservation", ""),
            STATE,
            ("Devices", ""),
            ("Start", "nowrap"),
            ("End", "nowrap"),
            ("Price", "num"),
            ACTIONS,
        ],
        rows,
    )
}

/// Returns the nodes of devices: `pier-01`, `pier-01, pier-02 and 3 more`.
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

/// Returns the reserved devices: `h100-80gb × 8`, `2 boards`.
fn devices_text(reservation: &Reservation) -> String {
    if reservation.kind == SpanKind::Maintenance {
        return counted(reservation.devices.len(), "board", "boards");
    }
    let devices = reservation.nodes.saturating_mul(reservation.gpus_per_node);
    offering_text(&reservation.offering, devices)
}

fn price(reservation: &Reservation, decimals: usize) -> AnyView {
    if reservation.kind == SpanKind::Maintenance {
        return "–".into_any();
    }
    let text = |micros: i64| column_text(micros, &reservation.currency, decimals);
    let charged = (reservation.posted_micros > 0).then(|| {
        let text = format!("{} charged", text(reservation.posted_micros));
        view! { <span class="table__sub">{text}</span> }
    });
    view! { {text(reservation.total_micros)} {charged} }.into_any()
}

fn row(reservation: &Reservation, decimals: usize, state: TableState) -> AnyView {
    let name = reservation.name.clone();
    let owner = if reservation.kind == SpanKind::Maintenance {
        "maintenance".to_owned()
    } else {
        reservation.org_name.clone()
    };
    let cause = (!reservation.cause.is_empty()).then(|| {
        let cause = reservation.cause.clone();
        view! { <span class="table__sub">{cause}</span> }
    });
    let degraded = (reservation.degraded_milli > 0).then(|| {
        let text = format!("{} out of service", percent(reservation.degraded_milli));
        view! { " " <span class="tag tag--warn">{text}</span> }
    });
    let nodes = nodes_text(&reservation.devices);
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{name}{degraded}<span class="table__sub">{owner}</span>{cause}</th>
            <td role="cell" class="table__state" data-label="State">
                <ReservationBadge state=reservation.state/>
            </td>
            <td role="cell" data-label="Devices">{devices_text(reservation)}<span class="table__sub">{nodes}</span></td>
            <td role="cell" class="nowrap" data-label="Start"><When at=reservation.starts_at/></td>
            <td role="cell" class="nowrap" data-label="End"><When at=reservation.ends_at/></td>
            <td role="cell" class="num" data-label="Price">{price(reservation, decimals)}</td>
            <td role="cell" class="table__actions">{actions(reservation, state)}</td>
        </tr>
    }
    .into_any()
}

fn actions(reservation: &Reservation, state: TableState) -> Option<AnyView> {
    let is_maintenance = reservation.kind == SpanKind::Maintenance;
    let right = if is_maintenance { OperatorRight::ManageFleet } else { OperatorRight::ManageWork };
    if !may(right) {
        return None;
    }
    let busy = move || !state.ready.get() || state.call.pending.get();
    let end_button = |end: End, text: &'static str| {
        let label = format!("{text} {}", reservation.name);
        let this = reservation.clone();
        view! {
            <button
                class="btn btn--danger btn--small"
                type="button"
                aria-label=label
                disabled=busy
                on:click=move |_| state.open_dialog(&this, end)
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
                        on:click=move |_| state.approve(&this)
                    >
                        "Approve"
                    </button>
                    " "
                    {end_button(End::Decline, "Decline")}
                }
                .into_any(),
            )
        }
        ReservationState::Scheduled | ReservationState::Active => {
            Some(end_button(End::Cancel, "Cancel").into_any())
        }
        ReservationState::Ended | ReservationState::Cancelled | ReservationState::Expired => None,
    }
}

/// Returns the consequences for the organization and its money.
fn consequence(reservation: &Reservation, end: End) -> String {
    let org = &reservation.org_name;
    let held = reserved_text(reservation.held_micros, &reservation.currency);
    if reservation.kind == SpanKind::Maintenance {
        return "The boards become available for jobs and reservations at once. This cannot be undone."
            .to_owned();
    }
    match (end, reservation.state) {
        (End::Decline, _) => format!(
            "{org} loses the reservation and pays nothing; the reserved {held} is released. This cannot be undone."
        ),
        (End::Cancel, ReservationState::Active) => format!(
            "Running jobs of {org} in this reservation are stopped, and jobs waiting for it never start. {org} pays for the time until now; the rest of the reserved {held} is released. This cannot be undone."
        ),
        (End::Cancel, _) => format!(
            "{org} loses the reservation and pays nothing; the reserved {held} is released, and jobs waiting for it never start. This cannot be undone."
        ),
    }
}

/// The confirmation of a decline or a cancellation.
#[component]
pub fn EndDialog(
    /// The signals of the rows.
    state: TableState,
) -> impl IntoView {
    let call = Call::idle();
    let TableState { all, chosen, confirming, .. } = state;
    let verb = move || {
        chosen.with(|chosen| match chosen {
            Some((_, End::Decline)) => "Decline",
            _ => "Cancel",
        })
    };
    let kind = move || {
        chosen.with(|chosen| match chosen {
            Some((reservation, _)) if reservation.kind == SpanKind::Maintenance => "maintenance",
            _ => "reservation",
        })
    };
    let title = Signal::derive(move || {
        let name = chosen.with(|chosen| chosen.as_ref().map(|(reservation, _)| reservation.name.clone()));
        format!("{} {}?", verb(), name.unwrap_or_default())
    });
    let text = move || {
        chosen.with(|chosen| chosen.as_ref().map(|(reservation, end)| consequence(reservation, *end)))
    };
    let end = move |()| {
        let Some((reservation, end)) = chosen.get_untracked() else { return };
        let done = move |fresh: Reservation| {
            all.update(|all| merge(all, fresh));
            confirming.set(false);
        };
        match end {
            End::Decline => call.run(api::operator_reservations::decline(reservation.id), done),
            End::Cancel => call.run(api::operator_reservations::cancel(reservation.id), done),
        }
    };
    view! {
        <ConfirmDialog
            id="end"
            title=title
            open=confirming
            call=call
            keep=Signal::derive(move || format!("Keep {}", kind()))
            verb=Signal::derive(move || format!("{} {}", verb(), kind()))
            confirm=Callback::new(end)
        >
            <p>{text}</p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::reservation;
    use super::*;

    #[test]
    fn a_row_has_devices_and_nodes() {
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
    fn an_end_has_its_consequences() {
        let mut some = reservation(1, "pending", 1);
        some.held_micros = 48_200_000;
        assert!(consequence(&some, End::Decline).contains("the reserved $48.20 is released"));
        some.state = ReservationState::Active;
        assert!(consequence(&some, End::Cancel).starts_with("Running jobs of Kelda Lab in this reservation"));
        some.kind = SpanKind::Maintenance;
        assert!(consequence(&some, End::Cancel).contains("become available"));
    }
}
