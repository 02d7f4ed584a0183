//! The jobs and their queue: submission, quotas, the planner and its passes, attempts, drains and lost nodes.

pub mod assignments;
pub mod attempts;
mod bulk_stops;
mod charges;
pub mod drains;
mod egress;
mod evidence;
mod job_filter;
pub mod jobs;
mod leases;
mod logs;
mod lost_nodes;
mod meters;
mod operator_jobs;
mod placements;
mod preparation;
pub mod quotas;
mod ranks;
pub mod reports;
pub mod scheduler;
mod start_inputs;
mod status_reports;
mod templates;
mod transitions;
mod underuse;

pub use attempts::Attempts;
pub use berth_planner::{self as planner, Planner};
pub use drains::Drains;
pub use jobs::Jobs;
pub use logs::{Logs, OpenRank};
pub use lost_nodes::LostNodes;
pub use operator_jobs::OperatorJobs;
pub use placements::Placements;
pub use quotas::Quotas;
pub use scheduler::Scheduler;
pub use start_inputs::Inputs;
pub use templates::Templates;
pub use underuse::IdleWatch;

/// The routes of each part, without their state.
pub mod routes {
    pub use crate::drains::routes::routes as drains;
    pub use crate::jobs::log_streams::routes as job_logs;
    pub use crate::jobs::routes::routes as jobs;
    pub use crate::jobs::streams::routes as job_streams;
    pub use crate::lost_nodes::routes::routes as lost_nodes;
    pub use crate::operator_jobs::routes::routes as operator_jobs;
    pub use crate::quotas::routes::routes as quotas;
    pub use crate::templates::routes::routes as templates;
}
