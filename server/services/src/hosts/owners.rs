//! The organizations that have host names: by the nearest confirmed domain that is the host or a parent of it.

use std::collections::{BTreeSet, HashMap, HashSet};

use berth_core::domains::{record_name, record_value, with_parents};
use berth_service_types::hosts::{ClaimedHost, ClaimedHostState, ServiceHost};
use berth_store::services::hosts::{self, StoredClaim, StoredProof};
use berth_store::services::services::StoredService;
use berth_store::services::snapshots::{self, HostRow};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::{OrgId, ServiceId};

use crate::addresses::host_of;

const OF_GATEWAY: &str = "A gateway has this host name, so it leads to no service. Choose another one.";

/// The confirmed domains with their organizations, and the hosts of gateways.
#[derive(Debug, Default)]
pub struct HostOwners {
    domains: HashMap<String, OrgId>,
    gateways: HashSet<String>,
}

impl HostOwners {
    /// The owners of some hosts.
    pub async fn read<'h>(tx: &mut Tx<'_>, names: impl Iterator<Item = &'h str>) -> Result<Self, StoreError> {
        let all: BTreeSet<String> = names.flat_map(with_parents).map(str::to_owned).collect();
        if all.is_empty() {
            return Ok(Self::default());
        }
        let domains = hosts::list_confirmed(tx, all.into_iter().collect()).await?;
        let gateways = store::services::gateways::list(tx).await?;
        Ok(Self {
            // The later ones of equal domains are the proofs of hosts, which decide.
            domains: domains.into_iter().collect(),
            gateways: gateways.iter().filter_map(|gateway| host_of(&gateway.url)).collect(),
        })
    }

    /// True for the host of a gateway, which leads to no service.
    pub fn is_of_gateway(&self, host: &str) -> bool {
        self.gateways.contains(host)
    }

    /// The organization with the nearest confirmed domain of a host, with this domain; also for the host of a gateway.
    pub fn holder<'h>(&self, host: &'h str) -> Option<(&'h str, OrgId)> {
        with_parents(host).find_map(|domain| self.domains.get(domain).map(|org| (domain, *org)))
    }

    /// The organization of a host, with its domain. A host of a gateway has none.
    pub fn find<'h>(&self, host: &'h str) -> Option<(&'h str, OrgId)> {
        if self.is_of_gateway(host) { None } else { self.holder(host) }
    }
}

/// Lists the hosts of services that belong to the organizations of their services.
pub async fn list_confirmed(tx: &mut Tx<'_>) -> Result<Vec<HostRow>, StoreError> {
    let mut rows = snapshots::list_hosts(tx).await?;
    let owners = HostOwners::read(tx, rows.iter().map(|row| row.host.as_str())).await?;
    let mut seen: HashSet<String> = HashSet::new();
    // One host leads to one service.
    rows.retain(|row| {
        let is_own = owners.find(&row.host).is_some_and(|(_, org)| org == row.org_id);
        is_own && seen.insert(row.host.clone())
    });
    Ok(rows)
}

/// The wire form of a host of an organization.
fn state(owners: &HostOwners, proof: Option<&StoredProof>, org: OrgId, host: &str) -> ServiceHost {
    let domain = owners.find(host).filter(|(_, owner)| *owner == org).map(|(domain, _)| domain);
    let problem = if owners.is_of_gateway(host) {
        Some(OF_GATEWAY.to_owned())
    } else {
        // A failure of the own record says nothing about a host below another confirmed domain.
        let of_record = proof.filter(|_| domain.is_none_or(|domain| domain == host));
        of_record.map(|proof| proof.problem.clone()).filter(|problem| !problem.is_empty())
    };
    ServiceHost {
        host: host.to_owned(),
        confirmed: domain.is_some(),
        domain: domain.map(str::to_owned),
        record_name: record_name(host),
        record: proof.map(|proof| record_value(&proof.proof)),
        missing_since: proof.and_then(|proof| proof.missing_since),
        checked_at: proof.and_then(|proof| proof.checked_at),
        problem,
    }
}

/// The hosts of services with their states.
pub async fn states(
    tx: &mut Tx<'_>,
    rows: &[StoredService],
) -> Result<HashMap<ServiceId, Vec<ServiceHost>>, StoreError> {
    let names: BTreeSet<String> = rows.iter().flat_map(|row| row.hosts.iter().cloned()).collect();
    if names.is_empty() {
        return Ok(HashMap::new());
    }
    let owners = HostOwners::read(tx, names.iter().map(String::as_str)).await?;
    let proofs = hosts::list_of_hosts(tx, names.into_iter().collect()).await?;
    let proofs: HashMap<(OrgId, &str), &StoredProof> =
        proofs.iter().map(|proof| ((proof.org_id, proof.host.as_str()), proof)).collect();
    let of_service = |row: &StoredService| {
        let one = |host: &String| {
            state(&owners, proofs.get(&(row.org_id, host.as_str())).copied(), row.org_id, host)
        };
        (row.id, row.hosts.iter().map(one).collect())
    };
    Ok(rows.iter().map(of_service).collect())
}

/// The state of one host of an organization.
pub async fn find_state(tx: &mut Tx<'_>, org: OrgId, host: &str) -> Result<ServiceHost, StoreError> {
    let owners = HostOwners::read(tx, std::iter::once(host)).await?;
    let proof = hosts::find(tx, org, host).await?;
    Ok(state(&owners, proof.as_ref(), org, host))
}

