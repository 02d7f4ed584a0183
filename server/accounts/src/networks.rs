//! The networks from which the requests of a token are accepted.

use std::net::IpAddr;

use berth_types::problems::FieldError;
use berth_types::scopes::{MAX_NETWORK_CHARS, MAX_TOKEN_NETWORKS};
use ipnet::IpNet;

/// Parses a network, or an address as a network of its own. Bits beyond the prefix are cleared. The portal compares
/// IPv4 addresses in their short form, so an IPv4 network inside IPv6 becomes one of IPv4.
fn parse(text: &str) -> Option<IpNet> {
    if text.len() > MAX_NETWORK_CHARS {
        return None;
    }
    let address = || text.parse::<IpAddr>().ok().map(IpNet::from);
    let network = text.parse::<IpNet>().ok().or_else(address)?.trunc();
    let mapped = match network.addr() {
        IpAddr::V6(address) => address.to_ipv4_mapped(),
        IpAddr::V4(_) => None,
    };
    match (mapped, network.prefix_len().checked_sub(96)) {
        (Some(address), Some(prefix_len)) => IpNet::new(IpAddr::V4(address), prefix_len).ok(),
        _ => Some(network),
    }
}

/// Parses the networks of a new token, each one once. Adds the invalid ones to the errors.
pub(crate) fn parse_networks(texts: &[String], errors: &mut Vec<FieldError>) -> Vec<IpNet> {
    if texts.len() > MAX_TOKEN_NETWORKS {
        let detail = format!("Enter at most {MAX_TOKEN_NETWORKS} networks.");
        errors.push(FieldError::new("/networks", detail));
        return Vec::new();
    }
    let mut networks = Vec::new();
    for (number, text) in texts.iter().enumerate() {
        match parse(text.trim()) {
            Some(network) if networks.contains(&network) => {}
            Some(network) => networks.push(network),
            None => {
                let detail = "Enter a network such as 192.0.2.0/24 or 2001:db8::/32, or an address.";
                errors.push(FieldError::new(format!("/networks/{number}"), detail));
            }
        }
    }
    networks
}

/// True if each network of `inner` is inside `outer`. No network stands for all addresses.
pub(crate) fn are_within(inner: &[IpNet], outer: &[String]) -> bool {
    if outer.is_empty() {
        return true;
    }
    let outer: Vec<IpNet> = outer.iter().filter_map(|text| parse(text)).collect();
    !inner.is_empty() && inner.iter().all(|one| outer.iter().any(|other| other.contains(one)))
}

/// True if a token with these networks accepts a request from the sender. A request without a known sender is from
/// no network.
pub(crate) fn accept(networks: &[String], sender: Option<IpAddr>) -> bool {
    let contains = |sender: IpAddr| {
        networks.iter().filter_map(|text| parse(text)).any(|network| network.contains(&sender))
    };
    networks.is_empty() || sender.is_some_and(|sender| contains(sender.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(networks: &[&str]) -> Vec<String> {
        networks.iter().map(|text| (*text).to_owned()).collect()
    }

    fn parsed(networks: &[&str]) -> Vec<IpNet> {
        let mut errors = Vec::new();
        let parsed = parse_networks(&texts(networks), &mut errors);
        assert!(errors.is_empty(), "{errors:?}");
        parsed
    }

    #[test]
    fn networks_are_stored_in_one_form() {
        for (text, stored) in [
            ("192.0.2.77/24", "192.0.2.0/24"),
            ("192.0.2.7", "192.0.2.7/32"),
            (" 2001:DB8::1/32 ", "2001:db8::/32"),
            ("2001:db8::1", "2001:db8::1/128"),
            ("::ffff:192.0.2.7/120", "192.0.2.0/24"),
            ("0.0.0.0/0", "0.0.0.0/0"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(parsed(&[text])[0].to_string(), stored);
        }
        assert_eq!(parsed(&["192.0.2.1/24", "192.0.2.2/24"]).len(), 1);
    }

    #[test]
    fn invalid_networks_are_named_and_their_number_is_limited() {
        let mut errors = Vec::new();
        let long = format!("192.0.2.0/24{}", " ".repeat(100));
        parse_networks(&texts(&["192.0.2.0/33", "192.0.2.0/24", "example.org", ""]), &mut errors);
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/networks/0", "/networks/2", "/networks/3"]);
        assert_eq!(parsed(&[&long]).len(), 1, "white space is no part of a network");
        let many: Vec<String> = (0..=MAX_TOKEN_NETWORKS).map(|n| format!("192.0.2.{n}")).collect();
        let mut errors = Vec::new();
        assert!(parse_networks(&many, &mut errors).is_empty());
        assert_eq!(errors[0].pointer, "/networks");
        let mut errors = Vec::new();
        assert_eq!(parse_networks(&many[1..], &mut errors).len(), MAX_TOKEN_NETWORKS);
        assert!(errors.is_empty());
    }

    #[test]
    fn a_token_accepts_only_its_networks() {
        let from = |address: &str| Some(address.parse().unwrap());
        let networks = texts(&["192.0.2.0/24", "2001:db8::/32"]);
        for inside in ["192.0.2.9", "::ffff:192.0.2.9", "2001:db8:1::9"] {
            assert!(accept(&networks, from(inside)), "{inside}");
        }
        for outside in ["192.0.3.9", "2001:db9::1", "::"] {
            assert!(!accept(&networks, from(outside)), "{outside}");
        }
        assert!(!accept(&networks, None));
        assert!(!accept(&texts(&["corrupt"]), from("192.0.2.9")));
        assert!(accept(&[], None));
        assert!(accept(&[], from("192.0.3.9")));
    }

    #[test]
    fn networks_are_within_others() {
        let outer = texts(&["10.0.0.0/8", "2001:db8::/32"]);
        for inner in [&["10.0.0.0/8"][..], &["10.1.0.0/16", "2001:db8:5::/48"]] {
            assert!(are_within(&parsed(inner), &outer), "{inner:?}");
        }
        for inner in [&["0.0.0.0/0"][..], &["10.0.0.0/7"], &["10.1.0.0/16", "192.0.2.1"], &["::/0"], &[]] {
            assert!(!are_within(&parsed(inner), &outer), "{inner:?}");
        }
        assert!(are_within(&[], &[]));
    }
}
