//! Board health, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::health::{GpuHealth, PatchGpuMode};
use berth_types::ids::NodeId;

use super::{Answer, list_all, send};

/// Lists the boards of a node.
pub fn list(node: NodeId) -> impl Future<Output = Answer<Page<GpuHealth>>> + Send + 'static {
    list_all(format!("/operator/nodes/{node}/gpus"))
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

/// Changes the MIG mode of a board as soon as no job runs on it.
pub fn set_mode(
    gpu_uuid: &str,
    input: &PatchGpuMode,
) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/mode"), input, None)
}
