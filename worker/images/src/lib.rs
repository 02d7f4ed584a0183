//! Attempts in an image: podman pulls it, creates a container of it, and removes both (docs/images.md).
//!
//! The container has the same shim, cgroups and records as any command. Every argument of podman comes from here,
//! except the name of the image and the command, which come from the tenant. The images have their own storage, apart
//! from those of the host's people. Blocking.

pub mod cdi;
pub mod container;
pub mod driver_files;
mod podman;
mod pull;
mod reference;
pub mod registry;
mod toolkit;

pub use podman::{Image, ImageLimits, Podman};
