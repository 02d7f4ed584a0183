//! The pages of the app, one module each.
//!
//! Pages ask the portal through `api` and draw with `ui`. They must not talk HTTP themselves, keep
//! state outside signals, or decide anything that the portal decides: prices, limits and rights come
//! from its answers.

pub mod billing;
pub mod budgets;
pub mod cluster;
pub mod confirm;
pub mod curl;
pub mod days;
pub mod home;
pub mod invoices;
pub mod job;
pub mod jobs;
pub mod join;
pub mod launch;
pub mod limits;
pub mod more;
pub mod of_org;
pub mod operator;
pub mod parts;
pub mod payments;
pub mod reservations;
pub mod roles;
pub mod rows;
pub mod secrets;
pub mod setup;
pub mod shell_words;
pub mod sign_in;
pub mod sign_up;
pub mod team;
pub mod tokens;
pub mod usage;
pub mod volumes;
pub mod webhooks;
pub mod words;
