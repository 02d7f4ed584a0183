//! The separation of an attempt from the host and from other attempts: sandbox, system calls, cgroups, device nodes,
//! disk space and files with secrets. docs/isolation.md describes the effect. `attempt::confinement` combines the
//! parts.

pub mod cgroups;
pub mod device_nodes;
pub mod disk;
pub mod modprobe;
pub mod sandbox;
pub mod seccomp;
pub mod secret_files;

#[cfg(test)]
#[path = "../../tests/left_out/mod.rs"]
mod left_out;
