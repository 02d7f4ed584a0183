//! MIG board tables and the rules of slice placement.
//!
//! A board is a row of memory slices; a profile may be created only at certain starts. This crate
//! knows the tables of NVIDIA's boards, says whether an instance is legal beside live ones, and
//! chooses where to put the next one. It is pure: no driver, no IO, no clock. At run time a worker
//! reads the tables from the driver too, and the driver has the last word.

mod board;
mod masks;
mod planner;

pub use board::{Board, Profile, board_by_name, boards};
pub use masks::{Masks, cover, masks};
pub use planner::{Illegal, Instance, blocked_slices, choose, completions, legal, room_for};
