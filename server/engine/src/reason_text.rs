//! The text of wait reasons. It must add nothing to [`WaitReasons`].

use berth_types::ids::JobId;
use berth_types::jobs::{Blocker as ApiBlocker, Explanation};
use berth_types::time::{Timestamp, duration_text};

use super::facts::HeldVolume;
use super::reasons::{Blocker, PowerShortage, ReservationBlocker, SuggestedChange, WaitReasons};
use berth_placement::power::watts_text;
use berth_placement::quotas::{Exceeded, LimitKind};
use berth_placement::request::DeviceRequest;

/// The part of a request that appears in texts.
#[derive(Debug, Clone)]
pub struct RequestSummary {
    pub model: String,
    pub device: DeviceRequest,
    pub count: u32,
}

fn plural<'a>(n: u32, one: &'a str, many: &'a str) -> &'a str {
    if n == 1 { one } else { many }
}

impl RequestSummary {
    /// The devices in text, such as `2 × 1g.10gb slice of H100-80GB`.
    pub fn text(&self) -> String {
        let text = match &self.device {
            DeviceRequest::Board => format!("whole {}", self.model),
            DeviceRequest::Slice(profile) => format!("{profile} slice of {}", self.model),
            DeviceRequest::Share(milli) => format!("{}.{} % share of {}", milli / 10, milli % 10, self.model),
        };
        if self.count == 1 { format!("a {text}") } else { format!("{} × {text}", self.count) }
    }
}

fn change_text(change: &SuggestedChange, now: Timestamp) -> String {
    match change {
        SuggestedChange::Seconds(s) => {
            let longest = duration_text(now.plus_seconds(*s).millis_since(now));
            format!("set a time limit of at most {longest}")
        }
        SuggestedChange::Count(1) => "request 1 device per node".to_owned(),
        SuggestedChange::Count(n) => format!("request {n} devices per node"),
        SuggestedChange::Nodes(n) => format!("request {n} {}", plural(*n, "node", "nodes")),
        SuggestedChange::Anywhere => "choose the topology any".to_owned(),
        SuggestedChange::WithoutNvlink => "request devices without NVLink".to_owned(),
    }
}

/// The text of a lack of power.
pub fn power_shortage_text(short: &PowerShortage) -> String {
    let PowerShortage { rack, left, budget, need } = short;
    let (left, budget, need) = (watts_text((*left).max(0)), watts_text(*budget), watts_text(*need));
    format!("Power in rack {rack}: {need} needed, {left} of {budget} available.")
}

/// The text of a wait for other jobs.
fn dependency_text(jobs: &[JobId]) -> (&'static str, String, String) {
    let n = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let names: Vec<String> = jobs.iter().take(3).map(ToString::to_string).collect();
    let more = if jobs.len() > 3 { " and others" } else { "" };
    (
        "dependency.waiting",
        format!("The job waits for the end of {} {}{more}.", plural(n, "job", "jobs"), names.join(", ")),
        format!("Wait for the end of {}.", plural(n, "that job", "those jobs")),
    )
}

/// The text of a lack of boards in the whole cloud: the largest node has `count` devices, and `nodes` fit together.
fn none_text(count: u32, nodes: u32, request: &RequestSummary) -> (&'static str, String, String) {
    let device = request.text();
    if count == 0 {
        return (
            "capacity.none",
            format!("No node of the cluster has a board for {device}."),
            "Choose another offering, or ask the operator for such a board.".to_owned(),
        );
    }
    if count < request.count {
        return (
            "capacity.none",
            format!("No node has {device}; the largest node has {count}."),
            format!("Request at most {count} {} per node.", plural(count, "device", "devices")),
        );
    }
    if nodes == 0 {
        return (
            "capacity.none",
            format!("No suitable node for {device} has the labels of the topology."),
            "Choose the topology any, or ask the operator to label the nodes.".to_owned(),
        );
    }
    (
        "capacity.none",
        format!("Only {nodes} {} within the topology can hold {device}.", plural(nodes, "node", "nodes")),
        format!("Request at most {nodes} {}.", plural(nodes, "node", "nodes")),
    )
}

/// The text of boards in the other MIG mode; `most_nodes` are their nodes if the request asks for more.
fn mode_text(boards: u32, most_nodes: Option<u32>, device: &str) -> (&'static str, String, String) {
    let has = plural(boards, "board has", "boards have");
    let fewer = |n: u32| format!("request at most {n} {} and ", plural(n, "node", "nodes"));
    let fewer = most_nodes.map(fewer).unwrap_or_default();
    (
        "capacity.mode",
        format!("{boards} {has} {device} only in the other MIG mode, which needs a reset of the board."),
        format!("Choose another offering, or {fewer}ask the operator for a change of the MIG mode."),
    )
}

