//! The gateway of services.

fn main() {}
