//! Issuers that stand for no single organization.

use openidconnect::IssuerUrl;

/// The hosts of Entra in its clouds.
const ENTRA: [&str; 3] =
    ["login.microsoftonline.com", "login.microsoftonline.us", "login.partner.microsoftonline.cn"];
/// The names in place of the id of a tenant.
const SHARED: [&str; 3] = ["common", "organizations", "consumers"];

/// True for an issuer of Entra for people of any tenant, or with an account of their own. The issuer in its tokens is
/// another one.
pub fn is_shared_issuer(issuer: &str) -> bool {
    let Ok(issuer) = IssuerUrl::new(issuer.to_owned()) else { return false };
    let url = issuer.url();
    let tenant = url.path_segments().and_then(|mut segments| segments.next());
    url.host_str().is_some_and(|host| ENTRA.contains(&host))
        && tenant.is_some_and(|tenant| SHARED.iter().any(|name| tenant.eq_ignore_ascii_case(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issuers_of_entra_without_a_tenant_are_shared() {
        for shared in [
            "https://login.microsoftonline.com/common/v2.0",
            "https://Login.MicrosoftOnline.com/Organizations/v2.0",
            "https://login.microsoftonline.us/consumers",
        ] {
            assert!(is_shared_issuer(shared), "{shared}");
        }
        for own in [
            "https://login.microsoftonline.com/9188040d-6c67-4c5b-b112-36a304b66dad/v2.0",
            "https://login.microsoftonline.com",
            "https://id.example.org/common/v2.0",
            "common",
        ] {
            assert!(!is_shared_issuer(own), "{own}");
        }
    }
}