/// The text of a promise to others, at present or from `begins` on.
fn promised_text(begins: Timestamp, now: Timestamp) -> (&'static str, String, String) {
    if begins <= now {
        let detail = "The free devices are reserved now.".to_owned();
        let change = "Wait for the end of the reservation. If it is yours, submit the job in it.".to_owned();
        return ("window.promised", detail, change);
    }
    let left = duration_text(begins.millis_since(now).max(0));
    let detail =
        format!("The free devices are available for {left} only, and the time limit of the job is longer.");
    ("window.promised", detail, format!("Set a time limit below {left}."))
}

/// The text of a lack of processors or memory beside free boards.
fn host_text(nodes: u32, temporary: bool, device: &str) -> (&'static str, String, String) {
    (
        if temporary { "capacity.host_busy" } else { "capacity.host" },
        format!(
            "{nodes} {} free boards for {device}, but too few processors or too little memory{}.",
            plural(nodes, "node has", "nodes have"),
            if temporary { " now" } else { ", even without other jobs" }
        ),
        "Request fewer processors or less memory.".to_owned(),
    )
}

/// The text of nodes that would suit, but run no images.
fn images_text(nodes: u32, device: &str) -> (&'static str, String, String) {
    let detail = format!(
        "{nodes} {} {device}, but {} no images: podman is missing or does not work.",
        plural(nodes, "node has", "nodes have"),
        plural(nodes, "runs", "run"),
    );
    let change = "Submit the job without an image, or ask the operator to install podman.";
    ("capacity.images", detail, change.to_owned())
}

/// The text of nodes that would suit, but do not give the needed network.
fn network_text(nodes: u32, device: &str) -> (&'static str, String, String) {
    let detail = format!(
        "{nodes} {} {device}, but not the network of the job: {} too old, or {} no networks of jobs or others between ranks.",
        plural(nodes, "node has", "nodes have"),
        plural(nodes, "its worker is", "their workers are"),
        plural(nodes, "has", "have"),
    );
    let change = "Ask the operator to update the workers, or to run all with the same networks of jobs.";
    ("capacity.network", detail, change.to_owned())
}

/// The text of a lack of dedicated nodes of an organization that uses no others; `busy` suitable ones are in use.
fn own_nodes_text(busy: u32, device: &str) -> (&'static str, String, String) {
    let (detail, change) = if busy == 0 {
        (
            format!("No node of your organization's own can hold {device}, and its jobs use no other nodes."),
            "Ask the operator to dedicate such a node to your organization.",
        )
    } else {
        (
            format!(
                "No node of your organization's own has {device} free: {busy} suitable {} in use. Its jobs use no \
                 other nodes.",
                plural(busy, "node is", "nodes are")
            ),
            "Wait for the end of a running job, or stop one of your jobs.",
        )
    };
    ("capacity.own_nodes", detail, change.to_owned())
}

/// The text of boards in a pool that does not take the job; `boards` is zero if no node of its own pool could hold it.
fn pool_text(boards: u32, replica: bool, device: &str) -> (&'static str, String, String) {
    let (pool, change) = if replica {
        ("training", "Wait, or ask the operator for more nodes for inference.")
    } else {
        ("inference", "Make the job preemptible, or ask the operator for more nodes for training.")
    };
    let rule = match (replica, boards) {
        (true, _) => "they take no replicas of services".to_owned(),
        (false, 1) => "the job may use it when it is preemptible".to_owned(),
        (false, _) => "the job may use them when it is preemptible".to_owned(),
    };
    let detail = if boards == 0 {
        format!("Only nodes for {pool} can hold {device}; {rule}.")
    } else {
        format!("{boards} {} free on nodes for {pool}; {rule}.", plural(boards, "board is", "boards are"))
    };
    ("capacity.pool", detail, change.to_owned())
}

/// The text of free boards on nodes for inference that are the reserve for bursts: `boards` of each model.
fn burst_reserve_text(boards: u32) -> (&'static str, String, String) {
    let detail = format!(
        "The free boards on nodes for inference are a reserve for services: {boards} {} of each model {} free of other \
         jobs.",
        plural(boards, "board", "boards"),
        plural(boards, "stays", "stay"),
    );
    let change = "Wait for the end of a replica or of another job, or ask the operator for a smaller reserve or for more \
                  nodes for training.";
    ("capacity.reserve", detail, change.to_owned())
}

/// The text of a lack of active RDMA ports, or of whole nodes.
fn rdma_text(nodes: u32, device: &str) -> (&'static str, String, String) {
    let detail = format!(
        "{nodes} {} {device}, but no active RDMA port or more boards: RDMA needs all boards of a node.",
        plural(nodes, "node has", "nodes have")
    );
    let change = "Request all boards of a node with active RDMA ports, or submit the job without RDMA.";
    ("capacity.rdma", detail, change.to_owned())
}

