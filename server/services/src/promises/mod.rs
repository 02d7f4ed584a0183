//! Promises of services: the classes that operators offer, the choice of a service, and the judgement of its windows.
//!
//! A choice has the terms of its class at that time. Each whole window after it is judged once, after its end and the
//! time for late evidence, and the transaction of the judgement posts the credit.

mod choice;
mod classes;
mod evidence;
mod judge;
mod present;
pub mod routes;
mod terms;

use std::sync::Arc;

use berth_foundation::Context;

use present::PresentWindows;

/// Promises and their judgement.
#[derive(Clone)]
pub struct Promises {
    context: Context,
    present: Arc<PresentWindows>,
}

impl Promises {
    pub fn new(context: Context) -> Self {
        Self { context, present: Arc::default() }
    }
}
