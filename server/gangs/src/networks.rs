//! The networks of gangs: the reservation at the placement of an attempt, and the part of each rank at its start.
//!
//! The keys of all ranks follow from one random seed, which is sealed in the database and deleted with the last open
//! rank. So a portal that restarts between two starts gives the same keys.

use std::net::Ipv6Addr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use berth_core::egress::{has_gang_network, has_rdma_check};
use berth_foundation::Context;
use berth_foundation::envelope::SealingContext;
use berth_store::attempts::StoredOpenRank;
use berth_store::gangs::{StoredGangNetwork, StoredRankPlace};
use berth_store::{self as store, StoreError, Tx};
use berth_types::gangs::GANG_PORTS;
use berth_types::ids::{JobId, NodeId, OrgId};
use berth_types::jobs::{Failure, NewJob};
use futures::FutureExt;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use x25519_dalek::{PublicKey, StaticSecret};

use crate::links;

/// The purpose of the keys that follow from a seed.
const PURPOSE: &[u8] = b"berth gang network, rank ";

/// The part of a rank in the network of its gang.
#[derive(Clone, PartialEq, Eq)]
pub struct RankGang {
    pub rank: u32,
    pub private_key: [u8; 32],
    /// The UDP port on its node.
    pub port: u32,
    /// Unique among the networks of the nodes of this gang.
    pub number: u32,
    /// True for packets without encryption.
    pub plain: bool,
    /// The secret of all ranks for the check of their links. Absent if the worker of a node has no such check.
    pub check_token: Option<[u8; 32]>,
    pub peers: Vec<RankPeer>,
}

/// Another rank of the gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankPeer {
    pub rank: u32,
    pub public_key: [u8; 32],
    pub address: String,
    pub port: u32,
    /// The least throughput of the link to it in MiB a second; 0 accepts every link.
    pub min_mib_per_s: u64,
}

/// The purpose of the token of the check that follows from a seed.
const CHECK_PURPOSE: &[u8] = b"berth gang check";
/// The same for the check of RDMA links.
const RDMA_PURPOSE: &[u8] = b"berth rdma check";

/// The check of the RDMA links of a rank.
#[derive(Clone, PartialEq, Eq)]
pub struct RankRdmaCheck {
    pub rank: u32,
    /// The secret of all ranks.
    pub token: [u8; 32],
    pub peers: Vec<RdmaPeer>,
}

/// Another rank of the check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RdmaPeer {
    pub rank: u32,
    pub address: String,
    /// The least throughput of the link to it in MiB a second; 0 accepts every link.
    pub min_mib_per_s: u64,
}

/// The network of a rank on one of several nodes.
pub enum RankNetwork {
    /// That of its node.
    Host,
    Gang(Box<RankGang>),
    /// The nodes have no common kind of network.
    Impossible(Failure),
}

/// The random bytes from which the keys follow.
type Seed = [u8; 32];

/// The kind of network that all nodes have: plain or not. `None`: they have none, or different kinds.
fn common_kind(places: &[StoredRankPlace]) -> Option<bool> {
    let kind = places.first()?.gang_plain;
    places.iter().all(|place| place.gang_first_port > 0 && place.gang_plain == kind).then_some(kind)
}

/// True if the workers of all nodes measure RDMA links. The program of the measurement finds no peer by an address of IP
/// version 6.
fn can_check_rdma(places: &[StoredRankPlace]) -> bool {
    let can = |place: &StoredRankPlace| place.checks_rdma_links && place.address.parse::<Ipv6Addr>().is_err();
    places.iter().all(can)
}

/// The smallest number that none of the nodes uses. `None`: all ports of a node are in use.
fn free_number(mut used: Vec<i64>) -> Option<i64> {
    used.sort_unstable();
    used.dedup();
    (0..i64::from(GANG_PORTS)).find(|number| used.binary_search(number).is_err())
}

