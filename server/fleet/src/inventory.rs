//! The inventory for operators: stuck work, differences of hosts, and the power of racks.

pub mod routes;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use crate::host_differences::{FIRMWARE, Host, HostDifference, find_differences};
use crate::stuck::{self, OpenRank, PlacedJob, StuckFinding, StuckThresholds};
use berth_core::approval::is_node_label;
use berth_placement::power::Load;
use berth_types::cluster::RACK_LABEL;
use berth_types::ids::{JobId, NodeId};
use berth_types::jobs::JobState;
use berth_types::operations::{InventoryHost, OddFact, PutRack, Rack, Stuck};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::time::Timestamp;
use futures::FutureExt;

use berth_foundation::Caller;
use berth_foundation::{Change, Context};
use berth_store as store;
use berth_store::nodes::{StoredGpu, StoredNode};
use berth_store::operations::StoredOperatorRank;

const THRESHOLDS: StuckThresholds = StuckThresholds { start_s: 600, stop_s: 60, silent_s: 120 };
/// The largest power budget of a rack, in watts.
const MAX_WATTS: i64 = 10_000_000;

/// The compared facts of a host, without the firmware of its boards. The kernel can be added when workers
/// report it.
fn facts(row: &StoredNode) -> BTreeMap<String, String> {
    [("driver", &row.driver_version), ("worker", &row.worker_version)]
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect()
}

/// The firmware of boards by model. Different versions in one host are joined by commas.
fn firmware<'a>(boards: impl Iterator<Item = &'a StoredGpu>) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for board in boards {
        if let Some(vbios) = &board.facts.vbios {
            found.entry(board.model.clone()).or_default().insert(vbios.clone());
        }
    }
    let joined = |versions: BTreeSet<String>| versions.into_iter().collect::<Vec<_>>().join(", ");
    found.into_iter().map(|(model, versions)| (model, joined(versions))).collect()
}

/// The firmware of boards as one text, with the models if there are several.
fn firmware_text(firmware: &BTreeMap<String, String>) -> Option<String> {
    match firmware.len() {
        0 => None,
        1 => firmware.values().next().cloned(),
        _ => Some(firmware.iter().map(|(model, v)| format!("{model} {v}")).collect::<Vec<_>>().join("; ")),
    }
}

fn to_stuck(row: &StoredOperatorRank, over: bool, found: StuckFinding) -> Stuck {
    Stuck {
        job: row.job_id,
        job_name: row.job_name.clone(),
        org: row.org_id,
        org_name: row.org_name.clone(),
        state: row.state,
        attempt: u32::try_from(row.number).unwrap_or(0),
        over,
        node: row.node_id,
        node_name: row.node_name.clone(),
        cause: found.cause,
        help: found.help,
        since: found.since,
    }
}

/// The connected nodes, and the time of the last message of each node.
struct NodeContacts<'a> {
    connected: &'a HashSet<NodeId>,
    seen: HashMap<NodeId, Timestamp>,
}

impl NodeContacts<'_> {
    /// The last message of the node of a rank. `None` if the node is connected.
    fn silent_since(&self, row: &StoredOperatorRank) -> Option<Timestamp> {
        let silent = !self.connected.contains(&row.node_id);
        silent.then(|| self.seen.get(&row.node_id).copied().unwrap_or(row.created_at))
    }
}

/// The findings about the open ranks of one job: the job itself, or ranks of its older attempts.
fn stuck_job(rows: &[&StoredOperatorRank], contacts: &NodeContacts<'_>, now: Timestamp) -> Vec<Stuck> {
    let mut out = Vec::new();
    let mut current: Vec<(&StoredOperatorRank, Option<Timestamp>)> = Vec::new();
    for row in rows.iter().copied() {
        let silent_since = contacts.silent_since(row);
        // A queued job has left its attempt.
        let has_left = row.state.ended() || row.state == JobState::Queued;
        let over = row.number != row.latest || has_left;
        if !over {
            current.push((row, silent_since));
        }
        let open = OpenRank {
            over,
            ended: row.ended,
            clean: row.clean,
            connected: silent_since.is_none(),
            unclean: row.unclean.is_some(),
            unknown: row.outcome.as_ref().is_some_and(|end| end.has_failure("attempt.unknown_outcome")),
            since: row.ended_at.or(row.job_ended_at).unwrap_or(row.created_at),
        };
        if let Some(found) = stuck::find_stuck_rank(&open, &THRESHOLDS, now) {
            out.push(to_stuck(row, over, found));
        }
    }
    // The rank with the longest silence of its node represents the job.
    let first = current.into_iter().min_by_key(|(_, silent)| silent.map_or(i64::MAX, Timestamp::micros));
    if let Some((row, silent_since)) = first {
        let since = row.since.unwrap_or(row.created_at);
        let placed = PlacedJob { state: row.state, since, grace_s: row.grace_s, silent_since };
        if let Some(found) = stuck::find_stuck_job(&placed, &THRESHOLDS, now) {
            out.push(to_stuck(row, false, found));
        }
    }
    out
}

fn check_rack(name: &str, input: PutRack) -> Result<(), Problem> {
    if !is_node_label(RACK_LABEL, name) {
        let detail = "The name of a rack is the value of the node label rack: 1 to 63 bytes of printable characters, not only blanks.";
        return Err(Problem::invalid_field("/name", detail));
    }
    if !(1..=MAX_WATTS).contains(&input.budget_watts) {
        let detail = "Enter 1 to 10,000,000 watts. Delete the budget for no limit.";
        return Err(Problem::invalid_field("/budget_watts", detail));
    }
    Ok(())
}

/// Lists stuck work, hosts and racks for operators.
#[derive(Clone)]
pub struct Inventory {
    context: Context,
}

