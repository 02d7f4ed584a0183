//! Keeps tests that measure short times apart from a test that loads the whole machine.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

static MACHINE: RwLock<()> = RwLock::new(());

/// Waits for the end of heavy tests. None runs beside the guard.
pub fn quiet() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for the end of tests that measure short times. None runs beside the guard.
pub fn heavy() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}
