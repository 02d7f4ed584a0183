//! Tests of the portal as one program, which share helpers and are linked once.
//!
//! Most tests use real stores, workers, shims and processes. Boards, Stripe and S3 are simulated, and some
//! tests play the worker (`idle_portal`, `daemons`).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "helpers of tests fail loudly, like tests"
)]

// Helpers.
#[macro_use]
mod stores;

mod bucket;
mod common;
mod daemons;
mod fleet;
mod idle_portal;
mod netns;
mod oidc;
mod prepared_data;
mod process;
mod relay;
mod smtp_server;
mod stripe;
mod syslog_server;
mod worker_portal;

// Tests.
mod answers;
mod api_v1;
mod approvals;
mod audit;
mod audit_chain;
mod audit_push;
mod board_reset;
mod board_samples;
mod budgets;
mod canary_keys;
mod capacity;
mod change_requests;
mod changes;
mod clearing;
mod cluster;
mod credit;
mod currency;
mod cut_off;
mod dedicated;
mod deletions;
mod diagnosis;
mod draining;
mod edge;
mod egress;
mod evidence;
mod factors;
mod faults;
mod files;
mod gang_links;
mod gang_networks;
mod gang_training;
mod gangs;
mod gateway_credit;
mod gateway_tokens;
mod gateways;
mod health;
mod held_writes;
mod host_retention;
mod images;
mod inference_keys;
mod install;
mod invoice_details;
mod invoice_files;
mod job_lists;
mod lease;
mod limits;
mod lists;
mod log_times;
mod mail;
mod maintenance;
mod member_stops;
mod members;
mod metrics;
mod money;
mod namespaced;
mod namespaces;
mod node_pools;
mod notices;
mod one_portal;
mod openapi;
mod operations;
mod operator_changes;
mod operators;
mod org_lists;
mod overview;
mod pages;
mod passkeys;
mod passwords;
mod payments;
mod people;
mod planned_prices;
mod portal_settings;
mod ports;
mod promise_choices;
mod promise_classes;
mod promise_evidence;
mod promise_prices;
mod promises;
mod queue;
mod quotas;
mod rdma;
mod replica_keys;
mod reservations;
mod reserved_jobs;
mod reserved_time;
mod retention;
mod scim;
mod scim_groups;
mod secrets;
mod service_accounts;
mod service_hosts;
mod service_loop;
mod service_records;
mod service_returns;
mod services;
mod shares;
mod slugs;
mod sso;
mod sso_domains;
mod sso_ends;
mod sso_issuers;
mod sso_mixup;
mod sso_people;
mod statements;
mod storage_classes;
mod store;
mod store_accounts;
mod store_billing;
mod store_columns;
mod store_files;
mod store_fleet;
mod store_jobs;
mod store_json;
mod store_terminals;
mod survival;
mod templates;
mod terminals;
mod tokens;
mod transport;
mod unknown_boards;
mod volume_jobs;
mod volumes;
mod waiting;
mod webhook_heirs;
mod webhooks;
mod workers;
