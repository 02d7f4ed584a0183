//! The network between the ranks of a job on several nodes.

use std::net::Ipv4Addr;

/// The interface of a rank in the network of its gang.
pub const GANG_INTERFACE: &str = "gang0";
/// The number of UDP ports of a node for the networks of gangs, from its first one on.
pub const GANG_PORTS: u16 = 1_024;
/// The first two numbers of the addresses of ranks, the network of 16 bits. Each gang has these addresses for itself.
const NETWORK: [u8; 2] = [100, 124];

/// The address of a rank in the network of its gang.
pub fn rank_address(rank: u32) -> Ipv4Addr {
    let [a, b] = NETWORK;
    let [c, d] = u16::try_from(rank.saturating_add(1)).unwrap_or(u16::MAX).to_be_bytes();
    Ipv4Addr::new(a, b, c, d)
}

/// The host name of a rank in the network of its gang.
pub fn rank_name(rank: u32) -> String {
    format!("rank-{rank}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rank_has_an_address_and_a_name() {
        let addresses = [0, 1, 63, 255, 70_000].map(|rank| rank_address(rank).to_string());
        assert_eq!(
            addresses,
            ["100.124.0.1", "100.124.0.2", "100.124.0.64", "100.124.1.0", "100.124.255.255"]
        );
        assert_eq!(rank_name(3), "rank-3");
    }
}
