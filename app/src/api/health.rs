//! How boards are, for operators.

use std::future::Future;

use berth_types::Page;
use berth_types::health::{GpuHealth, PatchGpuMode};
use berth_types::ids::NodeId;

use super::{Answer, list_all, send};

/// The boards of a node.
pub fn list(node: NodeId) -> impl Future<Output = Answer<Page<GpuHealth>>> + Send + 'static {
    list_all(format!("/operator/nodes/{node}/gpus"))
}

/// Has the worker prove a board fit for work.
pub fn check(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/check"), &(), None)
}

/// Puts a board back into service as it is.
pub fn release(gpu_uuid: &str) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/release"), &(), None)
}

/// Changes a board's MIG mode once nothing runs on it.
pub fn set_mode(
    gpu_uuid: &str,
    input: &PatchGpuMode,
) -> impl Future<Output = Answer<GpuHealth>> + Send + 'static {
    send("POST", format!("/operator/gpus/{gpu_uuid}/mode"), input, None)
}
