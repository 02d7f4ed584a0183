//! The text of wait reasons. It must add nothing to [`WaitReasons`].

use berth_types::ids::JobId;
use berth_types::jobs::{Blocker as ApiBlocker, Explanation};
use berth_types::time::{Timestamp, duration_text};

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
            format!("limit the run to {longest}")
        }
        SuggestedChange::Count(1) => "ask for 1 device".to_owned(),
        SuggestedChange::Count(n) => format!("ask for {n} devices"),
        SuggestedChange::Nodes(n) => format!("ask for {n} {}", plural(*n, "node", "nodes")),
        SuggestedChange::Anywhere => "let the nodes be anywhere".to_owned(),
        SuggestedChange::WithoutNvlink => "do without NVLink".to_owned(),
    }
}

/// The text of a lack of power.
pub fn power_shortage_text(short: &PowerShortage) -> String {
    let PowerShortage { rack, left, budget, need } = short;
    let (left, budget, need) = (watts_text((*left).max(0)), watts_text(*budget), watts_text(*need));
    format!("Rack {rack} has {left} left of {budget}, this needs {need}.")
}

/// The text of a wait for other jobs.
fn dependency_text(jobs: &[JobId]) -> (&'static str, String, String) {
    let n = u32::try_from(jobs.len()).unwrap_or(u32::MAX);
    let names: Vec<String> = jobs.iter().take(3).map(ToString::to_string).collect();
    let more = if jobs.len() > 3 { " and others" } else { "" };
    (
        "dependency.waiting",
        format!("It waits for {} {}{more}.", plural(n, "the job", "the jobs"), names.join(", ")),
        format!("It is placed once {} ended.", plural(n, "that job has", "those jobs have")),
    )
}

/// The text of a lack of boards in the whole cloud: the largest node has `count` devices, and `nodes` fit together.
fn none_text(count: u32, nodes: u32, request: &RequestSummary) -> (&'static str, String, String) {
    let device = request.text();
    if count == 0 {
        return (
            "capacity.none",
            format!("No node in this cloud has a board for {device}."),
            "Choose another offering, or ask the operator to add such a board.".to_owned(),
        );
    }
    if count < request.count {
        return (
            "capacity.none",
            format!("No single node holds {device}; the largest holds {count}."),
            format!("Ask for {count} {} or fewer.", plural(count, "device", "devices")),
        );
    }
    if nodes == 0 {
        return (
            "capacity.none",
            format!("No node that could hold {device} says where in the network it is."),
            "Let the nodes be anywhere, or ask the operator to label the nodes.".to_owned(),
        );
    }
    (
        "capacity.none",
        format!(
            "Only {nodes} {} near enough to each other could hold {device}.",
            plural(nodes, "node", "nodes")
        ),
        format!("Ask for {nodes} {} or fewer.", plural(nodes, "node", "nodes")),
    )
}

/// The text of a promise to others, at present or from `begins` on.
fn promised_text(begins: Timestamp, now: Timestamp) -> (&'static str, String, String) {
    if begins <= now {
        let detail = "There is room, but it is reserved at present.".to_owned();
        let change = "Wait until the reservation ends, or run inside it if it is yours.".to_owned();
        return ("window.promised", detail, change);
    }
    let left = duration_text(begins.millis_since(now).max(0));
    let detail = format!(
        "There is room, but in {left} it is promised to somebody else, and the job could still run then."
    );
    ("window.promised", detail, "Limit the run to less than that.".to_owned())
}

/// The text of a lack of processors or memory beside free boards.
fn host_text(nodes: u32, temporary: bool, device: &str) -> (&'static str, String, String) {
    (
        if temporary { "capacity.host_busy" } else { "capacity.host" },
        format!(
            "{nodes} {} boards free for {device}, but not the processors or the memory beside them{}.",
            plural(nodes, "node has", "nodes have"),
            if temporary { " at this time" } else { ": no host is that large" }
        ),
        "Ask for fewer processors or less memory.".to_owned(),
    )
}

fn blocker_text(blocker: &Blocker, request: &RequestSummary, now: Timestamp) -> ApiBlocker {
    let device = request.text();
    let (code, detail, change) = match blocker {
        Blocker::InvalidRequest(invalid) => (
            "request.impossible",
            format!("No cloud could give this: {invalid}."),
            "Submit it anew.".to_owned(),
        ),
        Blocker::Dependency(jobs) => dependency_text(jobs),
        Blocker::Volume(held) => (
            "volume.busy",
            if held.saving {
                format!("What {} wrote to the volume {} is being handed back.", held.job, held.name)
            } else {
                format!("The volume {} is written by {}, and one job writes at a time.", held.name, held.job)
            },
            "It is placed once that is over; a job that only reads the volume need not wait.".to_owned(),
        ),
        Blocker::Booking(_, blocker) => reservation_text(*blocker, now),
        Blocker::Mode { boards } => (
            "capacity.mode",
            format!(
                "{boards} {} {device} in the other MIG mode only, and nothing but a reset changes that mode.",
                plural(*boards, "board takes", "boards take"),
            ),
            "Choose another offering, or ask the operator to change the MIG mode of such a board.".to_owned(),
        ),
        Blocker::None { count, nodes } => none_text(*count, *nodes, request),
        Blocker::Busy { nodes } => (
            "capacity.busy",
            format!(
                "The {} that could take it {} in use, with no place left for {device}.",
                if *nodes == 1 { "node".to_owned() } else { format!("{nodes} nodes") },
                plural(*nodes, "is", "are")
            ),
            "Wait for a running job to end, or stop one of your own.".to_owned(),
        ),
        Blocker::Host { nodes, temporary } => host_text(*nodes, *temporary, &device),
        Blocker::Images { nodes } => (
            "capacity.images",
            format!(
                "{nodes} {} {device}, but {} no images: podman is not there, or does not work.",
                plural(*nodes, "node has", "nodes have"),
                plural(*nodes, "runs", "run"),
            ),
            "Run it without an image, or ask the operator to install podman on such a node.".to_owned(),
        ),
        Blocker::Away { nodes } => (
            "node.unavailable",
            format!("{nodes} suitable {} cordoned or out of reach.", plural(*nodes, "node is", "nodes are")),
            "The operator can bring the node back.".to_owned(),
        ),
        Blocker::Power(short) => (
            "rack.power",
            power_shortage_text(short),
            if short.need > short.budget {
                "Ask for fewer devices, or ask the operator for a rack that can feed them.".to_owned()
            } else {
                "Wait for a job in that rack to end, or ask for fewer devices.".to_owned()
            },
        ),
        Blocker::Quarantined { boards } => (
            "health.quarantined",
            format!("{boards} suitable {} in quarantine.", plural(*boards, "board is", "boards are")),
            "The operator can clear the quarantine.".to_owned(),
        ),
        Blocker::Promised { begins } => promised_text(*begins, now),
        Blocker::Quota(exceeded) => quota_text(exceeded),
        Blocker::Ahead { jobs } => (
            "queue.ahead",
            format!("{jobs} {} before it.", plural(*jobs, "job is", "jobs are")),
            "Raise its priority, or wait for its turn.".to_owned(),
        ),
    };
    ApiBlocker { code: code.to_owned(), detail, change }
}

