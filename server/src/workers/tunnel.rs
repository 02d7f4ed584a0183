//! Frames of tunnels between the messages of workers and the values of the portal.

use berth_access::tunnels::{Closed, PortalFrame, WorkerFrame};
use berth_foundation::live::{TunnelRequest, TunnelTarget};
use berth_proto::{self as proto, AttemptId, Frame, dial, frame};
use futures::stream::BoxStream;
use tokio_stream::StreamExt;
use tonic::Streaming;

/// Returns the frames of a worker until the end of its stream. Frames that only a portal sends are left out.
pub(super) fn worker_frames(frames: Streaming<Frame>) -> BoxStream<'static, WorkerFrame> {
    Box::pin(frames.map_while(Result::ok).filter_map(worker_frame))
}

fn worker_frame(frame: Frame) -> Option<WorkerFrame> {
    match frame.what? {
        frame::What::Begins(offset) => Some(WorkerFrame::Begins(offset)),
        frame::What::Data(data) => Some(WorkerFrame::Data(data)),
        frame::What::Taken(taken) => Some(WorkerFrame::Taken(taken)),
        frame::What::Closed(proto::Closed { exit_code, cause, detail }) => {
            Some(WorkerFrame::Closed(Closed { exit_code, cause, detail }))
        }
        frame::What::Size(_) | frame::What::HangUp(_) => None,
    }
}

/// The message of a frame for a worker.
pub(super) fn portal_frame(frame: PortalFrame) -> Frame {
    let content = match frame {
        PortalFrame::Data(data) => frame::What::Data(data),
        PortalFrame::Taken(taken) => frame::What::Taken(taken),
        PortalFrame::Size { cols, rows } => frame::What::Size(proto::Size { cols, rows }),
        PortalFrame::HangUp => frame::What::HangUp(proto::HangUp {}),
    };
    content.into()
}

/// The message of a request for a tunnel.
pub(super) fn dial(request: TunnelRequest) -> proto::Dial {
    let to = match request.target {
        TunnelTarget::Terminal { id, cols, rows, resume_from } => {
            dial::To::Terminal(proto::Terminal { id: id.to_string(), cols, rows, resume_from })
        }
        TunnelTarget::Port(port) => dial::To::Port(u32::from(port)),
    };
    let attempt = AttemptId::new(request.job.to_string(), request.attempt);
    proto::Dial { token: request.token, attempt: Some(attempt), to: Some(to) }
}
