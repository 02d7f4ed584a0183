//! The operator's pages.
//!
//! Must not reveal to anybody else that they exist: the answer is the same as for an unknown path.
//! The portal refuses the calls behind them regardless.

pub mod audit;
pub mod boards;
pub mod books;
pub mod fleet;
pub mod invoices;
pub mod jobs;
pub mod limits;
pub mod nodes;
pub mod orgs;
pub mod prices;
pub mod reservations;
pub mod stuck;
pub mod system;

use crate::session::use_session;

/// Whether the signed-in person operates this portal.
fn is_operator() -> bool {
    use_session().me.user.operator
}
