//! The contract between portal and worker without its messages: the limits of both ends, the flow control of
//! tunnels, and the text format of metrics.
//!
//! The crate is pure and knows no protobuf, so that parts of the portal can use it.

pub mod exposition;
pub mod window;

/// The most bytes of a message: more than the files of a job (at most 12 MiB of JSON).
pub const MESSAGE_LIMIT: usize = 32 << 20;
/// The most log bytes in one message.
pub const LOG_CHUNK: usize = 256 << 10;
/// The most bytes of a file in one message.
pub const FILE_CHUNK: usize = 4 << 20;
/// The most bytes of files in one batch.
pub const BATCH_BYTES: usize = 1 << 20;
/// The most files in one batch.
pub const BATCH_FILES: usize = 500;
/// The most bytes of one log. A job with a longer log is stopped.
pub const LOG_LIMIT: u64 = 4 << 30;

/// The window of a tunnel: the most unacknowledged bytes in one direction.
pub const TUNNEL_WINDOW: u64 = 256 << 10;
/// The most data bytes in one frame of a tunnel.
pub const TUNNEL_CHUNK: usize = 16 << 10;
/// The key of the metadata with the token of a tunnel.
pub const TUNNEL_TOKEN: &str = "berth-tunnel-token";
/// The time for which a terminal without a client stays open.
pub const TERMINAL_PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
