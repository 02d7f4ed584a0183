//! The host's kernel, processes and files. This room knows no attempt, no portal and no board.

pub mod capacity;
pub mod clock;
pub mod files;
pub mod listeners;
pub mod pci;
pub mod processes;
pub mod pty;
pub mod rdma;
pub mod reaping;
pub mod removal;
pub mod scrollback;
pub mod shutdown;
pub mod signals;
pub mod single_flight;
pub mod spawn;
pub mod sync;
