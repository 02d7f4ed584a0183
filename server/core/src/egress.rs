//! Egress policies: the ranges of named networks, and the network of a job under the policy of its organization.

use std::net::IpAddr;

use berth_types::egress::{EgressPolicy, MAX_NETWORK_NAME, MAX_RANGES};
use berth_types::jobs::{Network, NewJob};
use berth_types::problems::FieldError;
use ipnet::IpNet;

/// Ranges that no named network may have a part of: unspecified, loopback, link-local, multicast and reserved
/// addresses, and addresses of version 6 that contain one of version 4.
const FORBIDDEN: [&str; 12] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/3",
    "::/96",
    "::ffff:0:0/96",
    "64:ff9b::/96",
    "64:ff9b:1::/48",
    "2002::/16",
    "fe80::/10",
    "ff00::/8",
    "fd62:6572:7468::/64",
];

/// Reads a range such as `10.8.0.0/16`, or one address. The bits beyond the prefix become 0.
fn parse_range(text: &str) -> Option<IpNet> {
    let one = || text.parse::<IpAddr>().ok().map(IpNet::from);
    text.parse::<IpNet>().ok().or_else(one).map(|range| range.trunc())
}

fn overlap(a: IpNet, b: IpNet) -> bool {
    a.contains(&b) || b.contains(&a)
}

/// True for 1 to 63 lower-case letters, digits and hyphens that begin with a letter or digit.
pub fn is_network_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.len() <= MAX_NETWORK_NAME && name.bytes().all(allowed) && !name.starts_with('-')
}

/// Checks the ranges of a named network. Returns them without bits beyond their prefixes, in order and each once.
///
/// # Errors
/// The faults, one for each wrong range.
pub fn check_ranges(texts: &[String]) -> Result<Vec<String>, Vec<FieldError>> {
    if texts.is_empty() || texts.len() > 2 * MAX_RANGES {
        return Err(vec![FieldError::new("/ranges", "Enter 1 to 32 ranges of each version of IP.")]);
    }
    let forbidden: Vec<IpNet> = FORBIDDEN.iter().filter_map(|text| parse_range(text)).collect();
    let (mut ranges, mut errors) = (Vec::new(), Vec::new());
    for (index, text) in texts.iter().enumerate() {
        let mut refuse = |detail: String| errors.push(FieldError::new(format!("/ranges/{index}"), detail));
        let Some(range) = parse_range(text) else {
            refuse("Enter a range of addresses, such as 10.8.0.0/16 or fd00:8::/32.".to_owned());
            continue;
        };
        match forbidden.iter().find(|closed| overlap(**closed, range)) {
            Some(closed) => refuse(format!(
                "The range has addresses of {closed}, which stay closed to all jobs. Enter a range without them.",
            )),
            None => ranges.push(range),
        }
    }
    ranges.sort_unstable();
    ranges.dedup();
    let of_v4 = ranges.iter().filter(|range| matches!(range, IpNet::V4(_))).count();
    if errors.is_empty() && of_v4.max(ranges.len() - of_v4) > MAX_RANGES {
        errors.push(FieldError::new("/ranges", "Enter at most 32 ranges of each version of IP."));
    }
    if errors.is_empty() { Ok(ranges.iter().map(IpNet::to_string).collect()) } else { Err(errors) }
}

/// The addresses outside of the host that an attempt may reach. The default is the internet alone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobEgress {
    pub no_internet: bool,
    /// The ranges besides the internet.
    pub reach: Vec<String>,
    /// The attempt has the network of its node.
    pub host_network: bool,
}

impl JobEgress {
    /// True if every worker gives this network.
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// The network of a job under the policy of its organization.
///
/// # Errors
/// The policy does not allow it: a sentence with the next step.
pub fn job_egress(network: Network, policy: &EgressPolicy) -> Result<JobEgress, &'static str> {
    if network == Network::None {
        return Ok(JobEgress::default());
    }
    if network == Network::Host {
        let why = "The organization has no grant for the network of nodes. Choose another network, or ask an operator of the cloud for the grant.";
        return policy
            .host_network
            .then(|| JobEgress { host_network: true, ..JobEgress::default() })
            .ok_or(why);
    }
    if network == Network::Internet && !policy.internet {
        return Err(
            "The policy of the organization closes the internet to its jobs. Choose outbound or none, or ask an operator of the cloud for another policy.",
        );
    }
    let networks = policy.networks.iter().filter(|_| network == Network::Outbound);
    let reach = networks.flat_map(|network| network.ranges.iter().cloned()).collect();
    let egress = JobEgress { no_internet: !policy.internet, reach, host_network: false };
    Ok(egress)
}

/// True if the ranks of a job have a network of their own where its nodes give one. The network of the host is a grant,
/// and the adapters for RDMA are in it.
pub const fn has_gang_network(job: &NewJob) -> bool {
    job.nodes > 1 && !job.rdma && matches!(job.network, Network::Outbound | Network::Internet)
}

/// True if the RDMA links between the nodes of a job are measured before its start, where its nodes can do it.
pub const fn has_rdma_check(job: &NewJob) -> bool {
    job.nodes > 1 && job.rdma
}

