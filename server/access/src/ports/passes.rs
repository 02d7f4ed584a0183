//! Who may look at which port: tickets that are good once, and passes that a browser keeps as a cookie.
//!
//! In memory only: after a start of the portal people come in anew. Must not decide who may:
//! `rights` does.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_core::ports::Place;
use berth_types::ids::{NodeId, OrgId, UserId};
use berth_types::time::Timestamp;
use tokio::sync::watch;

use berth_foundation::credentials::fingerprint;
use berth_foundation::{Caller, Change, Listener};

/// Passes that one person has at a time; the one that would end first makes room.
const MOST_OF_USER: usize = 64;

/// What somebody was let in to.
#[derive(Debug, Clone)]
pub struct Pass {
    pub org: OrgId,
    pub caller: Caller,
    /// They are an operator who said why.
    pub as_operator: bool,
    pub place: Place,
    pub attempt: u32,
    /// Where that rank of the attempt runs.
    pub node: NodeId,
    /// What listens there knows the path under which it is seen.
    pub keep_path: bool,
}

impl Pass {
    pub fn user(&self) -> UserId {
        self.caller.user.id
    }
}

struct Ticket {
    pass: Pass,
    expires_at: Timestamp,
}

struct Held {
    pass: Pass,
    expires_at: Timestamp,
    /// Dropped with it, upon which whatever is open by it ends.
    life: watch::Sender<()>,
}

/// A pass that is good now.
pub struct Found {
    pub pass: Pass,
    pub expires_at: Timestamp,
    /// Closes when the pass is taken away.
    pub life: watch::Receiver<()>,
}

#[derive(Default)]
pub struct Passes {
    tickets: Mutex<HashMap<String, Ticket>>,
    held: Mutex<HashMap<String, Held>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room for one more of somebody's: the first of theirs to expire goes when they have `most`.
fn make_room<K: Hash + Eq + Clone, V>(
    map: &mut HashMap<K, V>,
    most: usize,
    of: impl Fn(&V) -> Option<Timestamp>,
) {
    let theirs = map.iter().filter_map(|(key, value)| Some((of(value)?, key.clone())));
    let theirs: Vec<(Timestamp, K)> = theirs.collect();
    if theirs.len() >= most
        && let Some((_, key)) = theirs.into_iter().min_by_key(|(at, _)| *at)
    {
        map.remove(&key);
    }
}

impl Listener for Passes {
    fn hear(&self, change: &Change) {
        if let Change::SignedOut(user) = change {
            self.forget(*user);
        }
    }
}

impl Passes {
    /// Keeps a ticket; those that are too old go.
    pub fn put_ticket(&self, ticket: &str, pass: Pass, expires_at: Timestamp, now: Timestamp) {
        let mut tickets = lock(&self.tickets);
        tickets.retain(|_, ticket| ticket.expires_at > now);
        let user = pass.user();
        make_room(&mut tickets, MOST_OF_USER, |t| (t.pass.user() == user).then_some(t.expires_at));
        tickets.insert(fingerprint(ticket), Ticket { pass, expires_at });
    }

    /// Uses a ticket up; what it was good for, unless it was too old or none.
    pub fn use_ticket(&self, ticket: &str, now: Timestamp) -> Option<Pass> {
        let kept = lock(&self.tickets).remove(&fingerprint(ticket))?;
        (kept.expires_at > now).then_some(kept.pass)
    }

    /// Keeps a pass under what its cookie says.
    pub fn put(&self, cookie: &str, pass: Pass, expires_at: Timestamp, now: Timestamp) {
        let mut held = lock(&self.held);
        held.retain(|_, one| one.expires_at > now);
        let user = pass.user();
        make_room(&mut held, MOST_OF_USER, |one| (one.pass.user() == user).then_some(one.expires_at));
        held.insert(fingerprint(cookie), Held { pass, expires_at, life: watch::channel(()).0 });
    }

