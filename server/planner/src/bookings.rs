//! The conversion of stored reservations and maintenance windows into bookings of the engine.

use std::collections::{HashMap, HashSet};

use berth_engine::{Engine, Fact, NamedSlots};
use berth_mig::Instance;
use berth_placement::assignment::AssignedDevice;
use berth_placement::calendar::{Booking, BookingKind};
use berth_placement::cluster::{BookingId, Part, Slot};
use berth_placement::networks::NetworkNeed;
use berth_placement::request::{DeviceRequest, Request};
use berth_types::ids::{NodeId, OrgId, ReservationId};
use berth_types::jobs::Topology;
use berth_types::time::Timestamp;

use super::{Planner, request};
use berth_store::reservations::{StoredDevice, StoredPlaces, StoredReservation};
use berth_store::{StoreError, Tx};

/// The organization of maintenance windows: a nil id that no organization has.
pub fn maintenance_org() -> OrgId {
    OrgId::from_uuid(uuid::Uuid::nil())
}

pub fn booking_id(id: ReservationId) -> BookingId {
    BookingId(id.uuid())
}

/// Places in the form of the database.
pub fn stored_places(model: &str, named: &NamedSlots) -> StoredPlaces {
    let device = |slot: AssignedDevice| StoredDevice {
        gpu_uuid: slot.gpu_uuid,
        profile_id: slot.instance.map(|i| i.profile_id),
        start: slot.instance.map_or(0, |i| i.start),
        size: slot.size,
    };
    let place = |(node, slots): &(NodeId, Vec<Slot>)| {
        (*node, super::assigned_devices(model, slots).into_iter().map(device).collect())
    };
    named.iter().map(place).collect()
}

/// A stored device in the form for comparisons.
pub fn assigned_device(device: &StoredDevice) -> AssignedDevice {
    AssignedDevice {
        gpu_uuid: device.gpu_uuid.clone(),
        instance: device.profile_id.map(|profile_id| Instance { profile_id, start: device.start }),
        share_milli: None,
        size: device.size,
    }
}

pub fn named_places(stored: &StoredPlaces) -> NamedSlots {
    let slot = |d: &StoredDevice| Slot {
        gpu: d.gpu_uuid.as_str().into(),
        part: match d.profile_id {
            Some(profile_id) => Part::Slice(Instance { profile_id, start: d.start }),
            None => Part::Whole,
        },
    };
    stored.iter().map(|(node, devices)| (*node, devices.iter().map(slot).collect())).collect()
}

/// The request of a reservation for the engine.
pub fn reservation_request(
    model: &str,
    profile: Option<&str>,
    (gpus_per_node, nodes): (u32, u32),
    topology: Topology,
) -> Request {
    let device = profile.map_or(DeviceRequest::Board, |p| DeviceRequest::Slice(p.into()));
    // Boards on nodes that do not keep the policy of the organization would be of no use to its jobs.
    let network = NetworkNeed::Policy;
    Request { network, ..request(model, device, (gpus_per_node, nodes), (0, 0), topology) }
}

/// The request of a stored reservation; `None` for maintenance.
fn stored_request(row: &StoredReservation) -> Option<Request> {
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    let counts = (number(row.gpus_per_node), number(row.nodes));
    Some(reservation_request(row.gpu_model.as_deref()?, row.mig_profile.as_deref(), counts, row.topology))
}

/// A stored reservation as a booking.
pub fn booking(engine: &mut Engine, row: &StoredReservation) -> Result<Booking, StoreError> {
    let (kind, org) = match row.org_id {
        Some(org) => (BookingKind::Reservation, org),
        None => (BookingKind::Maintenance, maintenance_org()),
    };
    let ask = stored_request(row).and_then(|request| engine.resolve_request(&request, org).ok());
    Ok(Booking {
        id: booking_id(row.id),
        kind,
        org,
        ask,
        from: row.starts_at,
        until: row.ends_at,
        places: engine.resolve_places(&named_places(&row.places()?)),
    })
}

impl Planner {
    /// The stored reservations and maintenance windows that hold devices.
    pub async fn stored_bookings(&self, tx: &mut Tx<'_>) -> Result<Vec<StoredReservation>, StoreError> {
        berth_store::reservations::list_holding(tx).await
    }
}

/// Gives the stored bookings to the engine, and removes all others from it except held starts.
pub fn state_bookings(
    engine: &mut Engine,
    rows: &[StoredReservation],
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut stored = HashSet::new();
    for row in rows {
        let booking = booking(engine, row)?;
        stored.insert(booking.id);
        engine.apply(Fact::Booked { version, booking }, now);
    }
    let others = engine.calendar().iter().filter(|b| b.kind != BookingKind::Hold).map(|b| b.id);
    let gone: Vec<BookingId> = others.filter(|id| !stored.contains(id)).collect();
    for id in gone {
        engine.apply(Fact::Unbooked { version, id }, now);
    }
    Ok(())
}

/// Returns true if no stored booking holds one of these devices between two times. The bookings in `own` do
/// not count, and the bookings in `moved` count with their new places.
pub async fn is_free(
    tx: &mut Tx<'_>,
    places: &StoredPlaces,
    (from, until): (Timestamp, Timestamp),
    moved: &HashMap<ReservationId, StoredPlaces>,
    own: &[ReservationId],
) -> Result<bool, StoreError> {
    for row in berth_store::reservations::list_between(tx, from, until).await? {
        if own.contains(&row.id) {
            continue;
        }
        let booked = match moved.get(&row.id) {
            Some(places) => places.clone(),
            None => row.places()?,
        };
        let devices =
            |p: &StoredPlaces| -> Vec<StoredDevice> { p.iter().flat_map(|(_, d)| d.clone()).collect() };
        let booked = devices(&booked);
        let collides =
            |d: &StoredDevice| booked.iter().any(|b| assigned_device(d).collides(&assigned_device(b)));
        if devices(places).iter().any(collides) {
            return Ok(false);
        }
    }
    Ok(true)
}