/// The text of a lack of nodes whose network is known as good.
fn set_aside_text(nodes: u32) -> (&'static str, String, String) {
    let detail = format!(
        "{nodes} suitable {} set aside for up to an hour after a check of the network between nodes: a link was slow or absent.",
        plural(nodes, "node is", "nodes are")
    );
    let change = "Wait, or ask the operator to release the nodes.";
    ("node.set_aside", detail, change.to_owned())
}

/// The text of a lack of a storage class on nodes with boards.
fn storage_text(nodes: u32, class: &str, device: &str) -> (&'static str, String, String) {
    let has = plural(nodes, "node has", "nodes have");
    (
        "capacity.storage",
        format!("No node with free boards has the storage class {class}: {nodes} {has} {device} without it."),
        "Submit the job without the volume, or ask the operator to mount the file system on more nodes."
            .to_owned(),
    )
}

fn volume_text(held: &HeldVolume) -> (&'static str, String, String) {
    let HeldVolume { name, job, saving } = held;
    let (detail, change) = if *saving {
        (
            format!("The files of {job} are being uploaded to the volume {name}."),
            "Wait for the next version of the volume.",
        )
    } else {
        (
            format!("{job} writes to the volume {name}, and a volume has one writer at a time."),
            "Wait for the next version of the volume, or submit the job with the volume read-only.",
        )
    };
    ("volume.busy", detail, change.to_owned())
}

fn blocker_text(blocker: &Blocker, request: &RequestSummary, now: Timestamp) -> ApiBlocker {
    let device = request.text();
    let (code, detail, change) = match blocker {
        Blocker::InvalidRequest(invalid) => (
            "request.impossible",
            format!("No cluster can provide this: {invalid}."),
            "Submit another job with a valid request.".to_owned(),
        ),
        Blocker::Dependency(jobs) => dependency_text(jobs),
        Blocker::Volume(held) => volume_text(held),
        Blocker::Booking(_, blocker) => reservation_text(*blocker, now),
        Blocker::Mode { boards, most_nodes } => mode_text(*boards, *most_nodes, &device),
        Blocker::None { count, nodes } => none_text(*count, *nodes, request),
        Blocker::Busy { nodes } => (
            "capacity.busy",
            format!(
                "{nodes} suitable {} in use, without a free place for {device}.",
                plural(*nodes, "node is", "nodes are")
            ),
            "Wait for the end of a running job, or stop one of your jobs.".to_owned(),
        ),
        Blocker::Host { nodes, temporary } => host_text(*nodes, *temporary, &device),
        Blocker::Images { nodes } => images_text(*nodes, &device),
        Blocker::Rdma { nodes } => rdma_text(*nodes, &device),
        Blocker::Network { nodes } => network_text(*nodes, &device),
        Blocker::Storage { nodes, class } => storage_text(*nodes, class, &device),
        Blocker::OwnNodes { busy } => own_nodes_text(*busy, &device),
        Blocker::Pool { boards, replica } => pool_text(*boards, *replica, &device),
        Blocker::BurstReserve { boards } => burst_reserve_text(*boards),
        Blocker::Away { nodes } => (
            "node.unavailable",
            format!(
                "{nodes} suitable {} cordoned, draining or unreachable.",
                plural(*nodes, "node is", "nodes are")
            ),
            "Ask the operator to return a node to service.".to_owned(),
        ),
        Blocker::SetAside { nodes } => set_aside_text(*nodes),
        Blocker::Power(short) => (
            "rack.power",
            power_shortage_text(short),
            if short.need > short.budget {
                "Request fewer devices, or ask the operator for a larger power budget.".to_owned()
            } else {
                "Wait for the end of a job in that rack, or request fewer devices.".to_owned()
            },
        ),
        Blocker::Quarantined { boards } => (
            "health.quarantined",
            format!("{boards} suitable {} in quarantine.", plural(*boards, "board is", "boards are")),
            "Ask the operator to check or release a board.".to_owned(),
        ),
        Blocker::Promised { begins } => promised_text(*begins, now),
        Blocker::Quota(exceeded) => quota_text(exceeded),
        Blocker::Ahead { jobs } => (
            "queue.ahead",
            format!("{jobs} {} ahead in the queue.", plural(*jobs, "job is", "jobs are")),
            "Wait, or submit the job with a higher priority.".to_owned(),
        ),
    };
    ApiBlocker { code: code.to_owned(), detail, change, objects: Vec::new(), more_objects: 0, others: 0 }
}

