//! Users, sessions, second factors, API tokens, organizations, their members, service accounts and invitations.

mod accounts;
mod factors;
mod grants;
mod invitations;
mod link_mails;
mod links;
mod mails;
mod members;
mod membership_rules;
mod networks;
mod own;
mod passwords;
mod refusals;
mod service_accounts;
mod slugs;
mod sso;
mod throttle;
mod user_agent;
mod users;
mod webhook_heirs;

pub use accounts::Accounts;
pub use factors::SecondFactors;
pub use invitations::Invitations;
pub use links::MailLinks;
pub use members::Members;
pub use own::OwnAccount;
pub use passwords::Hasher;
pub use service_accounts::ServiceAccounts;
pub use sso::SingleSignOn;
pub use users::Users;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::accounts::routes::routes as accounts;
    pub use crate::factors::routes::routes as factors;
    pub use crate::invitations::routes::routes as invitations;
    pub use crate::links::routes::routes as links;
    pub use crate::members::routes::routes as members;
    pub use crate::own::routes::routes as own;
    pub use crate::service_accounts::routes::routes as service_accounts;
    pub use crate::sso::routes::routes as sso;
    pub use crate::users::routes::routes as users;
}