impl Inventory {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Stuck jobs and attempts, in no order.
    pub async fn list_stuck(&self, caller: &Caller) -> Result<Vec<Stuck>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let now = self.context.now();
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::operations::list_open(&mut tx, None).await?;
        let nodes = store::nodes::list(&mut tx).await?;
        let connected = self.context.live.connected();
        let seen = nodes.into_iter().filter_map(|n| Some((n.id, n.last_seen_at?))).collect();
        let contacts = NodeContacts { connected: &connected, seen };
        let mut by_job: BTreeMap<JobId, Vec<&StoredOperatorRank>> = BTreeMap::new();
        for row in &rows {
            by_job.entry(row.job_id).or_default().push(row);
        }
        let mut out = Vec::new();
        for ranks in by_job.into_values() {
            out.extend(stuck_job(&ranks, &contacts, now));
        }
        Ok(out)
    }

    /// All approved hosts with a report, each with its differences from most others.
    pub async fn inventory(&self, caller: &Caller) -> Result<Vec<InventoryHost>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let gpus = store::nodes::list_gpus(&mut tx).await?;
        let nodes = store::nodes::list_approved(&mut tx).await?;
        let models = |row: &StoredNode| {
            let mut boards: BTreeMap<String, u32> = BTreeMap::new();
            for gpu in gpus.iter().filter(|g| g.node_id == row.id && g.present) {
                *boards.entry(gpu.model.clone()).or_default() += 1;
            }
            boards
        };
        let mut hosts = Vec::with_capacity(nodes.len());
        let mut compared: Vec<Host> = Vec::with_capacity(nodes.len());
        for row in nodes {
            let boards = models(&row);
            let host = Host {
                models: boards.keys().cloned().collect(),
                facts: facts(&row),
                firmware: firmware(gpus.iter().filter(|g| g.node_id == row.id && g.present)),
            };
            let mut facts = host.facts.clone();
            facts.extend(firmware_text(&host.firmware).map(|text| (FIRMWARE.to_owned(), text)));
            compared.push(host);
            hosts.push(InventoryHost {
                node: row.id,
                boards,
                facts,
                odd: Vec::new(),
                last_seen_at: row.last_seen_at,
                name: row.name,
            });
        }
        for (host, odd) in hosts.iter_mut().zip(find_differences(&compared)) {
            let odd_fact = |o: HostDifference| OddFact { fact: o.fact, model: o.model, usual: o.usual };
            host.odd = odd.into_iter().map(odd_fact).collect();
        }
        Ok(hosts)
    }

    /// All racks with nodes or with a power budget.
    pub async fn list_racks(&self, caller: &Caller) -> Result<Vec<Rack>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let mut racks: BTreeMap<String, (Option<i64>, u32, Load)> = BTreeMap::new();
        for (name, watts) in store::operations::list_racks(&mut tx).await? {
            racks.entry(name).or_default().0 = Some(watts);
        }
        let gpus = store::nodes::list_gpus(&mut tx).await?;
        let held = store::attempts::list_held(&mut tx).await?;
        let held: HashSet<&str> = held.iter().map(|h| h.allocation.gpu_uuid.as_str()).collect();
        let lost = store::leases::list_lost(&mut tx).await?;
        let connected = self.context.live.connected();
        for node in store::nodes::list_approved(&mut tx).await? {
            let Some(name) = node.labels.get(RACK_LABEL) else { continue };
            // The attempts of a lost node have ended. With a revoked certificate it does not return by itself.
            let is_lost = lost.contains(&node.id);
            if is_lost && node.certified_until.is_none() {
                continue;
            }
            let (_, nodes, load) = racks.entry(name.clone()).or_default();
            *nodes += 1;
            let is_counted =
                |g: &&StoredGpu| g.node_id == node.id && (g.present || held.contains(g.uuid.as_str()));
            // The last reading of a silent node is no present one.
            let is_connected = connected.contains(&node.id);
            for gpu in gpus.iter().filter(is_counted) {
                let drawn = self.context.live.reading(&gpu.uuid).power_watts.filter(|_| is_connected);
                let limit = gpu.facts.power_limit_watts.map(i64::from);
                load.add(&gpu.model, limit, !is_lost && held.contains(gpu.uuid.as_str()), drawn);
            }
        }
        let shown = |(name, (budget_watts, nodes, load)): (String, (Option<i64>, u32, Load))| Rack {
            name,
            budget_watts,
            nodes,
            boards: load.boards,
            drawn_watts: load.drawn_watts,
            unread: load.unread,
            counted_watts: load.counted_watts,
            most_watts: load.most_watts,
            unknown: load.unknown,
        };
        Ok(racks.into_iter().map(shown).collect())
    }

    /// Sets the power budget of a rack; `None` removes it. Running jobs continue.
    pub async fn set_rack(&self, caller: &Caller, name: &str, input: Option<PutRack>) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        if let Some(input) = input {
            check_rack(name, input)?;
        }
        let (action, detail) = match input {
            Some(input) => ("rack.budget_set", format!("{} W", input.budget_watts)),
            None => ("rack.budget_removed", String::new()),
        };
        let event = self.context.audit_event(caller, action, name.to_owned(), detail);
        let name = name.to_owned();
        let done = self.context.db.write(move |tx| {
            let (event, name) = (event.clone(), name.clone());
            async move {
                let known = match input {
                    Some(input) => {
                        store::operations::put_rack(tx, &name, input.budget_watts).await?;
                        true
                    }
                    None => store::operations::delete_rack(tx, &name).await?,
                };
                if known {
                    store::quotas::insert_audit(tx, None, &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if !done.await? {
            return Err(Problem::not_found());
        }
        self.context.publish(Change::Boards);
        Ok(())
    }
}
