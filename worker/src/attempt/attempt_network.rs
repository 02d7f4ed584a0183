//! The network of one attempt from its specification: the host's, none, or a namespace of its own, with a network
//! between the ranks of a gang.

use std::fs::Permissions;
use std::net::ToSocketAddrs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use berth_isolation::sandbox::{BindMount, NetworkNamespace};
use berth_network::preflight::{Preflight, TOKEN_BYTES};
use berth_network::{Egress, GangKey, GangNetwork, GangPeer, hosts_text};
use berth_proto as proto;
use berth_shim::model::{JobFailure, job_failure, start_failure};

use super::host::Host;
use super::rdma::RdmaAccess;
use super::record::AttemptRecord;

/// The file of the names of the ranks in an attempt's directory.
const HOSTS: &str = "hosts";
/// The file that it replaces.
const HOSTS_TARGET: &str = "/etc/hosts";
/// The most ranks of a gang.
const MOST_RANKS: usize = 64;

/// Creates the network of an attempt, whose cleanup removes it. `None`: the attempt has the host's network or none.
pub fn create_network(
    record: &AttemptRecord,
    spec: &proto::Spec,
    host: &Host,
    (dir, rdma): (&Path, Option<&RdmaAccess>),
) -> Result<Option<NetworkNamespace>, JobFailure> {
    // Without a network for gangs, the ranks of a job connect by the addresses of their nodes.
    let failed = |why: String| {
        start_failure("worker.isolation", format!("The network of the job cannot be created: {why}"))
    };
    if spec.no_network || spec.host_network {
        return Ok(None);
    }
    let egress = Egress::parse(!spec.no_internet, &spec.reach).map_err(failed)?;
    let by_nodes = spec.spans_nodes && spec.gang_network.is_none();
    if by_nodes || rdma.is_some_and(|rdma| rdma.host_network) {
        let why = "no egress policy limits the network of this node, which the job needs";
        return if egress.is_default() { Ok(None) } else { Err(failed(why.to_owned())) };
    }
    let gang = spec.gang_network.as_ref().map(to_gang).transpose().map_err(failed)?;
    let namespace =
        host.network.create_with(&record.container_name(), &egress, gang.as_ref()).map_err(failed)?;
    let (Some(namespace), Some(gang)) = (&namespace, &gang) else { return Ok(namespace) };
    let hosts = write_hosts(dir, gang)?;
    Ok(Some(NetworkNamespace { hosts, ..namespace.clone() }))
}

/// The check of the network of a gang. `None`: the portal asks for none.
pub fn check_plan(gang: &proto::GangNetwork) -> Option<Preflight> {
    let token: [u8; TOKEN_BYTES] = gang.check_token.as_slice().try_into().ok()?;
    let ranks = u32::try_from(gang.peers.len()).ok()?.checked_add(1)?;
    let minimum = |rank: u32| gang.peers.iter().find(|peer| peer.rank == rank).map(|peer| peer.min_mib_per_s);
    let minima = (0..ranks.min(MOST_RANKS as u32)).map(|rank| minimum(rank).unwrap_or(0)).collect();
    Some(Preflight { rank: gang.rank, ranks, token, minima, rdma: None })
}

/// The network of an attempt for its start: the one that the check of its gang made, or else a new one.
pub fn find_or_create_network(
    record: &AttemptRecord,
    spec: &proto::Spec,
    host: &Host,
    (dir, rdma): (&Path, Option<&RdmaAccess>),
) -> Result<Option<NetworkNamespace>, JobFailure> {
    let failed = |why: String| {
        start_failure("worker.isolation", format!("The network of the job cannot be used: {why}"))
    };
    let is_checked =
        |gang: &&proto::GangNetwork| !spec.no_network && !spec.host_network && check_plan(gang).is_some();
    let Some(gang) = spec.gang_network.as_ref().filter(is_checked) else {
        return create_network(record, spec, host, (dir, rdma));
    };
    let Some(namespace) = host.network.find(&record.container_name()).map_err(failed)? else {
        return Err(failed("it does not exist".to_owned()));
    };
    let hosts = write_hosts(dir, &to_gang(gang).map_err(failed)?)?;
    Ok(Some(NetworkNamespace { hosts, ..namespace }))
}

