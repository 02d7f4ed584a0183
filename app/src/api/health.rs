//! Board health, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::board_samples::BoardSamples;
use berth_types::health::{GpuHealth, PatchGpuMode};
use berth_types::ids::NodeId;
use berth_types::time::Timestamp;

use super::escape::escaped;
use super::{Answer, get, list_all, send};

/// Lists the boards of a node.
pub fn list(node: NodeId) -> impl Future<Output = Answer<Page<GpuHealth>>> + Send + 'static {
    list_all(format!("/operator/nodes/{node}/gpus"))
}

/// Gets the kept readings of a board with its jobs, from a time on or of the last day.
pub fn samples(
    node: NodeId,
    gpu_uuid: &str,
    from: Option<Timestamp>,
) -> impl Future<Output = Answer<BoardSamples>> + Send + 'static + use<> {
    let from = from.map_or_else(String::new, |from| format!("?from={from}"));
    get(format!("/operator/nodes/{node}/gpus/{}/samples{from}", escaped(gpu_uuid)))
}

/// Starts a check of a board by its worker.
pub fn check(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/check"), &(), None)
}

/// Approves a board beyond those of its node's approval.
pub fn approve(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/approve"), &(), None)
}

/// Returns a board to service without a check.
pub fn release(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/release"), &(), None)
}

/// Resets a board as soon as no job runs on it.
pub fn reset(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/reset"), &(), None)
}

/// Changes the MIG mode of a board as soon as no job runs on it.
pub fn set_mode(
    gpu_uuid: &str,
    input: &PatchGpuMode,
) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/mode"), input, None)
}
