//! The statements about identity: accounts and their factors, single sign-on, SCIM, operators and service accounts.

#[macro_use]
extern crate berth_database;

pub mod accounts;
pub mod factors;
pub mod operators;
pub mod passkeys;
pub mod people;
pub mod scim;
pub mod service_accounts;
pub mod sso;
pub mod sso_domains;

use berth_database::{StoreError, Tx, types};
