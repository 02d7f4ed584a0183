//! Pages of the operator.
//!
//! For everyone else the answer is the one of an unknown path. The portal checks the rights of each request.

pub mod audit;
pub mod boards;
pub mod hardware;
pub mod invoices;
pub mod jobs;
pub mod limits;
pub mod nodes;
pub mod orgs;
pub mod overview;
pub mod people;
pub mod prices;
pub mod reconciliation;
pub mod reservations;
pub mod settings;
pub mod sso_domains;
pub mod stuck;
pub mod system;

use crate::session::use_session;

/// Returns true if the person is an operator.
fn is_operator() -> bool {
    use_session().me.user.operator
}
