//! The portal's side of gateways: snapshots for them, and their reports and blocks of credit.
//!
//! A gateway is a program of the operator with a token of its own. It has no session and no right of a person. What
//! it sends is checked and bounded: it can be hostile, or its token stolen.

mod blocks;
mod callers;
mod contents;
mod credit;
mod desk;
pub mod loads;
mod reports;
pub mod routes;
mod snapshots;
mod wakes;

use std::sync::Arc;

use berth_fleet::Enrolment;
use berth_foundation::Context;

pub use callers::{CallingGateway, token_hash};
pub(crate) use credit::{EndedBlocks, end_blocks};
pub use loads::Loads;

use callers::Callers;
use credit::PendingCredit;
use snapshots::Snapshots;
use wakes::Wakes;

/// Snapshots, reports and credit of gateways.
#[derive(Clone)]
pub struct GatewaySync {
    context: Context,
    enrolment: Enrolment,
    loads: Arc<dyn Loads>,
    callers: Arc<Callers>,
    snapshots: Arc<Snapshots>,
    wakes: Arc<Wakes>,
    credit: Arc<PendingCredit>,
}

impl GatewaySync {
    /// `loads` gets the loads and the evidence of counted reports.
    pub fn new(context: Context, enrolment: Enrolment, loads: Arc<dyn Loads>) -> Self {
        let wakes: Arc<Wakes> = Arc::default();
        context.changes.subscribe(wakes.clone());
        Self {
            context,
            enrolment,
            loads,
            callers: Arc::default(),
            snapshots: Arc::default(),
            wakes,
            credit: Arc::default(),
        }
    }
}