fn reservation_text(blocker: ReservationBlocker, now: Timestamp) -> (&'static str, String, String) {
    let (detail, change) = match blocker {
        ReservationBlocker::NotBegun { begins } => (
            format!(
                "The reservation of the job starts in {}.",
                duration_text(begins.millis_since(now).max(0))
            ),
            "Wait for the start of the reservation.".to_owned(),
        ),
        ReservationBlocker::Over => (
            "The reservation of the job has ended.".to_owned(),
            "Submit the job without a reservation, or in another one.".to_owned(),
        ),
        ReservationBlocker::TooShort { left_s } => {
            let left = duration_text(now.plus_seconds(left_s.max(0)).millis_since(now));
            (
                format!("The reservation has {left} left, and the time limit of the job is longer."),
                format!("Set a time limit of at most {left}, or extend the reservation."),
            )
        }
        ReservationBlocker::TooSmall => (
            "The reservation is too small for the job, even without other jobs.".to_owned(),
            "Request less, or submit the job without the reservation.".to_owned(),
        ),
        ReservationBlocker::Foreign => (
            "The reservation belongs to another organization.".to_owned(),
            "Submit the job in a reservation of its own organization.".to_owned(),
        ),
    };
    ("reservation.closed", detail, change)
}

fn quota_text(exceeded: &Exceeded) -> (&'static str, String, String) {
    let Exceeded { kind, used, limit, need } = *exceeded;
    let boards = |milli: i64| match milli % 1_000 {
        0 => (milli / 1_000).to_string(),
        rest => format!("{}.{:03}", milli / 1_000, rest).trim_end_matches('0').to_owned(),
    };
    let (code, detail) = match kind {
        LimitKind::Boards => (
            "quota.boards",
            format!(
                "Limit of boards at once: {}. In use: {}; this job needs {} more.",
                boards(limit),
                boards(used),
                boards(need)
            ),
        ),
        LimitKind::Devices => (
            "quota.devices",
            format!(
                "Limit of devices of this offering at once: {}. In use: {}; this job needs {} more.",
                boards(limit),
                boards(used),
                boards(need)
            ),
        ),
        LimitKind::RunningJobs => {
            ("quota.running_jobs", format!("Limit of running jobs: {limit}. Running: {used}."))
        }
        LimitKind::Spend => ("quota.spend", "The job would exceed the limit on cost per hour.".to_owned()),
    };
    let change = if exceeded.is_permanent() {
        "Request less, or ask for a higher limit.".to_owned()
    } else {
        "Wait for the end of a job of your organization, or ask for a higher limit.".to_owned()
    };
    (code, detail, change)
}

fn text_until(at: Timestamp, now: Timestamp) -> String {
    duration_text(at.millis_since(now).max(0))
}

/// The explanation of a waiting job for the API, without the objects behind its blockers and without suggested
/// changes.
pub fn explanation(why: &WaitReasons, request: &RequestSummary, now: Timestamp) -> Explanation {
    let blockers: Vec<ApiBlocker> = why.blockers.iter().map(|b| blocker_text(b, request, now)).collect();
    let smallest_change = match why.changes.first() {
        Some(changes) => {
            let all: Vec<String> = changes.iter().map(|c| change_text(c, now)).collect();
            format!("To start at once: {}.", all.join(" and "))
        }
        None => blockers.first().map(|b| b.change.clone()).unwrap_or_default(),
    };
    let basis = match (why.fits, why.earliest, why.blockers.first()) {
        (true, ..) => "A place is free. The job starts with the next pass of the scheduler.".to_owned(),
        (_, Some(at), Some(Blocker::Booking(_, ReservationBlocker::NotBegun { .. }))) => {
            format!("The job starts in {} at the latest, in its reservation.", text_until(at, now))
        }
        (_, Some(at), _) => format!(
            "Estimate: start in {}, if every run lasts to its time limit and no other job is submitted.",
            text_until(at, now)
        ),
        (
            _,
            None,
            Some(
                Blocker::None { .. }
                | Blocker::Mode { .. }
                | Blocker::Images { .. }
                | Blocker::Rdma { .. }
                | Blocker::Network { .. }
                | Blocker::Storage { .. }
                | Blocker::Pool { boards: 0, .. }
                | Blocker::InvalidRequest(_),
            ),
        ) => "The cluster has no suitable place for the job.".to_owned(),
        (_, None, Some(Blocker::Quota(_))) => {
            "The start depends on the limits of the organization.".to_owned()
        }
        (_, None, Some(Blocker::Volume(_))) => {
            "The start depends on the job that writes to the volume.".to_owned()
        }
        (_, None, Some(Blocker::Dependency(_))) => "The start depends on the end of other jobs.".to_owned(),
        (_, None, _) => "The end of the running jobs frees no suitable place.".to_owned(),
    };
    let suggested_changes = Vec::new();
    Explanation { blockers, smallest_change, earliest_start: why.earliest, basis, suggested_changes }
}
