//! The name and the look of the portal, and its public offer.
//!
//! Visitors without a session read them. The portal therefore keeps them in memory for some seconds, so that no
//! number of visitors adds load on the database.

mod png;
pub mod routes;

use std::cmp::Reverse;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use berth_core::admission::{check_name, is_email};
use berth_fleet::Offerings;
use berth_foundation::{Caller, Context};
use berth_store::{self as store, StoreError};
use berth_types::offerings::Offering;
use berth_types::operators::OperatorRight;
use berth_types::portal::{
    Logo, MAX_TOKEN_DAYS, Offer, OfferedModel, PortalIdentity, PortalSettings, PutLogo,
};
use berth_types::problems::{FieldError, Problem};
use bytes::Bytes;
use futures::FutureExt;
use sha2::{Digest, Sha256};
use tokio::sync::Mutex;

use png::PngSize;

/// The names of the stored settings: JSON, and the logo in base64.
const SETTINGS: &str = store::accounts::PORTAL_SETTINGS;
const LOGO: &str = "portal_logo";
/// The time for which a value stays in memory.
const KEEP_MS: i64 = 5_000;
/// Bytes of a logo.
const MAX_LOGO_BYTES: usize = 64 << 10;
/// Characters of a logo in base64.
const MAX_LOGO_CHARS: usize = MAX_LOGO_BYTES.div_ceil(3) * 4;
/// Pixels of a logo's width and height.
const MAX_LOGO_PX: u32 = 1_024;
/// Characters of an address.
const MAX_URL_CHARS: usize = 2_048;

/// A value with the time of its reading. During a new reading the other callers wait for its result.
struct Kept<T>(Mutex<Option<(i64, T)>>);

impl<T: Clone> Kept<T> {
    fn empty() -> Self {
        Self(Mutex::new(None))
    }

    /// The value, read anew once it is older than [`KEEP_MS`].
    async fn get(
        &self,
        now_ms: i64,
        read: impl Future<Output = Result<T, Problem>> + Send,
    ) -> Result<T, Problem> {
        let mut kept = self.0.lock().await;
        if let Some((read_at_ms, value)) = kept.as_ref()
            && now_ms.saturating_sub(*read_at_ms) < KEEP_MS
        {
            return Ok(value.clone());
        }
        match (read.await, kept.as_mut()) {
            (Ok(value), _) => {
                *kept = Some((now_ms, value.clone()));
                Ok(value)
            }
            // The last value serves during a failure: pages do not wait for one failing read each.
            (Err(_), Some((read_at_ms, value))) => {
                *read_at_ms = now_ms;
                Ok(value.clone())
            }
            (Err(problem), None) => Err(problem),
        }
    }

    async fn forget(&self) {
        *self.0.lock().await = None;
    }
}

/// The stored logo.
struct StoredLogo {
    png: Bytes,
    /// In hexadecimal digits.
    sha256: String,
    size: PngSize,
}

impl StoredLogo {
    /// Checks an image. The error is a sentence.
    fn parse(base64: &str) -> Result<Self, &'static str> {
        if base64.len() > MAX_LOGO_CHARS {
            return Err("Use an image of at most 64 KiB.");
        }
        let png = STANDARD.decode(base64).map_err(|_| "Send the image in base64.")?;
        if png.len() > MAX_LOGO_BYTES {
            return Err("Use an image of at most 64 KiB.");
        }
        let size = png::parse_size(&png).ok_or("Use a PNG image. Other formats are refused.")?;
        let fits = |pixels: u32| (1..=MAX_LOGO_PX).contains(&pixels);
        if !fits(size.width_px) || !fits(size.height_px) {
            return Err("Use an image of 1 to 1024 pixels in width and height.");
        }
        Ok(Self { sha256: hex::encode(Sha256::digest(&png)), png: Bytes::from(png), size })
    }

    fn logo(&self) -> Logo {
        let PngSize { width_px, height_px } = self.size;
        Logo { path: format!("/api/v1/portal/logo/{}", self.sha256), width_px, height_px }
    }
}

/// The stored settings with the logo.
struct Stored {
    settings: PortalSettings,
    logo: Option<StoredLogo>,
    /// The addresses of the gateways of services.
    gateways: Vec<String>,
}

/// True for an address with https, a host and no user.
fn is_https_url(text: &str) -> bool {
    let fits = text.len() <= MAX_URL_CHARS && text.chars().all(|c| c.is_ascii_graphic());
    let uri = text.parse::<http::Uri>().ok().filter(|_| fits && text.starts_with("https://"));
    let authority = uri.as_ref().and_then(http::Uri::authority);
    authority.is_some_and(|authority| !authority.host().is_empty() && !authority.as_str().contains('@'))
}

