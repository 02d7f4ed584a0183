//! Frames of tunnels between the messages of workers and the values of the portal.

use berth_access::tunnels::{Closed, PortalFrame, WorkerFrame};
use berth_foundation::live::{TunnelRequest, TunnelTarget};
use berth_proto::{self as proto, AttemptId, Frame, frame, open_tunnel};
use futures::stream::BoxStream;
use tokio_stream::StreamExt;
use tonic::Streaming;

/// Returns the frames of a worker until the end of its stream. Frames that only a portal sends are left out.
pub(super) fn worker_frames(frames: Streaming<Frame>) -> BoxStream<'static, WorkerFrame> {
    Box::pin(frames.map_while(Result::ok).filter_map(worker_frame))
}

fn worker_frame(frame: Frame) -> Option<WorkerFrame> {
    match frame.body? {
        frame::Body::StartOffset(offset) => Some(WorkerFrame::Begins(offset)),
        frame::Body::Data(data) => Some(WorkerFrame::Data(data)),
        frame::Body::AcknowledgedBytes(taken) => Some(WorkerFrame::Taken(taken)),
        frame::Body::Closed(proto::Closed { exit_code, cause, detail }) => {
            Some(WorkerFrame::Closed(Closed { exit_code, cause, detail }))
        }
        frame::Body::Size(_) | frame::Body::CloseTunnel(_) => None,
    }
}

/// The message of a frame for a worker.
pub(super) fn portal_frame(frame: PortalFrame) -> Frame {
    let content = match frame {
        PortalFrame::Data(data) => frame::Body::Data(data),
        PortalFrame::Taken(taken) => frame::Body::AcknowledgedBytes(taken),
        PortalFrame::Size { cols, rows } => frame::Body::Size(proto::TerminalSize { cols, rows }),
        PortalFrame::HangUp => frame::Body::CloseTunnel(proto::CloseTunnel {}),
    };
    content.into()
}

/// The message of a request for a tunnel.
pub(super) fn open_tunnel(request: TunnelRequest) -> proto::OpenTunnel {
    let target = match request.target {
        TunnelTarget::Terminal { id, cols, rows, resume_from } => {
            open_tunnel::Target::Terminal(proto::Terminal { id: id.to_string(), cols, rows, resume_from })
        }
        TunnelTarget::Port(port) => open_tunnel::Target::Port(u32::from(port)),
    };
    let attempt = AttemptId::new(request.job.to_string(), request.attempt);
    proto::OpenTunnel { token: request.token, attempt: Some(attempt), target: Some(target) }
}
