//! Single-use tickets for ports, and passes that a browser keeps as a cookie.
//!
//! They are in memory only, so users need new tickets after a restart of the portal. Must not decide about
//! rights: `rights` does.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use berth_core::ports::PortAddress;
use berth_types::ids::{NodeId, OrgId, UserId};
use berth_types::time::Timestamp;
use tokio::sync::watch;

use berth_foundation::credentials::fingerprint;
use berth_foundation::{Caller, Change, Listener, SessionKey};

/// Tickets, and passes, of one user. At the limit a new one replaces the first to expire.
const MAX_PER_USER: usize = 64;

/// The right of a caller to one port of one attempt.
#[derive(Debug, Clone)]
pub struct PortPass {
    pub org: OrgId,
    pub caller: Caller,
    /// The caller is an operator with a reason, not a member with the right.
    pub as_operator: bool,
    pub address: PortAddress,
    pub attempt: u32,
    /// The node of the rank.
    pub node: NodeId,
    /// The server in the job expects the full path with the prefix of the port.
    pub keep_path: bool,
}

impl PortPass {
    pub fn user(&self) -> UserId {
        self.caller.user.id
    }
}

struct StoredTicket {
    pass: PortPass,
    expires_at: Timestamp,
}

struct StoredPass {
    pass: PortPass,
    expires_at: Timestamp,
    /// Dropped with the pass, which ends the open requests of the pass.
    alive: watch::Sender<()>,
}

/// A pass that is valid now.
pub struct ValidPass {
    pub pass: PortPass,
    pub expires_at: Timestamp,
    /// Closes at the removal of the pass.
    pub alive: watch::Receiver<()>,
}

#[derive(Default)]
pub struct Passes {
    /// By the hash of the ticket.
    tickets: Mutex<HashMap<String, StoredTicket>>,
    /// By the hash of the cookie's value.
    passes: Mutex<HashMap<String, StoredPass>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes room for one more entry of a user: at `max` entries of the user it removes the first to expire.
/// `user_expiry` returns the expiry of the user's entries and `None` for all others.
fn evict_first_to_expire<K: Hash + Eq + Clone, V>(
    map: &mut HashMap<K, V>,
    max: usize,
    user_expiry: impl Fn(&V) -> Option<Timestamp>,
) {
    let own = map.iter().filter_map(|(key, value)| Some((user_expiry(value)?, key.clone())));
    let own: Vec<(Timestamp, K)> = own.collect();
    if own.len() >= max
        && let Some((_, key)) = own.into_iter().min_by_key(|(at, _)| *at)
    {
        map.remove(&key);
    }
}

impl Listener for Passes {
    fn on_change(&self, change: &Change) {
        if let Change::SignedOut(session) = change {
            self.remove_session(session);
        }
    }
}

impl Passes {
    /// Stores a ticket and removes expired tickets.
    pub fn put_ticket(&self, ticket: &str, pass: PortPass, expires_at: Timestamp, now: Timestamp) {
        let mut tickets = lock(&self.tickets);
        tickets.retain(|_, ticket| ticket.expires_at > now);
        let user = pass.user();
        evict_first_to_expire(&mut tickets, MAX_PER_USER, |ticket| {
            (ticket.pass.user() == user).then_some(ticket.expires_at)
        });
        tickets.insert(fingerprint(ticket), StoredTicket { pass, expires_at });
    }

    /// Uses up a ticket. Returns the pass of a valid ticket.
    pub fn use_ticket(&self, ticket: &str, now: Timestamp) -> Option<PortPass> {
        let stored = lock(&self.tickets).remove(&fingerprint(ticket))?;
        (stored.expires_at > now).then_some(stored.pass)
    }

    /// Stores a pass under the value of its cookie and removes expired passes.
    pub fn put(&self, cookie: &str, pass: PortPass, expires_at: Timestamp, now: Timestamp) {
        let mut passes = lock(&self.passes);
        passes.retain(|_, stored| stored.expires_at > now);
        let user = pass.user();
        evict_first_to_expire(&mut passes, MAX_PER_USER, |stored| {
            (stored.pass.user() == user).then_some(stored.expires_at)
        });
        let stored = StoredPass { pass, expires_at, alive: watch::channel(()).0 };
        passes.insert(fingerprint(cookie), stored);
    }

    /// The pass of a cookie, if it is valid for this port now.
    pub fn find(&self, cookie: &str, address: PortAddress, now: Timestamp) -> Option<ValidPass> {
        let passes = lock(&self.passes);
        let stored = passes.get(&fingerprint(cookie))?;
        if stored.pass.address != address || stored.expires_at <= now {
            return None;
        }
        let (pass, alive) = (stored.pass.clone(), stored.alive.subscribe());
        Some(ValidPass { pass, expires_at: stored.expires_at, alive })
    }

    /// Removes a pass.
    pub fn remove(&self, cookie: &str) {
        lock(&self.passes).remove(&fingerprint(cookie));
    }

