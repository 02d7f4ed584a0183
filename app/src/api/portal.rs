//! The settings of the portal, its logo and its public offer.

use std::future::Future;

use berth_types::portal::{Logo, Offer, PortalSettings, PutLogo};

use super::{Answer, get, send};

/// Gets the prices and free boards, if they are public.
pub fn offer() -> impl Future<Output = Answer<Offer>> + Send + 'static {
    get("/offer")
}

/// Gets the settings, for operators.
pub fn settings() -> impl Future<Output = Answer<PortalSettings>> + Send + 'static {
    get("/operator/portal-settings")
}

/// Replaces the settings, for operators.
pub fn set_settings(input: &PortalSettings) -> impl Future<Output = Answer<PortalSettings>> + Send + 'static {
    send("PUT", "/operator/portal-settings", input, None)
}

/// Replaces the logo, for operators.
pub fn set_logo(input: &PutLogo) -> impl Future<Output = Answer<Logo>> + Send + 'static {
    send("PUT", "/operator/portal-settings/logo", input, None)
}

/// Removes the logo, for operators.
pub fn remove_logo() -> impl Future<Output = Answer<()>> + Send + 'static {
    send("DELETE", "/operator/portal-settings/logo", &(), None)
}