/// Checks the settings. Returns the invalid fields.
fn check_settings(settings: &PortalSettings) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_name("/name", &settings.name, &mut errors);
    if settings.support_email.as_deref().is_some_and(|email| !is_email(email)) {
        errors.push(FieldError::new("/support_email", "Enter an e-mail address, such as ada@example.org."));
    }
    if settings.terms_url.as_deref().is_some_and(|url| !is_https_url(url)) {
        let detail =
            "Enter an address with https, such as https://example.org/terms, of at most 2048 characters.";
        errors.push(FieldError::new("/terms_url", detail));
    }
    if !(1..=MAX_TOKEN_DAYS).contains(&settings.max_token_days) {
        errors.push(FieldError::new("/max_token_days", "Enter a number of days from 1 to 3660."));
    }
    errors
}

/// The settings as a text for the audit record.
fn audit_text(settings: &PortalSettings) -> String {
    let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    format!(
        "name {}; support {}; terms {}; accent {}; offer {}; tokens up to {} days, expiry {}",
        settings.name,
        or_none(&settings.support_email),
        or_none(&settings.terms_url),
        settings.accent.name(),
        if settings.offer_public { "public" } else { "not public" },
        settings.max_token_days,
        if settings.token_expiry_required { "required" } else { "optional" },
    )
}

/// The board models of these offerings, by name, each with its prices.
fn offered_models(offerings: &[Offering]) -> Vec<OfferedModel> {
    let price = |offering: &Offering| (offering.price.version > 0).then_some(offering.price.per_hour_micros);
    let model = |whole: &Offering| {
        let slices =
            || offerings.iter().filter(|one| one.gpu_model == whole.gpu_model && one.mig_profile.is_some());
        // Variants of a profile may be rarer than the profile.
        let smallest = slices().min_by_key(|one| (one.cells, Reverse(one.available)));
        OfferedModel {
            gpu_model: whole.gpu_model.clone(),
            memory_mib: whole.memory_mib,
            simulated: whole.simulated,
            per_hour_micros: price(whole),
            slice_per_hour_micros: slices().filter_map(price).min(),
            slice_profile: smallest.and_then(|one| one.mig_profile.clone()),
            available_slices: smallest.map_or(0, |one| one.available),
            available: whole.available,
            capacity: whole.capacity,
        }
    };
    let mut models: Vec<OfferedModel> =
        offerings.iter().filter(|offering| offering.mig_profile.is_none()).map(model).collect();
    models.sort_by(|one, other| one.gpu_model.cmp(&other.gpu_model));
    models
}

/// The settings of the portal, its logo and its offer.
#[derive(Clone)]
pub struct Identity {
    context: Context,
    offerings: Offerings,
    stored: Arc<Kept<Arc<Stored>>>,
    offer: Arc<Kept<Arc<Offer>>>,
}

impl Identity {
    pub fn new(context: Context, offerings: Offerings) -> Self {
        Self { context, offerings, stored: Arc::new(Kept::empty()), offer: Arc::new(Kept::empty()) }
    }

