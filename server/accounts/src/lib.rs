//! Users, sessions, API tokens, organizations, their members and invitations.

mod accounts;
mod invitations;
mod members;
mod membership_rules;
mod passwords;
mod slugs;
mod throttle;

pub use accounts::Accounts;
pub use invitations::Invitations;
pub use members::Members;
pub use passwords::Hasher;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::accounts::routes::routes as accounts;
    pub use crate::invitations::routes::routes as invitations;
    pub use crate::members::routes::routes as members;
}
