//! Users, sessions, second factors, passkeys, API tokens, organizations, their members, service accounts and invitations.

pub mod accounts;
mod common_passwords;
mod context_words;
pub mod factors;
pub mod grants;
mod invitations;
mod link_mails;
mod links;
mod mails;
pub mod members;
pub mod membership_rules;
mod networks;
mod operators;
mod own;
mod passkeys;
mod passwords;
mod reasons;
mod refusals;
mod service_accounts;
mod slugs;
pub mod throttle;
mod user_agent;
mod users;
pub mod webhook_heirs;

pub use accounts::Accounts;
pub use factors::SecondFactors;
pub use invitations::Invitations;
pub use links::MailLinks;
pub use members::Members;
pub use operators::Operators;
pub use own::OwnAccount;
pub use passkeys::Passkeys;
pub use passwords::Hasher;
pub use service_accounts::ServiceAccounts;
pub use users::Users;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::accounts::routes::routes as accounts;
    pub use crate::factors::routes::routes as factors;
    pub use crate::invitations::routes::routes as invitations;
    pub use crate::links::routes::routes as links;
    pub use crate::members::routes::routes as members;
    pub use crate::operators::routes::routes as operators;
    pub use crate::own::routes::routes as own;
    pub use crate::passkeys::routes::routes as passkeys;
    pub use crate::service_accounts::routes::routes as service_accounts;
    pub use crate::users::routes::routes as users;
}