/// The wire form of a host in the list of operators.
fn claim(owners: &HostOwners, row: StoredClaim, services: Vec<String>) -> ClaimedHost {
    let found = owners.find(&row.host).filter(|(_, owner)| *owner == row.org_id);
    let domain = found.map(|(domain, _)| domain.to_owned());
    let (state, since) = match (row.confirmed_at, row.missing_since) {
        (Some(_), Some(since)) => (ClaimedHostState::Missing, since),
        (Some(at), None) if row.by_dns => (ClaimedHostState::Record, at),
        (Some(at), None) => (ClaimedHostState::Operator, at),
        (None, _) if domain.is_some() => (ClaimedHostState::Domain, row.pending_since),
        (None, _) => (ClaimedHostState::Waiting, row.pending_since),
    };
    let problem = if owners.is_of_gateway(&row.host) {
        Some(OF_GATEWAY.to_owned())
    } else {
        // A failure of the own record says nothing about a host below another confirmed domain.
        Some(row.problem).filter(|problem| state != ClaimedHostState::Domain && !problem.is_empty())
    };
    ClaimedHost {
        host: row.host,
        organization: row.org_id,
        organization_name: row.org_name,
        services,
        state,
        since,
        domain,
        problem,
    }
}

/// The wire form of hosts in the list of operators.
pub async fn claims(tx: &mut Tx<'_>, rows: Vec<StoredClaim>) -> Result<Vec<ClaimedHost>, StoreError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let owners = HostOwners::read(tx, rows.iter().map(|row| row.host.as_str())).await?;
    let names: BTreeSet<String> = rows.iter().map(|row| row.host.clone()).collect();
    let mut services: HashMap<(String, OrgId), Vec<String>> = HashMap::new();
    for (host, org, name) in hosts::list_service_names(tx, names.into_iter().collect()).await? {
        services.entry((host, org)).or_default().push(name);
    }
    let wire = |row: StoredClaim| {
        let names = services.remove(&(row.host.clone(), row.org_id)).unwrap_or_default();
        claim(&owners, row, names)
    };
    Ok(rows.into_iter().map(wire).collect())
}

#[cfg(test)]
mod tests {
    use berth_types::time::Timestamp;

    use super::*;

    fn org(n: u8) -> OrgId {
        format!("org_{n:026}").parse().unwrap()
    }

    #[test]
    fn the_nearest_confirmed_domain_has_a_host() {
        let domains = [("corp.example", 1), ("lab.corp.example", 2), ("other.example", 2)];
        let owners = HostOwners {
            domains: domains.map(|(domain, n)| (domain.to_owned(), org(n))).into(),
            gateways: HashSet::from(["edge.corp.example".to_owned()]),
        };
        for (host, expected) in [
            ("corp.example", Some(("corp.example", 1))),
            ("a.b.corp.example", Some(("corp.example", 1))),
            ("lab.corp.example", Some(("lab.corp.example", 2))),
            ("a.lab.corp.example", Some(("lab.corp.example", 2))),
            ("xcorp.example", None),
            ("corp.example.org", None),
            ("example", None),
            ("edge.corp.example", None),
            ("a.edge.corp.example", Some(("corp.example", 1))),
        ] {
            let expected = expected.map(|(domain, n)| (domain, org(n)));
            assert_eq!(owners.find(host), expected, "{host}");
            let is_of_gateway = host == "edge.corp.example";
            assert_eq!(owners.is_of_gateway(host), is_of_gateway, "{host}");
            let holder = if is_of_gateway { Some(("corp.example", org(1))) } else { expected };
            assert_eq!(owners.holder(host), holder, "{host}");
        }
    }

    #[test]
    fn each_proof_has_one_state_for_operators() {
        use ClaimedHostState::{Domain, Missing, Operator, Record, Waiting};

        let at = |seconds: i64| Timestamp::from_micros(seconds * 1_000_000);
        let owners = |domains: &[(&str, u8)]| HostOwners {
            domains: domains.iter().map(|(domain, n)| ((*domain).to_owned(), org(*n))).collect(),
            gateways: HashSet::from(["edge.corp.example".to_owned()]),
        };
        let row = |host: &str, by_dns: bool, confirmed: Option<i64>, missing: Option<i64>| StoredClaim {
            host: host.to_owned(),
            org_id: org(1),
            org_name: "Lab".to_owned(),
            by_dns,
            pending_since: at(1),
            confirmed_at: confirmed.map(at),
            missing_since: missing.map(at),
            problem: "Not found.".to_owned(),
        };
        let host = "a.corp.example";
        for (domains, row, state, since, domain) in [
            (vec![], row(host, false, None, None), Waiting, 1, None),
            (vec![("corp.example", 2)], row(host, false, None, None), Waiting, 1, None),
            (vec![("corp.example", 1)], row(host, false, None, None), Domain, 1, Some("corp.example")),
            (vec![(host, 1)], row(host, false, Some(2), None), Operator, 2, Some(host)),
            (vec![(host, 1)], row(host, true, Some(2), None), Record, 2, Some(host)),
            (vec![(host, 1)], row(host, true, Some(2), Some(3)), Missing, 3, Some(host)),
        ] {
            let shown = claim(&owners(&domains), row, vec!["chat".to_owned()]);
            assert_eq!((shown.state, shown.since, shown.domain.as_deref()), (state, at(since), domain));
            assert_eq!(shown.problem.is_none(), state == Domain, "{state:?}");
        }
        let edge = claim(&owners(&[]), row("edge.corp.example", false, Some(2), None), Vec::new());
        assert_eq!((edge.state, edge.domain, edge.problem.as_deref()), (Operator, None, Some(OF_GATEWAY)));
    }
}
