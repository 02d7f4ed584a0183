//! MIG board tables and the rules of slice placement.
//!
//! A board is a row of memory slices, and an instance of a profile may start at certain slices only. This
//! crate has the tables of NVIDIA's boards, checks an instance against the live instances, and chooses the
//! start of the next one. It is pure: no driver, no IO, no clock. At run time a worker also reads the tables
//! from the driver. If the two differ, the driver counts.

mod board;
mod masks;
mod planner;

pub use board::{Board, Profile, board_by_name, boards, is_usable_whole, model_by_name};
pub use masks::{Masks, cover, masks};
pub use planner::{Illegal, Instance, blocked_slices, choose, completions, legal, room_for};
