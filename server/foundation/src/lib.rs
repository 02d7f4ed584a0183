//! The common modules of all parts of the portal. Must not contain rules about jobs, money or hosts.

pub mod addresses;
pub mod audit;
pub mod audit_check;
pub mod audit_key;
pub mod audit_push;
pub mod audit_targets;
pub mod backup;
pub mod callers;
pub mod changes;
pub mod clock;
pub mod context;
pub mod credentials;
pub mod data_directory;
pub mod days;
pub mod delivery;
pub mod disk;
pub mod dns;
pub mod envelope;
pub mod fault;
pub mod idempotency;
pub mod keyfile;
pub mod live;
pub mod log_line;
pub mod loops;
pub mod mail;
pub mod mail_report;
pub mod objects;
pub mod portal_lock;
pub mod proxies;
pub mod refusals;
pub mod repeated;
pub mod replica_tokens;
pub mod second_operator;
pub mod settings;
pub mod source;
pub mod telemetry;

pub use audit::AuditLog;
pub use audit_push::AuditPush;
pub use callers::{
    Caller, Right, Scope, SessionProof, TokenScope, forbidden_for, has_right, recheck_operator_right,
    record_refusal, unverified,
};
pub use changes::{Change, Listener};
pub use context::Context;
pub use credentials::SessionKey;
pub use refusals::Refusal;
pub use second_operator::{Gate, OperatorAct};
pub use settings::{PasswordCost, Settings};
pub use source::RequestSource;
