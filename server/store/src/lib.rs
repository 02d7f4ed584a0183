//! The database of the portal and all of its SQL.
//!
//! A statement has one text for both engines, except statements with a list (`list_in`). A function takes a
//! [`Tx`], does one thing and returns wire types, rows or plain values. The callers group the changes of one
//! [`Db::write`].

#[macro_use]
extern crate berth_database;

pub mod approvals;
pub mod attempts;
pub mod audit_marks;
pub mod billing_details;
pub mod certificates;
pub mod change_requests;
pub mod dedicated;
pub mod egress;
pub mod files;
pub mod gangs;
pub mod health;
pub mod job_events;
pub mod jobs;
pub mod leases;
pub mod members;
pub mod metrics_tokens;
pub mod node_links;
pub mod node_pools;
pub mod nodes;
pub mod offerings;
pub mod operations;
pub mod orgs;
pub mod quotas;
pub mod rdma;
pub mod reservations;
pub mod secrets;
pub mod stops;
pub mod storage;
pub mod terminals;
pub mod underuse;
pub mod volumes;
pub mod webhooks;

pub use berth_database::{
    DatabaseLock, Db, ReadConn, RefusableWork, StoreError, Tx, Work, WriteError, audit, copy_sqlite,
    is_protected_url, types,
};
pub use berth_store_identity::{
    accounts, factors, operators, passkeys, people, scim, service_accounts, sso, sso_domains,
};
pub use berth_store_money::{budgets, invoices, ledger, payments, usage};
pub use berth_store_services as services;
