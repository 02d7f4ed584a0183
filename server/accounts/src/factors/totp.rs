//! Codes of authenticator apps (RFC 6238): six digits, SHA-1, steps of 30 seconds. All apps support this form.

use berth_types::time::Timestamp;
use qrcode::QrCode;
use qrcode::render::svg;
use totp_rs::{Builder, Secret, Totp, TotpError};

/// The secret of an authenticator app.
pub struct TotpKey(Totp);

impl TotpKey {
    /// A new secret with the names that the app shows.
    ///
    /// # Errors
    /// A name contains a colon, or the account has no name.
    pub fn new(key: [u8; 20], issuer: &str, account: &str) -> Result<Self, TotpError> {
        let builder = Builder::new().with_secret(Secret::new_stack(key));
        builder.with_issuer(Some(issuer)).with_account_name(account).build().map(Self)
    }

    /// Reads a secret in base 32.
    pub fn parse(base32: &str) -> Option<Self> {
        let secret = Secret::try_from_base32(base32).ok()?;
        Builder::new().with_secret(secret).build().ok().map(Self)
    }

    pub fn to_base32(&self) -> String {
        self.0.secret().to_base32()
    }

    /// The `otpauth` URL.
    ///
    /// # Errors
    /// The secret was parsed without an account.
    pub fn to_url(&self) -> Result<String, TotpError> {
        self.0.to_url()
    }

    /// The step with this code: the present one, the one before or the one after it.
    pub fn find_step(&self, code: &str, now: Timestamp) -> Option<i64> {
        let now_s = u64::try_from(now.millis().div_euclid(1_000)).ok()?;
        self.0.check(code, now_s).and_then(|step| i64::try_from(step).ok())
    }
}

/// The QR code of a URL in SVG, on white. `None` for a URL beyond the size of a QR code.
pub fn qr_svg(url: &str) -> Option<String> {
    let code = QrCode::new(url.as_bytes()).ok()?;
    let image = code.render::<svg::Color<'_>>().module_dimensions(4, 4).build();
    // An element inside a page has no XML declaration.
    Some(image.find("<svg").and_then(|start| image.get(start..)).unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The secret of the test vectors in RFC 6238.
    const KEY: &[u8; 20] = b"12345678901234567890";

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    #[test]
    fn codes_are_those_of_rfc_6238() {
        let totp = TotpKey::new(*KEY, "Berth", "ada@example.org").unwrap();
        // The last six digits of the codes of appendix B.
        for (seconds, code) in [
            (59, "287082"),
            (1_111_111_109, "081804"),
            (1_111_111_111, "050471"),
            (1_234_567_890, "005924"),
            (2_000_000_000, "279037"),
            (20_000_000_000, "353130"),
        ] {
            assert_eq!(totp.find_step(code, at(seconds)), Some(seconds / 30), "{code}");
        }
        for bad in ["", "28708", "2870820", "+87082", "28708a", "287083", "２８７０８２"] {
            assert_eq!(totp.find_step(bad, at(59)), None, "{bad}");
        }
    }

    #[test]
    fn a_code_is_valid_for_one_step_around_its_own() {
        let totp = TotpKey::new(*KEY, "Berth", "ada@example.org").unwrap();
        for (seconds, found) in [(29, true), (30, true), (59, true), (89, true), (90, false)] {
            assert_eq!(totp.find_step("287082", at(seconds)).is_some(), found, "{seconds}");
        }
    }

    #[test]
    fn a_secret_survives_its_text_and_its_url_names_the_account() {
        let totp = TotpKey::new(*KEY, "Berth portal.example.org", "ada@example.org").unwrap();
        let text = totp.to_base32();
        assert_eq!(text, "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ");
        assert_eq!(TotpKey::parse(&text).unwrap().find_step("287082", at(59)), Some(1));
        let url = totp.to_url().unwrap();
        assert!(url.starts_with("otpauth://totp/Berth%20portal.example.org:ada%40example.org?"), "{url}");
        assert!(url.contains(&format!("secret={text}")), "{url}");
        let svg = qr_svg(&url).unwrap();
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"), "{svg}");
        assert!(qr_svg(&"x".repeat(5_000)).is_none());
        assert!(TotpKey::parse("not base 32").is_none());
    }
}