    /// The pass of a cookie, if it is good for this place now.
    pub fn find(&self, cookie: &str, place: Place, now: Timestamp) -> Option<Found> {
        let held = lock(&self.held);
        let one =
            held.get(&fingerprint(cookie)).filter(|one| one.pass.place == place && one.expires_at > now)?;
        Some(Found { pass: one.pass.clone(), expires_at: one.expires_at, life: one.life.subscribe() })
    }

    /// Takes a pass away.
    pub fn end(&self, cookie: &str) {
        lock(&self.held).remove(&fingerprint(cookie));
    }

    /// Takes everything away that somebody has.
    pub fn forget(&self, user: UserId) {
        lock(&self.tickets).retain(|_, ticket| ticket.pass.user() != user);
        lock(&self.held).retain(|_, one| one.pass.user() != user);
    }
}

#[cfg(test)]
mod tests {
    use berth_types::accounts::User;
    use berth_types::ids::JobId;
    use uuid::Uuid;

    use super::*;

    fn place(n: u128) -> Place {
        Place { job: JobId::from_uuid(Uuid::from_u128(n)), rank: 0, port: 8_888 }
    }

    fn pass(user: u128, of: u128) -> Pass {
        let user = User {
            id: UserId::from_uuid(Uuid::from_u128(user)),
            email: String::new(),
            name: String::new(),
            operator: false,
        };
        Pass {
            org: OrgId::from_uuid(Uuid::from_u128(1)),
            caller: Caller { user, token: None, once: None },
            as_operator: false,
            place: place(of),
            attempt: 1,
            node: NodeId::from_uuid(Uuid::from_u128(1)),
            keep_path: false,
        }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_ticket_is_good_once_and_not_for_long() {
        let passes = Passes::default();
        passes.put_ticket("a", pass(1, 1), at(10), at(0));
        assert!(passes.use_ticket("forged", at(1)).is_none());
        assert_eq!(passes.use_ticket("a", at(9)).unwrap().place, place(1));
        assert!(passes.use_ticket("a", at(9)).is_none(), "once");
        passes.put_ticket("b", pass(1, 1), at(10), at(0));
        assert!(passes.use_ticket("b", at(10)).is_none());
        passes.put_ticket("c", pass(1, 1), at(10), at(0));
        passes.forget(pass(1, 1).user());
        assert!(passes.use_ticket("c", at(1)).is_none(), "signed out");
    }

    #[test]
    fn a_pass_is_for_one_place_until_it_ends() {
        let passes = Passes::default();
        passes.put("a", pass(1, 1), at(10), at(0));
        assert!(passes.find("a", place(2), at(1)).is_none(), "of another job");
        assert!(passes.find("b", place(1), at(1)).is_none());
        let rank = Place { rank: 1, ..place(1) };
        assert!(passes.find("a", rank, at(1)).is_none(), "of another rank");
        assert!(passes.find("a", place(1), at(10)).is_none(), "too old");
        let found = passes.find("a", place(1), at(9)).unwrap();
        assert!(found.life.has_changed().is_ok());
        passes.forget(pass(2, 1).user());
        assert!(found.life.has_changed().is_ok(), "of somebody else");
        passes.end("a");
        assert!(found.life.has_changed().is_err(), "what is open hears of it");
        assert!(passes.find("a", place(1), at(9)).is_none());
    }

    #[test]
    fn one_person_fills_nothing() {
        let passes = Passes::default();
        passes.put("other", pass(2, 1), at(5), at(0));
        for n in 0..200 {
            passes.put(&n.to_string(), pass(1, 1), at(1_000 + n), at(0));
            passes.put_ticket(&n.to_string(), pass(1, 1), at(1_000 + n), at(0));
        }
        assert_eq!((lock(&passes.held).len(), lock(&passes.tickets).len()), (MOST_OF_USER + 1, MOST_OF_USER));
        assert!(passes.find("other", place(1), at(1)).is_some());
        assert!(passes.find("199", place(1), at(1)).is_some() && passes.find("0", place(1), at(1)).is_none());
    }
}