fn reservation_text(blocker: ReservationBlocker, now: Timestamp) -> (&'static str, String, String) {
    let (detail, change) = match blocker {
        ReservationBlocker::NotBegun { begins } => (
            format!("Its reservation begins in {}.", duration_text(begins.millis_since(now).max(0))),
            "Wait for the reservation to begin.".to_owned(),
        ),
        ReservationBlocker::Over => (
            "Its reservation is over.".to_owned(),
            "Submit it without the reservation, or in another one.".to_owned(),
        ),
        ReservationBlocker::TooShort { left_s } => {
            let left = duration_text(now.plus_seconds(left_s.max(0)).millis_since(now));
            (
                format!("Its reservation has {left} left, and the job could run longer than that."),
                format!("Limit the run to {left}, or extend the reservation."),
            )
        }
        ReservationBlocker::TooSmall => (
            "Its reservation has no place for it, even when nothing else runs there.".to_owned(),
            "Ask for less, or submit it without the reservation.".to_owned(),
        ),
        ReservationBlocker::Foreign => (
            "Its reservation belongs to another organization.".to_owned(),
            "Submit it in a reservation of its own organization.".to_owned(),
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
                "The organization may hold {} boards at once and holds {}; this job needs {} more.",
                boards(limit),
                boards(used),
                boards(need)
            ),
        ),
        LimitKind::Devices => (
            "quota.devices",
            format!(
                "The organization may hold {} of this offering at once and holds {}; this job needs {} more.",
                boards(limit),
                boards(used),
                boards(need)
            ),
        ),
        LimitKind::RunningJobs => {
            ("quota.running_jobs", format!("The organization may run {limit} jobs at once and runs {used}."))
        }
        LimitKind::Spend => (
            "quota.spend",
            "What the organization may spend an hour is spent by what runs already.".to_owned(),
        ),
    };
    let change = if exceeded.is_permanent() {
        "Ask for less, or ask the operator for a higher limit.".to_owned()
    } else {
        "Wait for a job of your organization to end, or ask the operator for a higher limit.".to_owned()
    };
    (code, detail, change)
}

fn text_until(at: Timestamp, now: Timestamp) -> String {
    duration_text(at.millis_since(now).max(0))
}

/// The explanation of a waiting job for the API.
pub fn explanation(why: &WaitReasons, request: &RequestSummary, now: Timestamp) -> Explanation {
    let blockers: Vec<ApiBlocker> = why.blockers.iter().map(|b| blocker_text(b, request, now)).collect();
    let smallest_change = match why.changes.first() {
        Some(changes) => {
            let all: Vec<String> = changes.iter().map(|c| change_text(c, now)).collect();
            let text = all.join(" and ");
            let mut letters = text.chars();
            let first = letters.next().map(|c| c.to_ascii_uppercase()).into_iter();
            format!("{}: then it starts at once.", first.chain(letters).collect::<String>())
        }
        None => blockers.first().map(|b| b.change.clone()).unwrap_or_default(),
    };
    let basis = match (why.fits, why.earliest, why.blockers.first()) {
        (true, ..) => "A place is free; it starts with the next pass of the scheduler.".to_owned(),
        (_, Some(at), Some(Blocker::Booking(_, ReservationBlocker::NotBegun { .. }))) => {
            format!("Its reservation begins, and it starts in {} at the latest.", text_until(at, now))
        }
        (_, Some(at), _) => format!(
            "If every run lasts to its limit and no other job comes, it starts in {}.",
            text_until(at, now)
        ),
        (
            _,
            None,
            Some(
                Blocker::None { .. }
                | Blocker::Mode { .. }
                | Blocker::Images { .. }
                | Blocker::InvalidRequest(_),
            ),
        ) => "The present inventory.".to_owned(),
        (_, None, Some(Blocker::Quota(_))) => "The limits of the organization.".to_owned(),
        (_, None, Some(Blocker::Volume(_))) => "The job that writes to the volume.".to_owned(),
        (_, None, Some(Blocker::Dependency(_))) => "The jobs that it waits for.".to_owned(),
        (_, None, _) => "Nothing that runs now frees a suitable place by itself.".to_owned(),
    };
    Explanation { blockers, smallest_change, earliest_start: why.earliest, basis }
}