    async fn read_stored(&self) -> Result<Arc<Stored>, Problem> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let settings = store::accounts::portal_settings(&mut tx).await?;
        let logo = store::accounts::find_setting(&mut tx, LOGO).await?;
        let logo = logo
            .map(|base64| StoredLogo::parse(&base64))
            .transpose()
            .map_err(|e| StoreError::corrupt("settings", LOGO, "value", e))?;
        let gateways = store::services::addresses::list_gateway_urls(&mut tx).await?;
        Ok(Arc::new(Stored { settings, logo, gateways }))
    }

    async fn stored(&self) -> Result<Arc<Stored>, Problem> {
        self.stored.get(self.context.monotonic_ms(), self.read_stored()).await
    }

    /// The name and the look of the portal, for anyone.
    pub async fn identity(&self) -> Result<PortalIdentity, Problem> {
        let stored = self.stored().await?;
        let identity =
            PortalIdentity::new(stored.settings.clone(), stored.logo.as_ref().map(StoredLogo::logo));
        let gateways = stored.gateways.clone();
        Ok(PortalIdentity { gallery: self.context.settings.gallery, gateways, ..identity })
    }

    /// The bytes of the logo with this hash.
    ///
    /// # Errors
    /// 404 for the hash of another image.
    pub async fn logo(&self, sha256: &str) -> Result<Bytes, Problem> {
        let stored = self.stored().await?;
        let logo = stored.logo.as_ref().filter(|logo| logo.sha256 == sha256);
        logo.map(|logo| logo.png.clone()).ok_or_else(Problem::not_found)
    }

    async fn read_offer(&self) -> Result<Arc<Offer>, Problem> {
        let models = offered_models(&self.offerings.list_offerings().await?);
        Ok(Arc::new(Offer { currency: self.context.settings.currency.clone(), models }))
    }

    /// The public offer.
    ///
    /// # Errors
    /// 404 if the offer is not public.
    pub async fn offer(&self) -> Result<Arc<Offer>, Problem> {
        if !self.stored().await?.settings.offer_public {
            return Err(Problem::not_found());
        }
        self.offer.get(self.context.monotonic_ms(), self.read_offer()).await
    }

    pub async fn settings(&self, caller: &Caller) -> Result<PortalSettings, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        Ok(self.stored().await?.settings.clone())
    }

    /// Replaces the settings.
    ///
    /// # Errors
    /// 404 for callers who are no operators. 422 for invalid fields.
    pub async fn set_settings(
        &self,
        caller: &Caller,
        input: PortalSettings,
    ) -> Result<PortalSettings, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        let errors = check_settings(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let settings = PortalSettings { name: input.name.trim().to_owned(), ..input };
        let text = serde_json::to_string(&settings).map_err(|_| Problem::internal())?;
        self.put(caller, (SETTINGS, Some(text)), ("portal_settings.set", audit_text(&settings))).await?;
        Ok(settings)
    }

    /// Replaces the logo.
    ///
    /// # Errors
    /// 404 for callers who are no operators. 422 if the image is too large or no PNG.
    pub async fn set_logo(&self, caller: &Caller, input: PutLogo) -> Result<Logo, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        let logo = StoredLogo::parse(&input.png).map_err(|why| Problem::invalid_field("/png", why))?;
        let detail = format!("{} bytes, SHA-256 {}", logo.png.len(), logo.sha256);
        self.put(caller, (LOGO, Some(input.png)), ("portal_logo.set", detail)).await?;
        Ok(logo.logo())
    }

    /// Removes the logo. A portal without a logo stays unchanged.
    ///
    /// # Errors
    /// 404 for callers who are no operators.
    pub async fn remove_logo(&self, caller: &Caller) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManagePortal).await?;
        self.put(caller, (LOGO, None), ("portal_logo.removed", String::new())).await
    }

    /// Stores a setting (`None` removes it) with its audit event, and forgets the values in memory.
    async fn put(
        &self,
        caller: &Caller,
        (name, value): (&'static str, Option<String>),
        (action, detail): (&str, String),
    ) -> Result<(), Problem> {
        let event = self.context.audit_event(caller, action, "portal".to_owned(), detail);
        let write = self.context.db.write(move |tx| {
            let (value, mut event) = (value.clone(), event.clone());
            async move {
                if name == SETTINGS {
                    let before = store::accounts::find_setting(tx, name).await?;
                    event = event.with_change(before, value.clone());
                }
                match &value {
                    Some(value) => store::accounts::put_setting(tx, name, value).await?,
                    None => store::accounts::delete_setting(tx, name).await?,
                }
                store::quotas::insert_audit(tx, None, &event).await
            }
            .boxed()
        });
        write.await?;
        self.stored.forget().await;
        self.offer.forget().await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_addresses_with_a_host_are_accepted() {
        for good in ["https://example.org", "https://example.org/terms?v=2#a", "https://h:8443/"] {
            assert!(is_https_url(good), "{good}");
        }
        let long = format!("https://example.org/{}", "a".repeat(2_048));
        for bad in [
            "",
            "https://",
            "https:///terms",
            "http://example.org",
            "javascript:alert(1)",
            "https://user@example.org/",
            "https://example.org/a b",
            "https://exämple.org/",
            "//example.org",
            "https://example.org/\n",
            long.as_str(),
        ] {
            assert!(!is_https_url(bad), "{bad:?}");
        }
    }

    #[test]
    fn a_model_has_the_lowest_price_of_its_slices() {
        let offering = |slug: &str, profile: Option<&str>, version: i64, micros: i64| -> Offering {
            serde_json::from_value(serde_json::json!({
                "id": "off_00000000000000000000000001", "slug": slug, "gpu_model": "H100-80GB", "mig_profile": profile,
                "memory_mib": 81_920, "cells": 8, "board_cells": 8, "simulated": false, "available": 2, "capacity": 3,
                "price": {"nano_per_second": 1, "per_hour_micros": micros, "currency": "USD", "version": version},
            }))
            .unwrap()
        };
        let offerings = [
            offering("h100-80gb", None, 0, 0),
            offering("h100-80gb.1g.10gb", Some("1g.10gb"), 1, 400_000),
            offering("h100-80gb.2g.20gb", Some("2g.20gb"), 1, 800_000),
            offering("h100-80gb.3g.40gb", Some("3g.40gb"), 0, 0),
        ];
        let models = offered_models(&offerings);
        let [model] = models.as_slice() else { panic!("{models:?}") };
        assert_eq!(model.per_hour_micros, None, "an offering without a price");
        assert_eq!(model.slice_per_hour_micros, Some(400_000));
        assert_eq!((model.available, model.capacity), (2, 3));
        assert_eq!((model.slice_profile.as_deref(), model.available_slices), (Some("1g.10gb"), 2));
    }
}
