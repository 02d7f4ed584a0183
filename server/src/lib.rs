//! The Berth portal: REST, pages, worker sessions, scheduler, service and store.
//!
//! `rest` reads a request and writes an answer, `workers` speaks with the hosts, `scheduler` places,
//! `service` decides, `store` remembers. Authorisation lives in `service` and nowhere else; SQL lives
//! in `store` and nowhere else.

pub mod authority;
pub mod clock;
pub mod depot;
pub mod envelope;
pub mod fault;
pub mod install;
mod keyfile;
pub mod live;
pub mod outbound;
mod passwords;
pub mod portal;
pub mod recordings;
pub mod rest;
pub mod scheduler;
mod secrets;
pub mod serve;
pub mod service;
pub mod store;
pub mod stripe;
pub mod telemetry;
mod throttle;
pub mod tls;
pub mod tunnels;
pub mod web;
pub mod workers;
