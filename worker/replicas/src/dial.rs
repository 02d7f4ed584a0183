//! The way to the port of a replica, which the owner of the attempt gives.

use std::pin::Pin;
use std::sync::Arc;

use tokio::net::TcpStream;

/// A connection to a replica on its way, or the reason for its absence as a sentence.
pub type Dialing = Pin<Box<dyn Future<Output = Result<TcpStream, String>> + Send>>;
/// Opens a connection to a port of one replica, within a time limit.
pub type Dial = Arc<dyn Fn(u16) -> Dialing + Send + Sync>;
