//! The choice of times in the log, kept in the browser.

#[cfg(feature = "hydrate")]
const STORAGE_KEY: &str = "berth.log.timestamps";

/// Returns true if the person wants times.
#[cfg(feature = "hydrate")]
pub fn wants_timestamps() -> bool {
    let stored = || web_sys::window()?.local_storage().ok()??.get_item(STORAGE_KEY).ok()?;
    stored().is_some_and(|choice| choice == "true")
}

/// The portal renders without a storage.
#[cfg(not(feature = "hydrate"))]
pub fn wants_timestamps() -> bool {
    false
}

/// Stores the choice.
pub fn store_timestamps(timestamps: bool) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|window| window.local_storage()) {
        // Without storage the choice is lost.
        let _ = storage.set_item(STORAGE_KEY, if timestamps { "true" } else { "false" });
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = timestamps;
}