fn with_sealing_context<T>(
    (org, job, attempt): (OrgId, JobId, i64),
    work: impl FnOnce(&SealingContext<'_>) -> T,
) -> T {
    let (org, job) = (org.to_string(), job.to_string());
    work(&SealingContext { kind: "gang network", org: &org, name: &job, version: attempt })
}

/// A new sealed seed.
fn new_sealed_seed(context: &Context, attempt: (OrgId, JobId, i64)) -> Result<String, String> {
    let mut seed = Seed::default();
    SystemRandom::new().fill(&mut seed).map_err(|_| "the system gives no random bytes".to_owned())?;
    let keys = context.keys()?;
    with_sealing_context(attempt, |context| {
        keys.seal(context, &STANDARD.encode(seed)).map_err(|error| error.to_string())
    })
}

/// True if the ranks of a job on these nodes have a network of their own, or a check of their RDMA links.
fn needs_seed(job: &NewJob, places: &[StoredRankPlace]) -> bool {
    (has_gang_network(job) && common_kind(places).is_some())
        || (has_rdma_check(job) && can_check_rdma(places))
}

/// Reserves the network of a new attempt whose ranks are stored, or the check of its RDMA links. Nodes without a common
/// kind get none. Without a key of the portal there is none either, and only this attempt fails at its start: the other
/// starts of the pass are in the same transaction.
///
/// # Errors
/// The database cannot be written.
pub async fn reserve(
    tx: &mut Tx<'_>,
    context: &Context,
    spec: &NewJob,
    (org, job, attempt): (OrgId, JobId, i64),
    nodes: &[NodeId],
) -> Result<(), StoreError> {
    if nodes.len() < 2 || !needs_seed(spec, &store::gangs::list_places(tx, job, attempt).await?) {
        return Ok(());
    }
    let mut used = Vec::new();
    for node in nodes {
        used.extend(store::gangs::list_numbers(tx, *node).await?);
    }
    let Some(number) = free_number(used) else { return Ok(()) };
    match new_sealed_seed(context, (org, job, attempt)) {
        Ok(sealed) => {
            store::gangs::insert(tx, &StoredGangNetwork { job_id: job, attempt, number, sealed }).await
        }
        Err(error) => {
            tracing::error!(%job, error, "a network between ranks gets no keys");
            Ok(())
        }
    }
}

fn open_seed(context: &Context, org: OrgId, row: &StoredGangNetwork) -> Result<Seed, String> {
    let keys = context.keys()?;
    let text = with_sealing_context((org, row.job_id, row.attempt), |context| {
        keys.open_sealed(context, &row.sealed).map_err(|error| error.to_string())
    })?;
    let bytes = STANDARD.decode(text).map_err(|error| error.to_string())?;
    bytes.try_into().map_err(|_| "the seed has another length".to_owned())
}

/// Seals the seeds of all networks with the present key of the portal. Returns the numbers of sealed and of unreadable
/// ones.
///
/// # Errors
/// The database or the key file cannot be read.
pub async fn reseal(context: &Context) -> Result<(usize, usize), String> {
    let (mut done, mut unreadable) = (0, 0);
    let rows = {
        let mut conn = context.db.read().await.map_err(|e| e.to_string())?;
        store::gangs::list_seeds(&mut conn.tx()).await.map_err(|e| e.to_string())?
    };
    if rows.is_empty() {
        return Ok((done, unreadable));
    }
    let keys = context.keys()?;
    for row in rows {
        let attempt = (row.org_id, row.job_id, row.attempt);
        match with_sealing_context(attempt, |context| keys.rewrap(context, &row.sealed)) {
            Ok(None) => {}
            Ok(Some(sealed)) => {
                let updated = context.db.write(move |tx| {
                    let (row, sealed) = (row.clone(), sealed.clone());
                    async move { store::gangs::reseal(tx, &row, &sealed).await }.boxed()
                });
                done += usize::from(updated.await.map_err(|e| e.to_string())?);
            }
            Err(error) => {
                tracing::error!(job = %row.job_id, %error, "the keys of a network between ranks cannot be opened");
                unreadable += 1;
            }
        }
    }
    Ok((done, unreadable))
}

/// The 32 bytes for a purpose.
fn derived(seed: &Seed, purpose: &[u8]) -> [u8; 32] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, seed), purpose);
    // The length of a SHA-256.
    tag.as_ref().try_into().unwrap_or_default()
}

fn private_key(seed: &Seed, rank: u32) -> [u8; 32] {
    derived(seed, &[PURPOSE, &rank.to_be_bytes()].concat())
}

fn public_key(seed: &Seed, rank: u32) -> [u8; 32] {
    PublicKey::from(&StaticSecret::from(private_key(seed, rank))).to_bytes()
}

fn failure(code: &str, detail: String) -> RankNetwork {
    RankNetwork::Impossible(Failure { code: code.to_owned(), detail })
}

/// The failure of a gang on nodes without a common kind of network.
fn no_common_kind(places: &[StoredRankPlace]) -> RankNetwork {
    let kind = |place: &StoredRankPlace| match (place.gang_first_port, place.gang_plain) {
        (..=0, _) => "host",
        (_, true) => "vxlan",
        (_, false) => "wireguard",
    };
    let kinds: Vec<String> =
        places.iter().map(|place| format!("{}: {}", place.node_name, kind(place))).collect();
    let detail = format!(
        "The nodes of the job have different networks between ranks ({}). The job was not started. An operator has to set one kind for all nodes (--gang-network).",
        kinds.join(", ")
    );
    failure("gang.networks_differ", detail)
}