/// The part of an attempt in the network of its gang.
fn to_gang(gang: &proto::GangNetwork) -> Result<GangNetwork, String> {
    if gang.peers.len() >= MOST_RANKS {
        return Err(format!("the gang has more than {MOST_RANKS} ranks"));
    }
    let key = |bytes: &[u8]| GangKey::new(bytes).ok_or("the portal sent no valid key");
    let peer = |peer: &proto::GangPeer| {
        let port = u16::try_from(peer.port).map_err(|_| "the portal sent no valid port")?;
        let mut found = (peer.address.as_str(), port)
            .to_socket_addrs()
            .map_err(|error| format!("the address {} of rank {}: {error}", peer.address, peer.rank))?;
        let endpoint = found.next().ok_or_else(|| format!("the name {} has no address", peer.address))?;
        Ok::<_, String>(GangPeer { rank: peer.rank, public_key: key(&peer.public_key)?, endpoint })
    };
    Ok(GangNetwork {
        rank: gang.rank,
        plain: gang.plain,
        port: u16::try_from(gang.port).map_err(|_| "the portal sent no valid port")?,
        number: gang.number,
        private_key: key(&gang.private_key)?,
        peers: gang.peers.iter().map(peer).collect::<Result<_, _>>()?,
    })
}

/// Writes the `/etc/hosts` of an attempt. `None`: the host has no such file.
fn write_hosts(dir: &Path, gang: &GangNetwork) -> Result<Option<BindMount>, JobFailure> {
    // A mount must not go through a link.
    let Ok(to) = PathBuf::from(HOSTS_TARGET).canonicalize() else { return Ok(None) };
    let from = dir.join(HOSTS);
    let written = std::fs::write(&from, hosts_text(gang))
        .and_then(|()| std::fs::set_permissions(&from, Permissions::from_mode(0o644)));
    let why =
        |error| job_failure("worker.io", format!("The worker cannot write the files of the job: {error}."));
    written.map(|()| Some(BindMount { from, to, writable: false })).map_err(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent() -> proto::GangNetwork {
        let peer = proto::GangPeer {
            rank: 0,
            public_key: vec![2; 32],
            address: "192.0.2.7".to_owned(),
            port: 51_900,
            min_mib_per_s: 470,
        };
        proto::GangNetwork {
            rank: 1,
            private_key: vec![1; 32],
            port: 51_821,
            number: 4,
            plain: false,
            peers: vec![peer],
            ..proto::GangNetwork::default()
        }
    }

    #[test]
    fn a_gang_of_the_portal_is_understood_as_a_whole_or_refused() {
        let gang = to_gang(&sent()).unwrap();
        assert_eq!((gang.rank, gang.port, gang.number, gang.plain), (1, 51_821, 4, false));
        assert_eq!(gang.peers[0].endpoint.to_string(), "192.0.2.7:51900");
        let bad: [fn(&mut proto::GangNetwork); 5] = [
            |gang| gang.private_key = vec![1; 31],
            |gang| gang.port = 70_000,
            |gang| gang.peers[0].port = 70_000,
            |gang| gang.peers[0].public_key.clear(),
            |gang| gang.peers = vec![gang.peers[0].clone(); MOST_RANKS],
        ];
        for change in bad {
            let mut gang = sent();
            change(&mut gang);
            assert!(to_gang(&gang).is_err(), "{gang:?}");
        }
    }

    #[test]
    fn only_a_token_of_the_portal_asks_for_a_check() {
        assert_eq!(check_plan(&sent()), None);
        let with = |token: Vec<u8>| proto::GangNetwork { check_token: token, ..sent() };
        let plan = check_plan(&with(vec![5; 32])).unwrap();
        assert_eq!((plan.rank, plan.ranks, plan.token, plan.minima), (1, 2, [5; 32], vec![470, 0]));
        assert_eq!(check_plan(&with(vec![5; 31])), None);
    }

    #[test]
    fn the_names_of_ranks_are_readable_by_the_job() {
        let dir = tempfile::tempdir().unwrap();
        let bind = write_hosts(dir.path(), &to_gang(&sent()).unwrap()).unwrap();
        let Some(bind) = bind else { return };
        let mode = bind.from.metadata().unwrap().permissions().mode();
        assert_eq!((mode & 0o777, bind.writable), (0o644, false));
        assert!(std::fs::read_to_string(bind.from).unwrap().contains("100.124.0.1 rank-0\n"));
    }
}
