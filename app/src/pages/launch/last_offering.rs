//! The last launched offering of an organization in this browser.

use berth_types::ids::OrgId;

/// Returns the key of an organization in the local storage.
#[cfg(feature = "hydrate")]
fn storage_key(org: OrgId) -> String {
    format!("berth.offering.{org}")
}

/// Returns the slug of the last launched offering.
#[cfg(feature = "hydrate")]
pub fn last_offering(org: OrgId) -> Option<String> {
    web_sys::window()?.local_storage().ok()??.get_item(&storage_key(org)).ok()?
}

/// The portal renders without a storage.
#[cfg(not(feature = "hydrate"))]
pub fn last_offering(_org: OrgId) -> Option<String> {
    None
}

/// Stores the slug of a launched offering.
pub fn store_offering(org: OrgId, slug: &str) {
    #[cfg(feature = "hydrate")]
    if let Some(Ok(Some(storage))) = web_sys::window().map(|window| window.local_storage()) {
        // Without storage the form begins with another offering.
        let _ = storage.set_item(&storage_key(org), slug);
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (org, slug);
}
