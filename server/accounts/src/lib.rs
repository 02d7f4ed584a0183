//! Users, sessions, API tokens, organizations, their members and invitations.

mod accounts;
mod invitations;
mod members;
mod membership_rules;
mod passwords;
mod throttle;

pub use accounts::Accounts;
pub use invitations::Invitations;
pub use members::Members;
pub use passwords::Hasher;