/// The failure of a gang without a reserved network, on nodes that give one.
fn not_reserved() -> RankNetwork {
    let detail = "The portal has reserved no network between the ranks: all ports of a node were in use, a worker changed its network meanwhile, or the portal cannot read its key. The job was not started. Submit it again, or ask the operator.";
    failure("gang.not_reserved", detail.to_owned())
}

/// The part of a rank in a gang on these nodes.
fn rank_gang(
    rank: i64,
    seed: &Seed,
    number: i64,
    plain: bool,
    places: &[StoredRankPlace],
) -> Option<RankGang> {
    let number = u32::try_from(number).ok()?;
    let port = |place: &StoredRankPlace| u32::try_from(place.gang_first_port).ok()?.checked_add(number);
    let own = places.iter().find(|place| place.rank == rank)?;
    let peer = |place: &StoredRankPlace| {
        let rank = u32::try_from(place.rank).ok()?;
        let address = place.address.clone();
        let (public_key, port) = (public_key(seed, rank), port(place)?);
        Some(RankPeer { rank, public_key, address, port, min_mib_per_s: 0 })
    };
    let rank = u32::try_from(rank).ok()?;
    Some(RankGang {
        rank,
        private_key: private_key(seed, rank),
        port: port(own)?,
        // Some kernels refuse the number 0 for VXLAN.
        number: number + 1,
        plain,
        check_token: places.iter().all(|place| place.gang_checks).then(|| derived(seed, CHECK_PURPOSE)),
        peers: places.iter().filter(|place| place.rank != own.rank).map(peer).collect::<Option<_>>()?,
    })
}

/// The network of a rank at its start.
///
/// # Errors
/// The database cannot be read.
pub async fn rank_network(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredOpenRank,
) -> Result<RankNetwork, StoreError> {
    if !has_gang_network(row.submission()?) {
        return Ok(RankNetwork::Host);
    }
    let places = store::gangs::list_places(tx, row.job_id, row.number).await?;
    let Some(found) = store::gangs::find(tx, row.job_id, row.number).await? else {
        let has_none = places.iter().all(|place| place.gang_first_port <= 0);
        return Ok(match common_kind(&places) {
            _ if has_none => RankNetwork::Host,
            Some(_) => not_reserved(),
            None => no_common_kind(&places),
        });
    };
    // A worker may have another kind since the placement.
    let Some(plain) = common_kind(&places) else { return Ok(no_common_kind(&places)) };
    let gang = match open_seed(context, row.org_id, &found) {
        Ok(seed) => rank_gang(row.rank, &seed, found.number, plain, &places),
        Err(error) => {
            tracing::error!(job = %row.job_id, error, "the keys of a network between ranks cannot be opened");
            None
        }
    };
    let lost = || {
        let detail = "The keys of the network between the ranks are lost. The job was not started.";
        failure("gang.keys_lost", detail.to_owned())
    };
    let Some(mut gang) = gang else { return Ok(lost()) };
    set_minima(tx, context, row.job_id, &mut gang, &places).await?;
    Ok(RankNetwork::Gang(Box::new(gang)))
}

/// Sets the least throughput of each link that is checked.
async fn set_minima(
    tx: &mut Tx<'_>,
    context: &Context,
    job: JobId,
    gang: &mut RankGang,
    places: &[StoredRankPlace],
) -> Result<(), StoreError> {
    let find = |rank: u32| places.iter().find(|place| place.rank == i64::from(rank));
    let Some(own) = find(gang.rank).filter(|_| gang.check_token.is_some()) else { return Ok(()) };
    for peer in &mut gang.peers {
        let Some(place) = find(peer.rank) else { continue };
        let expectation = links::expect(tx, context, job, (own.node_id, place.node_id), false).await?;
        peer.min_mib_per_s = u64::try_from(expectation.mib_per_s).unwrap_or(0);
    }
    Ok(())
}

