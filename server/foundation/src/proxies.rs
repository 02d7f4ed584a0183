//! The address of a request's sender behind reverse proxies.
//!
//! A proxy adds the address of its own peer at the right end of a header. Only entries of trusted proxies are
//! believed, so the walk goes from right to left and ends at the first address that is no trusted proxy. A sender
//! can write any text to the left of it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;

/// The longest walk through the header. A longer chain of trusted proxies ends there.
const MAX_PROXIES: usize = 16;

/// The part of an address that one customer of a network provider has: an IPv4 address, or the /64 network of an
/// IPv6 address.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// The header in which the trusted proxies add addresses. A sender can set the other header at will, so only one
/// is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ForwardedHeader {
    #[default]
    XForwardedFor,
    /// RFC 7239.
    Forwarded,
}

impl ForwardedHeader {
    /// The name of the header in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
        }
    }
}

impl FromStr for ForwardedHeader {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = [Self::XForwardedFor, Self::Forwarded];
        known
            .into_iter()
            .find(|header| header.name().eq_ignore_ascii_case(text))
            .ok_or_else(|| "the header is x-forwarded-for or forwarded".to_owned())
    }
}

/// The trusted reverse proxies. By default there are none, and the peer is the sender.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    pub networks: Vec<IpNet>,
    pub header: ForwardedHeader,
}

impl TrustedProxies {
    /// True if the address belongs to a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The address of the sender. `lines` are the values of the header in their order.
    pub fn sender<'a>(&self, peer: IpAddr, lines: impl DoubleEndedIterator<Item = &'a str>) -> IpAddr {
        let mut sender = peer.to_canonical();
        let entries = lines.rev().flat_map(|line| line.rsplit(','));
        for entry in entries.take(MAX_PROXIES) {
            if !self.contains(sender) {
                return sender;
            }
            let address = match self.header {
                ForwardedHeader::XForwardedFor => parse_node(entry),
                ForwardedHeader::Forwarded => forwarded_for(entry).and_then(parse_node),
            };
            // An unreadable entry is from a proxy that hides the sender.
            let Some(address) = address else { return sender };
            sender = address;
        }
        sender
    }
}

/// The value of `for` in one element of the header `Forwarded`.
fn forwarded_for(element: &str) -> Option<&str> {
    element.split(';').find_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then_some(value)
    })
}