    /// Removes all tickets and passes of a session.
    fn remove_session(&self, session: &SessionKey) {
        let other = |pass: &PortPass| pass.caller.session.as_ref() != Some(session);
        lock(&self.tickets).retain(|_, ticket| other(&ticket.pass));
        lock(&self.passes).retain(|_, stored| other(&stored.pass));
    }
}

#[cfg(test)]
mod tests {
    use berth_types::accounts::User;
    use berth_types::ids::JobId;
    use uuid::Uuid;

    use super::*;

    fn address(n: u128) -> PortAddress {
        PortAddress { job: JobId::from_uuid(Uuid::from_u128(n)), rank: 0, port: 8_888 }
    }

    fn session(number: u128) -> SessionKey {
        SessionKey::from_cookie(&number.to_string())
    }

    /// A pass of a user with one session of the same number.
    fn pass(number: u128, job: u128) -> PortPass {
        let user = User {
            id: UserId::from_uuid(Uuid::from_u128(number)),
            email: String::new(),
            name: String::new(),
            operator: false,
        };
        PortPass {
            org: OrgId::from_uuid(Uuid::from_u128(1)),
            caller: Caller {
                user,
                operator_role: None,
                token: None,
                session: Some(session(number)),
                expires_at: None,
                proof: None,
                idempotency_key: None,
            },
            as_operator: false,
            address: address(job),
            attempt: 1,
            node: NodeId::from_uuid(Uuid::from_u128(1)),
            keep_path: false,
        }
    }

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn a_port_ticket_is_valid_once_for_a_short_time() {
        let passes = Passes::default();
        passes.put_ticket("a", pass(1, 1), at(10), at(0));
        assert!(passes.use_ticket("forged", at(1)).is_none());
        assert_eq!(passes.use_ticket("a", at(9)).unwrap().address, address(1));
        assert!(passes.use_ticket("a", at(9)).is_none(), "once");
        passes.put_ticket("b", pass(1, 1), at(10), at(0));
        assert!(passes.use_ticket("b", at(10)).is_none());
        passes.put_ticket("c", pass(1, 1), at(10), at(0));
        passes.on_change(&Change::SignedOut(session(1)));
        assert!(passes.use_ticket("c", at(1)).is_none(), "signed out");
    }

    #[test]
    fn a_pass_is_valid_for_one_port_until_it_ends() {
        let passes = Passes::default();
        passes.put("a", pass(1, 1), at(10), at(0));
        assert!(passes.find("a", address(2), at(1)).is_none(), "of another job");
        assert!(passes.find("b", address(1), at(1)).is_none());
        let rank = PortAddress { rank: 1, ..address(1) };
        assert!(passes.find("a", rank, at(1)).is_none(), "of another rank");
        assert!(passes.find("a", address(1), at(10)).is_none(), "too old");
        let found = passes.find("a", address(1), at(9)).unwrap();
        assert!(found.alive.has_changed().is_ok());
        passes.on_change(&Change::SignedOut(session(2)));
        assert!(found.alive.has_changed().is_ok(), "of somebody else");
        passes.remove("a");
        assert!(found.alive.has_changed().is_err(), "open requests learn of it");
        assert!(passes.find("a", address(1), at(9)).is_none());
    }

    #[test]
    fn one_user_cannot_fill_the_tables() {
        let passes = Passes::default();
        passes.put("other", pass(2, 1), at(5), at(0));
        for n in 0..200 {
            passes.put(&n.to_string(), pass(1, 1), at(1_000 + n), at(0));
            passes.put_ticket(&n.to_string(), pass(1, 1), at(1_000 + n), at(0));
        }
        assert_eq!(
            (lock(&passes.passes).len(), lock(&passes.tickets).len()),
            (MAX_PER_USER + 1, MAX_PER_USER)
        );
        assert!(passes.find("other", address(1), at(1)).is_some());
        assert!(
            passes.find("199", address(1), at(1)).is_some() && passes.find("0", address(1), at(1)).is_none()
        );
    }
    #[test]
    fn a_sign_out_ends_the_passes_and_tickets_of_the_session_and_no_others() {
        let passes = Passes::default();
        for user in [1, 2] {
            passes.put(&format!("pass {user}"), pass(user, 1), at(10), at(0));
            passes.put_ticket(&format!("ticket {user}"), pass(user, 1), at(10), at(0));
        }
        let user = |n: u128| UserId::from_uuid(Uuid::from_u128(n));
        passes.on_change(&Change::Member { org: OrgId::from_uuid(Uuid::from_u128(1)), user: user(1) });
        assert!(passes.find("pass 1", address(1), at(1)).is_some());
        passes.on_change(&Change::SignedOut(session(1)));
        assert!(
            passes.find("pass 1", address(1), at(1)).is_none()
                && passes.use_ticket("ticket 1", at(1)).is_none()
        );
        assert!(
            passes.find("pass 2", address(1), at(1)).is_some()
                && passes.use_ticket("ticket 2", at(1)).is_some()
        );
    }
}