/// The check of the RDMA links of a rank at its start. `None`: the job has no RDMA on several nodes, or the worker of a
/// node cannot measure.
///
/// # Errors
/// The database cannot be read.
pub async fn rdma_check(
    tx: &mut Tx<'_>,
    context: &Context,
    row: &StoredOpenRank,
) -> Result<Option<RankRdmaCheck>, StoreError> {
    if !has_rdma_check(row.submission()?) {
        return Ok(None);
    }
    let places = store::gangs::list_places(tx, row.job_id, row.number).await?;
    let own = places.iter().find(|place| place.rank == row.rank).filter(|_| can_check_rdma(&places));
    let found = store::gangs::find(tx, row.job_id, row.number).await?;
    let (Some(own), Some(found)) = (own, found) else { return Ok(None) };
    let seed = match open_seed(context, row.org_id, &found) {
        Ok(seed) => seed,
        Err(error) => {
            tracing::error!(job = %row.job_id, error, "the key of a check of RDMA links cannot be opened");
            return Ok(None);
        }
    };
    let rank = |place: &StoredRankPlace| u32::try_from(place.rank).unwrap_or(u32::MAX);
    let mut peers = Vec::new();
    for place in places.iter().filter(|place| place.rank != own.rank) {
        let nodes = (own.node_id, place.node_id);
        let expectation = links::expect(tx, context, row.job_id, nodes, true).await?;
        let min_mib_per_s = u64::try_from(expectation.mib_per_s).unwrap_or(0);
        peers.push(RdmaPeer { rank: rank(place), address: place.address.clone(), min_mib_per_s });
    }
    Ok(Some(RankRdmaCheck { rank: rank(own), token: derived(&seed, RDMA_PURPOSE), peers }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(rank: i64, gang_first_port: i64, gang_plain: bool) -> StoredRankPlace {
        StoredRankPlace {
            rank,
            node_id: NodeId::from_uuid(uuid::Uuid::from_u128(7)),
            node_name: format!("node-{rank}"),
            address: format!("192.0.2.{rank}"),
            gang_first_port,
            gang_plain,
            gang_checks: true,
            checks_rdma_links: true,
        }
    }

    #[test]
    fn each_rank_knows_the_public_keys_that_the_others_have() {
        let (seed, places) =
            ([7; 32], [place(0, 51_821, false), place(1, 2_000, false), place(2, 51_821, false)]);
        let gangs: Vec<RankGang> =
            (0..3).map(|rank| rank_gang(rank, &seed, 4, false, &places).unwrap()).collect();
        for gang in &gangs {
            assert_eq!((gang.peers.len(), gang.number), (2, 5));
            for peer in &gang.peers {
                let other = &gangs[peer.rank as usize];
                let public = PublicKey::from(&StaticSecret::from(other.private_key)).to_bytes();
                assert_eq!((peer.public_key, peer.port), (public, other.port));
                assert_ne!(gang.private_key, other.private_key);
            }
        }
        let token = gangs[0].check_token;
        assert!(token.is_some() && gangs.iter().all(|gang| gang.check_token == token));
        assert!(gangs.iter().all(|gang| token != Some(gang.private_key)));
        let mut older = places.clone();
        older[2].gang_checks = false;
        let gang = rank_gang(0, &seed, 4, false, &older).unwrap();
        assert_eq!(gang.check_token, None, "the worker of a node has no check");
        let ports: Vec<u32> = gangs.iter().map(|gang| gang.port).collect();
        assert_eq!(ports, [51_825, 2_004, 51_825]);
        assert!(rank_gang(3, &seed, 4, false, &places).is_none(), "the gang has no such rank");
        assert_ne!(private_key(&seed, 0), private_key(&[8; 32], 0));
    }

    #[test]
    fn nodes_need_a_common_kind() {
        assert_eq!(common_kind(&[place(0, 1, true), place(1, 2, true)]), Some(true));
        for other in [place(1, 0, false), place(1, 1, true)] {
            let places = [place(0, 51_821, false), other];
            assert_eq!(common_kind(&places), None);
            let RankNetwork::Impossible(failure) = no_common_kind(&places) else { panic!("a failure") };
            assert!(failure.detail.contains("node-0: wireguard, node-1: "), "{}", failure.detail);
        }
    }

    #[test]
    fn rdma_is_measured_if_all_nodes_can_do_it() {
        let places = [place(0, 0, false), place(1, 0, false)];
        assert!(can_check_rdma(&places));
        let older = StoredRankPlace { checks_rdma_links: false, ..places[1].clone() };
        assert!(!can_check_rdma(&[places[0].clone(), older]));
        for (address, expected) in [("fd00::7", false), ("node-7.example", true)] {
            let other = StoredRankPlace { address: address.to_owned(), ..places[1].clone() };
            assert_eq!(can_check_rdma(&[places[0].clone(), other]), expected, "{address}");
        }
    }

    #[test]
    fn numbers_are_given_once_as_long_as_there_are_ports() {
        assert_eq!(free_number(Vec::new()), Some(0));
        assert_eq!(free_number(vec![3, 0, 1, 1]), Some(2));
        assert_eq!(free_number((0..1_023).collect()), Some(1_023));
        assert_eq!(free_number((0..1_024).collect()), None);
    }
}