/// Parses an address with or without a port, quotes and brackets.
fn parse_node(text: &str) -> Option<IpAddr> {
    let text = text.trim().trim_matches('"');
    let bare = || text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    let address = text.parse::<SocketAddr>().ok().map(|address| address.ip()).or_else(bare)?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sender(networks: &[&str], header: ForwardedHeader, peer: &str, lines: &[&str]) -> String {
        let networks = networks.iter().map(|n| n.parse().unwrap()).collect();
        let proxies = TrustedProxies { networks, header };
        proxies.sender(peer.parse().unwrap(), lines.iter().copied()).to_string()
    }

    #[test]
    fn a_header_of_an_untrusted_peer_is_ignored() {
        let x = ForwardedHeader::XForwardedFor;
        assert_eq!(sender(&[], x, "198.51.100.7", &["203.0.113.9"]), "198.51.100.7");
        assert_eq!(sender(&["10.0.0.0/8"], x, "198.51.100.7", &["203.0.113.9"]), "198.51.100.7");
    }

    #[test]
    fn only_entries_of_trusted_proxies_are_believed() {
        let x = ForwardedHeader::XForwardedFor;
        let ours = ["10.0.0.0/8"];
        for (lines, expected) in [
            (&["203.0.113.9"][..], "203.0.113.9"),
            (&["1.1.1.1, 203.0.113.9"], "203.0.113.9"),
            (&["1.1.1.1", "203.0.113.9"], "203.0.113.9"),
            (&["203.0.113.9, 10.0.0.8"], "203.0.113.9"),
            (&["1.1.1.1, 203.0.113.9, 10.0.0.8"], "203.0.113.9"),
            (&["203.0.113.9:4711"], "203.0.113.9"),
            (&["[2001:db8::1]:4711"], "2001:db8::1"),
            (&["2001:db8::1"], "2001:db8::1"),
            (&["::ffff:203.0.113.9"], "203.0.113.9"),
            (&["unknown"], "10.0.0.1"),
            (&[""], "10.0.0.1"),
            (&["10.0.0.9"], "10.0.0.9"),
            (&[], "10.0.0.1"),
        ] {
            assert_eq!(sender(&ours, x, "10.0.0.1", lines), expected, "{lines:?}");
        }
        assert_eq!(sender(&ours, x, "::ffff:10.0.0.1", &["203.0.113.9"]), "203.0.113.9");
    }

    #[test]
    fn the_standard_header_is_read_in_place_of_the_other() {
        let f = ForwardedHeader::Forwarded;
        let ours = ["10.0.0.0/8"];
        for (lines, expected) in [
            (&["for=203.0.113.9"][..], "203.0.113.9"),
            (&["for=203.0.113.9;proto=https;by=10.0.0.1"], "203.0.113.9"),
            (&["proto=https; For=\"[2001:db8::1]:4711\""], "2001:db8::1"),
            (&["for=1.1.1.1, for=203.0.113.9"], "203.0.113.9"),
            // A sender that opens a quote changes no entry to the right of it.
            (&["for=1.1.1.1;host=\"a, for=203.0.113.9"], "203.0.113.9"),
            (&["for=_hidden"], "10.0.0.1"),
            (&["203.0.113.9"], "10.0.0.1"),
        ] {
            assert_eq!(sender(&ours, f, "10.0.0.1", lines), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_long_chain_ends() {
        let line = vec!["10.0.0.2"; 10_000].join(",");
        assert_eq!(sender(&["10.0.0.0/8"], ForwardedHeader::XForwardedFor, "10.0.0.1", &[&line]), "10.0.0.2");
    }

    /// Lines of a sender: pieces of addresses and of pairs, in any order.
    fn line() -> impl Strategy<Value = String> {
        let pieces = vec![
            "for=",
            "For = ",
            "by=",
            ",",
            ", ",
            ";",
            "\"",
            "[",
            "]",
            "::1",
            "10.0.0.9",
            "198.51.100.7",
            ":99999",
            "unknown",
            "_x",
            " ",
            "\\",
            "::ffff:10.0.0.1",
        ];
        prop::collection::vec(prop::sample::select(pieces), 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest::proptest! {
        #[test]
        fn a_sender_changes_nothing_by_a_header_of_its_own(
            lines in prop::collection::vec(line(), 0..4),
            forwarded: bool,
            on_own_line: bool,
        ) {
            let (header, entry) = if forwarded {
                (ForwardedHeader::Forwarded, "for=203.0.113.9")
            } else {
                (ForwardedHeader::XForwardedFor, "203.0.113.9")
            };
            let lines_of = |lines: &[String], peer: &str| {
                let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
                sender(&["10.0.0.0/8"], header, peer, &lines)
            };
            prop_assert_eq!(lines_of(&lines, "203.0.113.9"), "203.0.113.9");
            // The trusted proxy adds the address of its peer.
            let mut lines = lines;
            match lines.last_mut().filter(|_| !on_own_line) {
                Some(last) => *last = format!("{last}, {entry}"),
                None => lines.push(entry.to_owned()),
            }
            prop_assert_eq!(lines_of(&lines, "10.0.0.1"), "203.0.113.9");
        }

        #[test]
        fn any_header_gives_an_address(text in ".{0,200}", forwarded: bool) {
            let header = if forwarded { ForwardedHeader::Forwarded } else { ForwardedHeader::XForwardedFor };
            sender(&["0.0.0.0/0", "::/0"], header, "10.0.0.1", &[&text]);
        }
    }
}
