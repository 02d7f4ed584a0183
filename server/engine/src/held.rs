//! The held starts of jobs that do not fit now, outside and inside reservations.

use std::collections::BTreeMap;

use berth_types::ids::JobId;
use berth_types::time::Timestamp;

use berth_placement::calendar::{Booking, HANGS_S, LATE_S};
use berth_placement::cluster::BookingId;

/// The reason for a held start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// The job is the first of its pool or of its reservation that does not fit.
    First,
    /// Enough runs end by themselves within the grace of the runs that it could preempt, or within 30
    /// seconds.
    Soon,
    /// Runs are stopped for the job: their devices are reserved for it alone.
    Stopped,
}

/// A held start of a job that does not fit now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldStart {
    pub(super) pool: u64,
    pub(super) at: Timestamp,
    pub(super) basis: Basis,
    /// The begin when the basis was found; `at` is later if a run is late.
    pub(super) due: Timestamp,
    /// Bookings that were no obstacle to the start.
    pub(super) excluded: Vec<BookingId>,
    /// The changes of the cluster and of the calendar up to which the start is right.
    pub(super) changes: u64,
    pub(super) bookings: u64,
}

/// A held start inside a booking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldStartInside {
    pub(super) job: JobId,
    pub(super) booking: Booking,
    pub(super) basis: Basis,
    /// The begin of the held start when its basis was found.
    pub(super) due: Timestamp,
}

/// All held starts. A job has at most one, outside of the reservations or inside one.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldStarts {
    open: BTreeMap<JobId, HeldStart>,
    inside: BTreeMap<BookingId, Vec<HeldStartInside>>,
}

impl HeldStarts {
    /// The held starts outside of reservations, in the order of the jobs' ids.
    pub(super) fn iter(&self) -> impl Iterator<Item = (JobId, &HeldStart)> {
        self.open.iter().map(|(job, held)| (*job, held))
    }

    /// The held start of a job outside of reservations.
    pub(super) fn get(&self, job: JobId) -> Option<&HeldStart> {
        self.open.get(&job)
    }

    /// Replaces the held start of a job outside of reservations.
    pub(super) fn insert(&mut self, job: JobId, held: HeldStart) {
        self.open.insert(job, held);
    }

    /// Removes the held start of a job outside of reservations.
    pub(super) fn remove(&mut self, job: JobId) -> Option<HeldStart> {
        self.open.remove(&job)
    }

    /// Records that the held start of a job is right for a state of the cluster and of the calendar.
    pub(super) fn renew(&mut self, job: JobId, changes: u64, bookings: u64) {
        if let Some(held) = self.open.get_mut(&job) {
            (held.changes, held.bookings) = (changes, bookings);
        }
    }

    /// The basis of a job's held start, outside or inside reservations.
    pub(super) fn basis(&self, job: JobId) -> Option<Basis> {
        let inside = || self.inside.values().flatten().find(|h| h.job == job).map(|h| h.basis);
        self.open.get(&job).map(|h| h.basis).or_else(inside)
    }

    /// True if runs are stopped for a job: their devices are reserved for it alone.
    pub(super) fn is_firm(&self, job: JobId) -> bool {
        self.basis(job) == Some(Basis::Stopped)
    }

    /// True if a job has left its line and waits for its held start.
    pub(super) fn is_aside(&self, job: JobId) -> bool {
        self.basis(job).is_some_and(|basis| basis != Basis::First)
    }

    /// The first job of a pool with a held start.
    pub(super) fn first(&self, pool: u64) -> Option<JobId> {
        self.open.iter().find(|(_, h)| h.pool == pool && h.basis == Basis::First).map(|(job, _)| *job)
    }

    /// The jobs aside of a pool.
    pub(super) fn aside(&self, pool: u64) -> Vec<JobId> {
        let aside = self.open.iter().filter(|(_, h)| h.pool == pool && h.basis != Basis::First);
        aside.map(|(job, _)| *job).collect()
    }

    /// The held starts inside all reservations.
    pub(super) fn all_inside(&self) -> impl Iterator<Item = (JobId, &Booking)> {
        self.inside.values().flatten().map(|held| (held.job, &held.booking))
    }

    /// The held starts inside a booking.
    pub(super) fn inside(&self, id: BookingId) -> &[HeldStartInside] {
        self.inside.get(&id).map(Vec::as_slice).unwrap_or_default()
    }

    /// Removes the held starts inside a booking, and returns them.
    pub(super) fn take_inside(&mut self, id: BookingId) -> Vec<HeldStartInside> {
        self.inside.remove(&id).unwrap_or_default()
    }

    /// Sets the held starts inside a booking that has none.
    pub(super) fn put_inside(&mut self, id: BookingId, held: Vec<HeldStartInside>) {
        if !held.is_empty() {
            self.inside.insert(id, held);
        }
    }

    /// The first begin of a held start inside a booking for another job.
    pub(super) fn inside_begins(&self, id: BookingId, job: JobId) -> Option<Timestamp> {
        self.inside(id).iter().filter(|h| h.job != job).map(|h| h.booking.from).min()
    }

    /// Removes the held start of a job inside a reservation.
    pub(super) fn remove_inside(&mut self, job: JobId) {
        self.inside.retain(|_, held| {
            held.retain(|h| h.job != job);
            !held.is_empty()
        });
    }
}

/// The id of the booking of a job's held start.
pub(super) fn hold_id(job: JobId) -> BookingId {
    BookingId(job.uuid())
}

/// True if a firm held start is due and a stopped run may have outlasted its grace by at most [`HANGS_S`].
/// The devices stay reserved for the job during that time.
pub(super) fn is_overdue(basis: Basis, due: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && due <= now && now <= due.plus_seconds(HANGS_S)
}

/// True if only a late stopped run delays a held start.
pub(super) fn is_late_by_victim(basis: Basis, due: Timestamp, at: Timestamp, now: Timestamp) -> bool {
    basis == Basis::Stopped && at <= now.plus_seconds(LATE_S) && now <= due.plus_seconds(HANGS_S)
}
