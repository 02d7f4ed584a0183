//! Says what a test leaves out on this machine, and why. While a test passes, what it prints is kept from view; this
//! is not.

use std::fmt::Display;
use std::io::Write;

pub fn left_out(why: impl Display) {
    let test = std::thread::current();
    // One line in one piece: other tests write meanwhile.
    let why = why.to_string().replace('\n', " ");
    let line = format!("left out of {}: {why}\n", test.name().unwrap_or("a test"));
    // Who cannot be told loses nothing but that.
    let _ = std::io::stderr().write_all(line.as_bytes());
}
