//! The session with the portal: encrypted transport, the node's identity, and the connection itself. This room
//! carries messages and does not read them.

pub mod identity;
pub mod link;
mod served_certificate;
pub mod tls;

pub use served_certificate::ServedCertificate;
