//! Types of the portal settings: the name and the look of the portal, and its public offer.

use serde::{Deserialize, Serialize};

/// The accent colour of the pages. Each one has the same contrast, by day and by night.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Accent {
    /// Blue, the default.
    #[default]
    Blue,
    /// Blue-green.
    Teal,
    /// Green.
    Green,
    /// Reddish brown.
    Copper,
    /// Pinkish red.
    Rose,
    /// Violet.
    Violet,
}

impl Accent {
    pub const ALL: [Self; 6] = [Self::Blue, Self::Teal, Self::Green, Self::Copper, Self::Rose, Self::Violet];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Blue => "blue",
            Self::Teal => "teal",
            Self::Green => "green",
            Self::Copper => "copper",
            Self::Rose => "rose",
            Self::Violet => "violet",
        }
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|accent| accent.name() == name)
    }
}

/// Days of the longest lifetime of tokens of a portal without settings.
pub const DEFAULT_TOKEN_DAYS: i64 = 366;
/// The most days of the longest lifetime of tokens.
pub const MAX_TOKEN_DAYS: i64 = 3_660;

const fn default_token_days() -> i64 {
    DEFAULT_TOKEN_DAYS
}

/// The name of a portal without settings.
fn default_name() -> String {
    "Berth".to_owned()
}

/// The settings of the portal. A request replaces all of them; an absent field gets its default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PortalSettings {
    /// The operator's name on all pages: 1 to 100 printable characters on one line, not only white space.
    #[serde(default = "default_name")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 1, max = 100), regex(pattern = crate::patterns::NAME))
    )]
    pub name: String,
    /// The e-mail address for support, at most 254 bytes, without a display name; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 3, max = 254), regex(pattern = crate::patterns::EMAIL))
    )]
    pub support_email: Option<String>,
    /// The address of the terms of use, with https and at most 2048 ASCII characters; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(length(min = 9, max = 2_048), regex(pattern = crate::patterns::HTTPS))
    )]
    pub terms_url: Option<String>,
    /// The accent colour of the pages.
    #[serde(default)]
    pub accent: Accent,
    /// True if visitors without sign-in see the prices and the free boards.
    #[serde(default)]
    pub offer_public: bool,
    /// The longest lifetime of new API tokens with an expiry, in days: 1 to 3660. Present tokens stay as they are.
    #[serde(default = "default_token_days")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3_660)))]
    pub max_token_days: i64,
    /// True if each new API token needs an expiry.
    #[serde(default)]
    pub token_expiry_required: bool,
}

impl Default for PortalSettings {
    fn default() -> Self {
        Self {
            name: default_name(),
            support_email: None,
            terms_url: None,
            accent: Accent::Blue,
            offer_public: false,
            max_token_days: DEFAULT_TOKEN_DAYS,
            token_expiry_required: false,
        }
    }
}

/// The body of a new logo.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PutLogo {
    /// A PNG image in base64: at most 65,536 bytes before the encoding, and 1 to 1024 pixels wide and high.
    #[cfg_attr(feature = "schema", schemars(length(min = 4, max = 87_384)))]
    pub png: String,
}

/// The logo of the portal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Logo {
    /// The path of the image on this portal. Another image has another path.
    pub path: String,
    /// The width in pixels.
    pub width_px: u32,
    /// The height in pixels.
    pub height_px: u32,
}

/// The name and the look of the portal, public without sign-in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct PortalIdentity {
    /// The operator's name.
    pub name: String,
    /// The e-mail address for support; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub support_email: Option<String>,
    /// The address of the terms of use; none when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terms_url: Option<String>,
    /// The accent colour of the pages.
    pub accent: Accent,
    /// The logo; the mark of Berth when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logo: Option<Logo>,
    /// True if the offer is public.
    pub offer_public: bool,
    /// True if operators have the page of all components, `/operator/gallery`; otherwise absent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gallery: bool,
    /// The addresses of the gateways of services, which the pages may ask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<String>,
}

impl PortalIdentity {
    /// Creates the identity of a portal with these settings and this logo, without gateways and without the page of
    /// all components.
    pub fn new(settings: PortalSettings, logo: Option<Logo>) -> Self {
        let PortalSettings { name, support_email, terms_url, accent, offer_public, .. } = settings;
        Self {
            name,
            support_email,
            terms_url,
            accent,
            logo,
            offer_public,
            gallery: false,
            gateways: Vec::new(),
        }
    }
}

impl Default for PortalIdentity {
    fn default() -> Self {
        Self::new(PortalSettings::default(), None)
    }
}

/// The prices and the free boards of the portal, public if the settings say so. They are a few seconds old at
/// most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Offer {
    /// The ISO 4217 code of the portal's only currency.
    pub currency: String,
    /// The board models, by name.
    pub models: Vec<OfferedModel>,
}

/// One board model of the offer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct OfferedModel {
    /// The model of the board.
    pub gpu_model: String,
    /// The memory of one board in MiB.
    pub memory_mib: i64,
    /// True for simulated boards.
    pub simulated: bool,
    /// The price of a whole board in micro-units of the currency an hour; absent without a price.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_hour_micros: Option<i64>,
    /// The lowest price of a MIG slice in micro-units of the currency an hour; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_per_hour_micros: Option<i64>,
    /// The profile of the smallest MIG slice, such as `1g.10gb`; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_profile: Option<String>,
    /// The number of slices of this profile that could start a job now.
    #[serde(default)]
    pub available_slices: u32,
    /// The number of whole boards that could start a job now.
    pub available: u32,
    /// The number of whole boards in an empty, healthy cluster.
    pub capacity: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_settings_have_defaults() {
        let settings: PortalSettings = serde_json::from_str("{}").unwrap();
        assert_eq!(settings, PortalSettings::default());
        assert!(!settings.offer_public);
    }

    #[test]
    fn each_accent_has_the_name_of_its_json() {
        for accent in Accent::ALL {
            assert_eq!(serde_json::to_value(accent).unwrap(), accent.name());
            assert_eq!(Accent::parse(accent.name()), Some(accent));
        }
        assert_eq!(Accent::parse("red"), None);
    }
}
