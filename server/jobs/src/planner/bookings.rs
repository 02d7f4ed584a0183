//! Reservations and maintenance as the engine's bookings.

use std::collections::{HashMap, HashSet};

use berth_core::calendar::{Booking, Kind};
use berth_core::cluster::{BookingId, Part, Slot};
use berth_core::engine::{Engine, Fact, Named};
use berth_core::plan;
use berth_core::request::{Request, Wanted};
use berth_mig::Instance;
use berth_types::ids::{NodeId, OrgId, ReservationId};
use berth_types::jobs::Topology;
use berth_types::time::Timestamp;

use super::{Planner, corrupt, request};
use berth_store::reservations::{ReservationRow, StoredDevice, StoredPlaces};
use berth_store::{StoreError, Tx};

/// Who holds maintenance windows: nobody's organization.
pub fn nobody() -> OrgId {
    OrgId::from_uuid(uuid::Uuid::nil())
}

pub fn booking_id(id: ReservationId) -> BookingId {
    BookingId(id.uuid())
}

/// Places as they are stored.
pub fn stored_places(model: &str, named: &Named) -> StoredPlaces {
    let device = |slot: plan::Slot| StoredDevice {
        gpu_uuid: slot.gpu_uuid,
        profile_id: slot.instance.map(|i| i.profile_id),
        start: slot.instance.map_or(0, |i| i.start),
        size: slot.size,
    };
    let place = |(node, slots): &(NodeId, Vec<Slot>)| {
        (*node, super::stored(model, slots).into_iter().map(device).collect())
    };
    named.iter().map(place).collect()
}

/// A stored device as the last look compares it.
pub fn plan_slot(device: &StoredDevice) -> plan::Slot {
    plan::Slot {
        gpu_uuid: device.gpu_uuid.clone(),
        instance: device.profile_id.map(|profile_id| Instance { profile_id, start: device.start }),
        share_milli: None,
        size: device.size,
    }
}

pub fn named_places(stored: &StoredPlaces) -> Named {
    let slot = |d: &StoredDevice| Slot {
        gpu: d.gpu_uuid.as_str().into(),
        part: match d.profile_id {
            Some(profile_id) => Part::Slice(Instance { profile_id, start: d.start }),
            None => Part::Whole,
        },
    };
    stored.iter().map(|(node, devices)| (*node, devices.iter().map(slot).collect())).collect()
}

/// What is reserved, in the engine's terms.
pub fn reserved(
    model: &str,
    profile: Option<&str>,
    (gpus_per_node, nodes): (u32, u32),
    topology: Topology,
) -> Request {
    let wanted = profile.map_or(Wanted::Board, |p| Wanted::Slice(p.into()));
    request(model, wanted, (gpus_per_node, nodes), (0, 0), topology)
}

/// The request behind a stored reservation; `None` for maintenance.
fn request_of(row: &ReservationRow) -> Option<Request> {
    let number = |n: i64| u32::try_from(n).unwrap_or(0);
    let topology = Topology::ALL.into_iter().find(|t| t.name() == row.topology).unwrap_or_default();
    let counts = (number(row.gpus_per_node), number(row.nodes));
    Some(reserved(row.gpu_model.as_deref()?, row.mig_profile.as_deref(), counts, topology))
}

/// A stored reservation as a booking.
pub fn booking(engine: &mut Engine, row: &ReservationRow) -> Result<Booking, StoreError> {
    let id: ReservationId = corrupt(&row.id)?;
    let (kind, org) = match &row.org_id {
        Some(org) => (Kind::Reservation, corrupt(org)?),
        None => (Kind::Maintenance, nobody()),
    };
    let ask = request_of(row).and_then(|request| engine.ask_of(&request, org).ok());
    Ok(Booking {
        id: booking_id(id),
        kind,
        org,
        ask,
        from: Timestamp::from_micros(row.starts_at),
        until: Timestamp::from_micros(row.ends_at),
        places: engine.places_named(&named_places(&row.places()?)),
    })
}

impl Planner {
    /// Every booking that is stored.
    pub async fn stored_bookings(&self, tx: &mut Tx<'_>) -> Result<Vec<ReservationRow>, StoreError> {
        berth_store::reservations::list_holding(tx).await
    }
}

/// States what is stored, and that all other bookings are gone.
pub fn state_bookings(
    engine: &mut Engine,
    rows: &[ReservationRow],
    version: i64,
    now: Timestamp,
) -> Result<(), StoreError> {
    let mut kept = HashSet::new();
    for row in rows {
        let booking = booking(engine, row)?;
        kept.insert(booking.id);
        engine.apply(Fact::Booked { version, booking }, now);
    }
    let others = engine.calendar().iter().filter(|b| b.kind != Kind::Hold).map(|b| b.id);
    let gone: Vec<BookingId> = others.filter(|id| !kept.contains(id)).collect();
    for id in gone {
        engine.apply(Fact::Unbooked { version, id }, now);
    }
    Ok(())
}

/// Whether nothing that is stored already holds one of these devices at that time.
pub async fn is_free(
    tx: &mut Tx<'_>,
    places: &StoredPlaces,
    (from, until): (i64, i64),
    moved: &HashMap<String, StoredPlaces>,
    own: &[String],
) -> Result<bool, StoreError> {
    for row in berth_store::reservations::list_between(tx, from, until).await? {
        if own.contains(&row.id) {
            continue;
        }
        let theirs = match moved.get(&row.id) {
            Some(places) => places.clone(),
            None => row.places()?,
        };
        let devices =
            |p: &StoredPlaces| -> Vec<StoredDevice> { p.iter().flat_map(|(_, d)| d.clone()).collect() };
        let theirs = devices(&theirs);
        let meets = |d: &StoredDevice| theirs.iter().any(|t| plan_slot(d).collides(&plan_slot(t)));
        if devices(places).iter().any(meets) {
            return Ok(false);
        }
    }
    Ok(true)
}
