//! Names that lead to one service only: hosts and models, checked in the transaction of their write.

use std::net::IpAddr;

use berth_service_types::services::{ServiceAccess, ServiceModel};
use berth_serving::snapshot::is_host;
use berth_store::services::services::StoredService;
use berth_store::{self as store, Tx, WriteError};
use berth_types::problems::Problem;
use http::Uri;

/// Characters of the address of a gateway.
const MAX_URL_CHARS: usize = 300;

/// The host of an address in lower case.
pub fn host_of(url: &str) -> Option<String> {
    url.parse::<Uri>().ok()?.host().map(str::to_ascii_lowercase)
}

/// The address of a gateway as `https://HOST` or `https://HOST:PORT`, or with `http`. `None` for any other text.
pub fn gateway_url(url: &str) -> Option<String> {
    if url.len() > MAX_URL_CHARS {
        return None;
    }
    let uri = url.parse::<Uri>().ok()?;
    let (scheme, authority) = (uri.scheme_str()?.to_ascii_lowercase(), uri.authority()?);
    let host = authority.host().to_ascii_lowercase();
    let is_address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
    let port = match authority.port() {
        Some(port) => format!(":{}", port.as_u16()),
        None => String::new(),
    };
    let is_bare =
        matches!(uri.path(), "" | "/") && uri.query().is_none() && !authority.as_str().contains('@');
    let fits = matches!(scheme.as_str(), "http" | "https") && (is_address || is_host(&host));
    (is_bare && fits && !url.contains('#')).then(|| format!("{scheme}://{host}{port}"))
}

/// Refuses hosts of other services of the organization, and those of gateways and of the portal. Other organizations may
/// name the same hosts: the proof decides.
pub async fn check_hosts(
    tx: &mut Tx<'_>,
    row: &StoredService,
    portal: Option<&str>,
) -> Result<(), WriteError> {
    if row.hosts.is_empty() {
        return Ok(());
    }
    let gateways = store::services::gateways::list(tx).await?;
    let own: Vec<String> = gateways.iter().filter_map(|gateway| host_of(&gateway.url)).collect();
    for (index, host) in row.hosts.iter().enumerate() {
        let others = store::services::hosts::list_services(tx, host).await?;
        let is_taken = others.iter().any(|(id, org)| *org == row.org_id && *id != row.id);
        if is_taken || own.contains(host) || portal == Some(host.as_str()) {
            let detail = "Another service of the organization, a gateway or the portal has this host name. Choose another one.";
            return Err(Problem::invalid_field(&format!("/hosts/{index}"), detail).into());
        }
    }
    Ok(())
}

/// Refuses models of other services of the organization. A public service shares no model with a public service of any
/// organization either, because callers without a key have no organization.
pub async fn check_models(tx: &mut Tx<'_>, row: &StoredService) -> Result<(), WriteError> {
    if row.models.is_empty() {
        return Ok(());
    }
    let mut others = store::services::services::list_models(tx, row.org_id).await?;
    if row.access == ServiceAccess::Public {
        others.extend(store::services::services::list_public_models(tx).await?);
    }
    others.retain(|(id, _)| *id != row.id);
    let has = |name: &str| {
        others.iter().any(|(_, models)| models.iter().any(|model: &ServiceModel| model.name == name))
    };
    match row.models.iter().position(|model| has(&model.name)) {
        Some(index) => {
            let detail =
                "Another service has a model with this name. Choose another name, or delete it there.";
            Err(Problem::invalid_field(&format!("/models/{index}/name"), detail).into())
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_a_gateway_has_a_scheme_a_host_and_a_port_alone() {
        for (url, expected) in [
            ("https://models.example.org", "https://models.example.org"),
            ("https://models.example.org/", "https://models.example.org"),
            ("HTTPS://Models.Example.org:8443", "https://models.example.org:8443"),
            ("http://10.0.0.1:8000", "http://10.0.0.1:8000"),
            ("http://[::1]:8000/", "http://[::1]:8000"),
            ("http://localhost", "http://localhost"),
        ] {
            assert_eq!(gateway_url(url).as_deref(), Some(expected), "{url}");
        }
        let long = format!("https://{}.org", "a".repeat(300));
        for url in [
            "",
            "models.example.org",
            "ftp://models.example.org",
            "https://models.example.org/v1",
            "https://models.example.org?a",
            "https://models.example.org#a",
            "https://ada@models.example.org",
            "https://models;example.org",
            "https://",
            &long,
        ] {
            assert_eq!(gateway_url(url), None, "{url}");
        }
        assert_eq!(host_of("https://Models.Example.org:8443"), Some("models.example.org".to_owned()));
        assert_eq!(host_of(""), None);
    }
}
