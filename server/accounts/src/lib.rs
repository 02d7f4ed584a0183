//! Users, sessions, second factors, API tokens, organizations, their members and invitations.

mod accounts;
mod factors;
mod invitations;
mod members;
mod membership_rules;
mod passwords;
mod slugs;
mod throttle;

pub use accounts::Accounts;
pub use factors::SecondFactors;
pub use invitations::Invitations;
pub use members::Members;
pub use passwords::Hasher;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::accounts::routes::routes as accounts;
    pub use crate::factors::routes::routes as factors;
    pub use crate::invitations::routes::routes as invitations;
    pub use crate::members::routes::routes as members;
}
