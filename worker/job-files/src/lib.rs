//! The files of an attempt: the files that it starts with and the files that it hands over.
//!
//! `transfer` reaches a job's directory safely; `inputs` brings files, `outputs` uploads them. `cache` keeps files for
//! further starts. This crate decides nothing about an attempt.

pub mod cache;
pub mod inputs;
pub mod outputs;
pub mod transfer;