/// Refuses RDMA on several nodes under a policy: such a job has the network of its nodes, which no policy limits.
///
/// # Errors
/// A sentence with the next step.
pub fn check_gang_rdma(job: &NewJob, egress: &JobEgress) -> Result<(), &'static str> {
    let is_limited = !egress.host_network && !egress.is_default();
    if job.rdma && job.nodes > 1 && is_limited {
        return Err(
            "A job with RDMA on several nodes has the network of its nodes, which the policy of the organization does not allow. Choose one node, omit rdma, or ask an operator of the cloud for another policy.",
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::egress::OpenNetwork;
    use serde_json::{Value, json};

    fn texts(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn policy(internet: bool, ranges: &[&str], host_network: bool) -> EgressPolicy {
        let network = |range: &&str| OpenNetwork { name: "n".to_owned(), ranges: texts(&[*range]) };
        EgressPolicy { internet, networks: ranges.iter().map(network).collect(), host_network }
    }

    #[test]
    fn ranges_are_checked_and_written_in_one_form() {
        let good = texts(&["fd00:8::1/32", "10.8.3.4/16", "10.8.0.0/16", "192.168.0.1", "2001:db8::/128"]);
        let expected = ["10.8.0.0/16", "192.168.0.1/32", "2001:db8::/128", "fd00:8::/32"];
        assert_eq!(check_ranges(&good).unwrap(), expected);
        for bad in [
            "",
            "10.8.0.0/33",
            "10.8.0.0/+8",
            "10.8.0.0/",
            "x/8",
            "0.0.0.0/0",
            "::/0",
            "127.0.0.1",
            "169.254.169.254/32",
            "192.0.0.0/2",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "fe80::/64",
            "ff02::1",
            "::ffff:10.0.0.1/128",
            "64:ff9b::/96",
            "10.0.0.0/8 } accept",
        ] {
            let errors = check_ranges(&texts(&["10.8.0.0/16", bad])).unwrap_err();
            assert_eq!(errors.len(), 1, "{bad}");
            assert_eq!(errors[0].pointer, "/ranges/1", "{bad}");
        }
    }

    #[test]
    fn ranges_of_each_version_are_bounded() {
        let v4 = |n: usize| (0..n).map(|i| format!("10.{i}.0.0/16"));
        let v6 = |n: usize| (0..n).map(|i| format!("fd00:{i}::/32"));
        let both: Vec<String> = v4(32).chain(v6(32)).collect();
        assert_eq!(check_ranges(&both).unwrap().len(), 64);
        for many in [v4(33).collect::<Vec<_>>(), v4(65).collect(), Vec::new()] {
            assert_eq!(check_ranges(&many).unwrap_err()[0].pointer, "/ranges", "{}", many.len());
        }
    }

    #[test]
    fn names_have_lower_case_letters_digits_and_hyphens() {
        for good in ["storage", "s3-eu", "0", &"x".repeat(63)] {
            assert!(is_network_name(good), "{good}");
        }
        for bad in ["", "-a", "A", "a b", "a/b", "a.b", &"x".repeat(64)] {
            assert!(!is_network_name(bad), "{bad}");
        }
    }

    #[test]
    fn a_job_narrows_the_policy_and_never_widens_it() {
        let (open, named) = (policy(true, &[], false), policy(false, &["10.8.0.0/16"], false));
        let both = policy(true, &["10.8.0.0/16"], true);
        assert!(job_egress(Network::Outbound, &open).unwrap().is_default());
        assert!(job_egress(Network::Internet, &both).unwrap().is_default());
        assert!(job_egress(Network::None, &named).unwrap().is_default());
        let egress = job_egress(Network::Outbound, &named).unwrap();
        assert_eq!((egress.no_internet, egress.reach), (true, texts(&["10.8.0.0/16"])));
        let egress = job_egress(Network::Outbound, &both).unwrap();
        assert_eq!((egress.no_internet, egress.reach.len(), egress.host_network), (false, 1, false));
        let host = job_egress(Network::Host, &both).unwrap();
        assert!(host.host_network && host.reach.is_empty() && !host.no_internet);
        for network in [Network::Internet, Network::Host] {
            let why = job_egress(network, &named).unwrap_err();
            assert!(why.contains("ask an operator"), "{why}");
        }
    }

    fn job(more: &[(&str, Value)]) -> NewJob {
        let mut body =
            json!({"name": "a", "offering": "h100-80gb", "command": ["true"], "max_duration_s": 60});
        body.as_object_mut()
            .unwrap()
            .extend(more.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn ranks_have_a_network_of_their_own_without_rdma_and_without_that_of_the_host() {
        let several = ("nodes", json!(2));
        assert!(has_gang_network(&job(std::slice::from_ref(&several))));
        assert!(has_gang_network(&job(&[several.clone(), ("network", json!("internet"))])));
        assert!(!has_gang_network(&job(&[])));
        assert!(!has_gang_network(&job(&[several.clone(), ("rdma", json!(true))])));
        assert!(!has_gang_network(&job(&[several.clone(), ("network", json!("host"))])));
        assert!(has_rdma_check(&job(&[several.clone(), ("rdma", json!(true))])));
        assert!(!has_rdma_check(&job(&[several])) && !has_rdma_check(&job(&[("rdma", json!(true))])));
    }

    #[test]
    fn no_policy_limits_rdma_on_several_nodes() {
        let gang = job(&[("rdma", json!(true)), ("nodes", json!(2))]);
        let limited = JobEgress { no_internet: true, ..JobEgress::default() };
        assert!(check_gang_rdma(&gang, &limited).unwrap_err().contains("omit rdma"));
        assert_eq!(check_gang_rdma(&job(&[("rdma", json!(true))]), &limited), Ok(()));
        assert_eq!(check_gang_rdma(&job(&[("nodes", json!(2))]), &limited), Ok(()));
        for egress in [JobEgress::default(), JobEgress { host_network: true, ..JobEgress::default() }] {
            assert_eq!(check_gang_rdma(&gang, &egress), Ok(()));
        }
    }
}
