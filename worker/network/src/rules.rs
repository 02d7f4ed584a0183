//! The rules of nftables for the interfaces of jobs. They touch no other table of the host.

use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use super::places::{INTERFACE, RANGE_V6};

/// The most connections of one job at a time that the host tracks.
const MOST_CONNECTIONS: u32 = 8_192;
/// The most jobs of a host.
const MOST_JOBS: u32 = 65_536;
/// Ranges that are no part of the internet: the host, private, link-local and inner networks, multicast. The one
/// address is that of Azure's metadata.
const DENIED: &str = "0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 168.63.129.16, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/3";
/// Addresses that no policy opens: the host itself, metadata of clouds, link-local networks, multicast.
const CLOSED: &str =
    "0.0.0.0/8, 100.100.100.200, 127.0.0.0/8, 168.63.129.16, 169.254.0.0/16, 192.0.0.0/24, 224.0.0.0/3";
/// The same of version 6, with addresses that contain one of version 4.
const CLOSED_V6: &str = "::/96, ::ffff:0.0.0.0/96, 64:ff9b::/96, 64:ff9b:1::/48, 2002::/16, fd00:ec2::254, fd20:ce::254, fe80::/10, ff00::/8";
/// The ranges of [`DENIED`] for version 6, with addresses that contain one of version 4.
const DENIED_V6: &str =
    "::/96, ::ffff:0.0.0.0/96, 64:ff9b::/96, 64:ff9b:1::/48, 2002::/16, fc00::/7, fe80::/10, ff00::/8";

/// The values of the rules.
#[derive(Debug, Clone)]
pub(crate) struct Rules<'a> {
    pub table: &'a str,
    pub range: Ipv4Net,
    /// The resolvers of names, open for names alone.
    pub resolvers: &'a [IpAddr],
    /// Ranges that the operator opens.
    pub reach: &'a [IpNet],
    pub has_ipv6: bool,
}

/// The name of a version of IP in a rule.
const fn family(is_ipv4: bool) -> &'static str {
    if is_ipv4 { "ip" } else { "ip6" }
}

impl Rules<'_> {
    /// The text for `nft -f`. It replaces the table in one step.
    pub fn text(&self) -> String {
        let Self { table, range, .. } = self;
        let (names, reach) = (self.open_names(), self.open_ranges());
        let translation_v6 = if self.has_ipv6 {
            format!("    ip6 saddr {RANGE_V6} oifname != \"{INTERFACE}*\" masquerade\n")
        } else {
            String::new()
        };
        // The first line makes sure that the second finds a table.
        format!(
            "table inet {table}
delete table inet {table}
table inet {table} {{
  set denied {{ type ipv4_addr; flags interval; elements = {{ {DENIED} }} }}
  set denied_v6 {{ type ipv6_addr; flags interval; elements = {{ {DENIED_V6} }} }}
  set closed {{ type ipv4_addr; flags interval; elements = {{ {CLOSED} }} }}
  set closed_v6 {{ type ipv6_addr; flags interval; elements = {{ {CLOSED_V6} }} }}
  set offline {{ type ifname; size {MOST_JOBS}; }}
  map places {{ type ifname : verdict; size {MOST_JOBS}; }}
  set connections {{ type ipv4_addr; size {MOST_JOBS}; flags dynamic; }}
  set connections_v6 {{ type ipv6_addr; size {MOST_JOBS}; flags dynamic; }}
  chain prerouting {{
    type filter hook prerouting priority raw; policy accept;
    iifname \"{INTERFACE}*\" fib saddr . iif oif 0 drop
  }}
  chain input {{
    type filter hook input priority filter - 10; policy accept;
    iifname != \"{INTERFACE}*\" accept
    icmpv6 type {{ nd-neighbor-solicit, nd-neighbor-advert }} accept
    iifname @offline drop
{names}    drop
  }}
  chain forward {{
    type filter hook forward priority filter - 10; policy accept;
    iifname != \"{INTERFACE}*\" oifname \"{INTERFACE}*\" ct state established,related accept
    oifname \"{INTERFACE}*\" drop
    iifname != \"{INTERFACE}*\" accept
    ct state new add @connections {{ ip saddr ct count over {MOST_CONNECTIONS} }} drop
    ct state new add @connections_v6 {{ ip6 saddr ct count over {MOST_CONNECTIONS} }} drop
    iifname vmap @places
    goto internet
  }}
  chain internet {{
{names}{reach}    ip daddr @denied reject with icmpx admin-prohibited
    ip6 daddr @denied_v6 reject with icmpx admin-prohibited
  }}
  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {range} oifname != \"{INTERFACE}*\" masquerade
{translation_v6}  }}
}}
"
        )
    }

    /// Opens port 53 of the resolvers, which may have private addresses.
    fn open_names(&self) -> String {
        let mut out = String::new();
        for address in self.resolvers {
            let family = family(address.is_ipv4());
            // A write to a string does not fail.
            let _ = writeln!(out, "    {family} daddr {address} udp dport 53 accept");
            let _ = writeln!(out, "    {family} daddr {address} tcp dport 53 accept");
        }
        out
    }

    fn open_ranges(&self) -> String {
        let mut out = String::new();
        for range in self.reach {
            let family = family(matches!(range, IpNet::V4(_)));
            // A write to a string does not fail.
            let _ = writeln!(out, "    {family} daddr {range} accept");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_open_names_and_stated_ranges_before_they_close_the_rest() {
        let resolvers = ["10.0.0.53", "2001:db8::53"].map(|text| text.parse::<IpAddr>().unwrap());
        let reach = ["10.7.0.0/16", "fd00:7::/32"].map(|text| text.parse::<IpNet>().unwrap());
        let range = "100.125.0.0/16".parse::<Ipv4Net>().unwrap();
        let rules = Rules { table: "berth_x", range, resolvers: &resolvers, reach: &reach, has_ipv6: true };
        let text = rules.text();
        let forward = &text[text.find("chain forward").unwrap()..];
        let place = |line: &str| forward.find(line).unwrap_or_else(|| panic!("{line}: {text}"));
        let (others, closed) = (place("oifname \"berth-*\" drop"), place("ip daddr @denied reject"));
        for line in [
            "ip daddr 10.0.0.53 udp dport 53 accept",
            "ip6 daddr 2001:db8::53 tcp dport 53 accept",
            "ip daddr 10.7.0.0/16 accept",
            "ip6 daddr fd00:7::/32 accept",
        ] {
            assert!(others < place(line) && place(line) < closed, "{line}");
        }
        let input = &text[text.find("chain input").unwrap()..text.find("chain forward").unwrap()];
        assert!(!input.contains("10.7.0.0"), "a stated range opens nothing of the host: {input}");
        assert!(text.contains("ip6 saddr fd62:6572:7468::/64"));
        let (policies, rest) = (place("iifname vmap @places"), place("goto internet"));
        assert!(others < policies && policies < rest && rest < closed, "{forward}");
        let offline = input.find("iifname @offline drop").unwrap();
        assert!(offline < input.find("dport 53 accept").unwrap(), "{input}");
        for metadata in ["168.63.129.16", "169.254.0.0/16", "192.0.0.0/24", "100.64.0.0/10", "fc00::/7"] {
            assert!(text.contains(metadata), "a cloud has metadata in {metadata}");
        }
        let text = Rules { has_ipv6: false, ..rules }.text();
        assert!(!text.contains("ip6 saddr fd62"), "{text}");
    }
}
