//! Says what a test leaves out on this machine, and why. While a test passes, what it prints is kept from view; this
//! is not.

use std::fmt::Display;
use std::io::Write;

pub fn left_out(why: impl Display) {
    let test = std::thread::current();
    // Who cannot be told loses nothing but that.
    let _ = writeln!(std::io::stderr(), "left out of {}: {why}", test.name().unwrap_or("a test"));
}
