//! The pages of the app, one module each.
//!
//! Pages send requests through `api` and render with `ui`. All state is in signals. Prices, limits and rights
//! come from the portal.

pub mod account;
pub mod account_factors;
pub mod account_passkeys;
pub mod billing;
pub mod budgets;
pub mod call_button;
pub mod card_form;
pub mod cluster;
pub mod compare;
pub mod confirm;
pub mod curl;
pub mod days;
pub mod dialog_form;
pub mod forgot;
pub mod gallery;
pub mod home;
pub mod invoices;
pub mod job;
pub mod jobs;
pub mod join;
pub mod launch;
pub mod limits;
pub mod link_secret;
pub mod load_more;
pub mod operator;
pub mod org_address;
pub mod org_data;
pub mod parts;
pub mod passkey_entry;
pub mod payments;
pub mod proof_dialog;
pub mod reservations;
pub mod reset;
pub mod roles;
pub mod rows;
pub mod saved_filters;
pub mod secrets;
pub mod setup;
pub mod shell_words;
pub mod sign_in;
pub mod sign_up;
pub mod sso_entry;
pub mod start;
pub mod stop_jobs;
pub mod team;
pub mod text;
pub mod time_field;
pub mod tokens;
pub mod usage;
pub mod verify;
pub mod volumes;
pub mod waits;
pub mod webhooks;
