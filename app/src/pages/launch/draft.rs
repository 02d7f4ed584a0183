//! What is typed into the launch form, and the request that it means.
//!
//! Pure; must not decide what the portal accepts: only what cannot be a request at all is refused
//! here, under the same pointers that the portal uses.

use std::collections::BTreeMap;

use berth_types::ids::ReservationId;
use berth_types::jobs::{
    Checkpoint, CheckpointSignal, Condition, DependsOn, Network, NewJob, Priority, Retry, RetryOn, Topology,
};
use berth_types::money::parse_amount_micros;
use berth_types::problems::FieldError;

use super::super::shell_words;
use super::super::words::signal_text;
use super::{idle, labels, ports, secrets, volumes};

/// Seconds between signal and end for a job that chooses only the signal: what the portal gives anyway.
const USUAL_GRACE_S: u32 = 10;

/// How near the devices of a job can be asked to be, in the order of the form. One node is what a job of
/// one node gets anyway, so it is no choice.
pub const CLOSENESS: [Topology; 4] =
    [Topology::Any, Topology::SameSwitch, Topology::SameRack, Topology::Nvlink];

/// The signals that a notice can be given by, in the order of the form.
pub const SIGNALS: [CheckpointSignal; 5] = [
    CheckpointSignal::Term,
    CheckpointSignal::Int,
    CheckpointSignal::Hup,
    CheckpointSignal::Usr1,
    CheckpointSignal::Usr2,
];

/// The closeness that an option stands for; anywhere for anything unknown.
pub fn parse_closeness(name: &str) -> Topology {
    CLOSENESS.into_iter().find(|closeness| closeness.name() == name).unwrap_or_default()
}

/// The signal that an option stands for; SIGTERM for anything unknown.
pub fn parse_signal(name: &str) -> CheckpointSignal {
    SIGNALS.into_iter().find(|signal| signal_text(*signal) == name).unwrap_or_default()
}

/// In what a time limit is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitUnit {
    /// 60 s.
    Minutes,
    /// 3,600 s.
    Hours,
}

impl LimitUnit {
    /// The value of the option in the form.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Minutes => "minutes",
            Self::Hours => "hours",
        }
    }

    /// The unit that an option stands for; hours for anything unknown.
    pub fn parse(name: &str) -> Self {
        if name == "minutes" { Self::Minutes } else { Self::Hours }
    }

    const fn seconds(self) -> i64 {
        match self {
            Self::Minutes => 60,
            Self::Hours => 3_600,
        }
    }
}

/// Seconds for `1.5` and a unit; `None` when it is no positive number.
pub fn limit_seconds(text: &str, unit: LimitUnit) -> Option<u64> {
    // A decimal in millionths is exact, where a float would not be.
    let millionths = parse_amount_micros(text)?;
    let seconds = millionths.checked_mul(unit.seconds())? / 1_000_000;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)
}

/// Thousandths for a percentage such as `12.5` or `25 %`; `None` when it is no such number, or finer than
/// that.
pub fn share_milli(text: &str) -> Option<u32> {
    let text = text.trim();
    let millionths = parse_amount_micros(text.strip_suffix('%').unwrap_or(text))?;
    // A tenth of a percent is a thousandth of the board.
    let milli = (millionths % 100_000 == 0).then_some(millionths / 100_000)?;
    u32::try_from(milli).ok()
}

/// The form as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// What the job is called.
    pub name: String,
    /// The slug of an offering.
    pub offering: String,
    /// Devices on each node, as typed.
    pub count: String,
    /// Nodes, as typed.
    pub nodes: String,
    /// The script is meant, not the command line.
    pub as_script: bool,
    /// A command line.
    pub command: String,
    /// The text of a script.
    pub script: String,
    /// The image that it runs in; empty for its node's own system.
    pub image: String,
    /// Path and text of each file.
    pub files: Vec<(String, String)>,
    /// Name and value of each variable.
    pub env: Vec<(String, String)>,
    /// The time limit, as typed.
    pub limit: String,
    /// Its unit.
    pub unit: LimitUnit,
    /// The place in the queue.
    pub priority: Priority,
    /// It may be stopped for more important jobs.
    pub preemptible: bool,
    /// Ids of jobs that must succeed first, as typed.
    pub after: String,
    /// Percent of a board, as typed; empty for the whole board.
    pub share: String,
    /// How near each other its devices must be.
    pub closeness: Topology,
    /// Tries after a failure, as typed.
    pub tries: String,
    /// Seconds of notice before it makes room, as typed; empty for the usual ones.
    pub grace: String,
    /// The signal of that notice.
    pub signal: CheckpointSignal,
    /// The reservation that it runs in.
    pub reservation: Option<ReservationId>,
    /// Secrets, one on each line.
    pub secrets: String,
    /// Volumes, one on each line.
    pub volumes: String,
    /// Labels, one on each line.
    pub labels: String,
    /// Ports, as typed.
    pub ports: String,
    /// What listens there is asked for the whole path.
    pub ports_keep_path: bool,
    /// It ends by itself when its devices stand idle.
    pub idle: bool,
    /// Percent of utilisation below which they do, as typed.
    pub idle_percent: String,
    /// Minutes for which they must, as typed.
    pub idle_minutes: String,
}

/// Rows by their names; rows without anything in them do not count.
fn rows(
    rows: &[(String, String)],
    pointer: &str,
    what: &str,
    errors: &mut Vec<FieldError>,
) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (name, value) in rows {
        let name = name.trim();
        if name.is_empty() && value.is_empty() {
            continue;
        }
        if name.is_empty() {
            errors.push(FieldError::new(pointer, format!("Give every {what} a name, or remove its row.")));
        } else if out.insert(name.to_owned(), value.clone()).is_some() {
            errors.push(FieldError::new(pointer, format!("There are two rows for {name}; keep one.")));
        }
    }
    out
}

impl Draft {
    /// The request, or what keeps the form from being one.
    pub fn request(&self) -> Result<NewJob, Vec<FieldError>> {
        let mut errors = Vec::new();
        let count = self.count.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/count", "Give a whole number of devices."));
            1
        });
        let nodes = self.nodes.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/nodes", "Give a whole number of nodes."));
            1
        });
        let max_duration_s = limit_seconds(&self.limit, self.unit).unwrap_or_else(|| {
            errors.push(FieldError::new("/max_duration_s", "Give a time such as 90 minutes or 1.5 hours."));
            3_600
        });
        let command = (!self.as_script).then(|| {
            shell_words::split(&self.command).unwrap_or_else(|unsplit| {
                errors.push(FieldError::new("/command", unsplit.text()));
                Vec::new()
            })
        });
        let mut depends_on = Vec::new();
        for id in self.after.split(|c: char| c.is_whitespace() || c == ',').filter(|id| !id.is_empty()) {
            match id.parse() {
                Ok(job) => depends_on.push(DependsOn { job, condition: Condition::Succeeded }),
                Err(_) => {
                    let detail = format!("{id} is not the id of a job, which looks like job_01k….");
                    errors.push(FieldError::new("/depends_on", detail));
                }
            }
        }
        let gpu_milli = self.gpu_milli(&mut errors);
        let retry = self.retry(&mut errors);
        let checkpoint = self.checkpoint(&mut errors);
        let stop_when_idle = idle::parse(self.idle, &self.idle_percent, &self.idle_minutes, &mut errors);
        let secrets = secrets::parse(&self.secrets, &mut errors);
        let volumes = volumes::parse(&self.volumes, &mut errors);
        let labels = labels::parse(&self.labels, &mut errors);
        let ports = ports::parse(&self.ports, &mut errors);
        let files = rows(&self.files, "/files", "file", &mut errors);
        let env = rows(&self.env, "/env", "variable", &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        Ok(NewJob {
            name: self.name.trim().to_owned(),
            offering: self.offering.clone(),
            count,
            nodes,
            command,
            script: self.as_script.then(|| self.script.clone()),
            image: Some(self.image.trim()).filter(|image| !image.is_empty()).map(str::to_owned),
            registry: None,
            env,
            secrets,
            files,
            max_duration_s,
            priority: self.priority,
            preemptible: self.preemptible,
            cpus: None,
            memory_mib: None,
            gpu_milli,
            topology: self.closeness,
            network: Network::Outbound,
            ports_keep_path: self.ports_keep_path && !ports.is_empty(),
            ports,
            retry,
            checkpoint,
            artifacts: Vec::new(),
            volumes,
            stop_when_idle,
            lease_s: None,
            reservation: self.reservation,
            depends_on,
            labels,
        })
    }

    /// The share of a board; nothing for the whole board.
    fn gpu_milli(&self, errors: &mut Vec<FieldError>) -> Option<u32> {
        if self.share.trim().is_empty() {
            return None;
        }
        let milli = share_milli(&self.share);
        if milli.is_none() {
            let detail = "Give a percentage such as 25 or 12.5, in steps of 0.1, or leave it empty for the whole board.";
            errors.push(FieldError::new("/gpu_milli", detail));
        }
        milli
    }

    /// Further tries, whatever made the last one fail.
    fn retry(&self, errors: &mut Vec<FieldError>) -> Option<Retry> {
        let max: u32 = self.tries.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/retry/max", "Give a whole number of tries, 0 for none."));
            0
        });
        // A job that makes room is tried again without a policy, so it must be with one.
        let on = vec![RetryOn::NodeLost, RetryOn::Preempted, RetryOn::Exit];
        (max > 0).then_some(Retry { max, on })
    }

    /// The notice, where one can come and it is not the usual one.
    fn checkpoint(&self, errors: &mut Vec<FieldError>) -> Option<Checkpoint> {
        let (text, signal) = (self.grace.trim(), self.signal);
        if !self.preemptible || (text.is_empty() && signal == CheckpointSignal::default()) {
            return None;
        }
        if text.is_empty() {
            return Some(Checkpoint { signal, grace_s: USUAL_GRACE_S, ..Checkpoint::default() });
        }
        match text.parse::<u32>() {
            Ok(grace_s) => Some(Checkpoint { signal, grace_s, ..Checkpoint::default() }),
            Err(_) => {
                let detail = "Give whole seconds, or leave it empty for the usual 10.";
                errors.push(FieldError::new("/checkpoint/grace_s", detail));
                None
            }
        }
    }
}

/// The request with stand-ins for what has no bearing on price and place: the preview says both
/// before everything is typed, and asks again only when one of them can have changed. Labels and the rule for
/// idle devices stay as they are, so that what the portal refuses of them is said before the launch.
pub fn for_plan(job: NewJob) -> NewJob {
    NewJob {
        name: "preview".to_owned(),
        command: Some(vec!["true".to_owned()]),
        script: None,
        files: BTreeMap::new(),
        env: BTreeMap::new(),
        depends_on: Vec::new(),
        retry: None,
        checkpoint: None,
        artifacts: Vec::new(),
        ports_keep_path: false,
        ..job
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::jobs::StopWhenIdle;

    fn draft() -> Draft {
        Draft {
            name: " hello ".to_owned(),
            offering: "h100-80gb.1g.10gb".to_owned(),
            count: "2".to_owned(),
            nodes: "1".to_owned(),
            as_script: false,
            command: "python3 'a b.py'".to_owned(),
            script: String::new(),
            image: " ".to_owned(),
            files: vec![(String::new(), String::new()), ("a b.py".to_owned(), "print(1)".to_owned())],
            env: vec![("SEED".to_owned(), "7".to_owned())],
            limit: "1.5".to_owned(),
            unit: LimitUnit::Hours,
            priority: Priority::Normal,
            preemptible: false,
            after: String::new(),
            share: String::new(),
            closeness: Topology::Any,
            tries: "0".to_owned(),
            grace: String::new(),
            signal: CheckpointSignal::Term,
            reservation: None,
            secrets: String::new(),
            volumes: String::new(),
            labels: String::new(),
            ports: String::new(),
            ports_keep_path: false,
            idle: false,
            idle_percent: "40".to_owned(),
            idle_minutes: "60".to_owned(),
        }
    }

    fn pointers(bad: &Draft) -> Vec<String> {
        bad.request().unwrap_err().into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn a_form_becomes_a_request() {
        let job = draft().request().unwrap();
        assert_eq!(job.name, "hello");
        assert_eq!(job.command, Some(vec!["python3".to_owned(), "a b.py".to_owned()]));
        assert_eq!(job.script, None);
        assert_eq!((job.count, job.max_duration_s), (2, 5_400));
        assert_eq!(job.files.len(), 1);
        assert_eq!(job.env.get("SEED").map(String::as_str), Some("7"));
        let script = Draft { as_script: true, script: "echo".to_owned(), ..draft() }.request().unwrap();
        assert_eq!((script.command, script.script.as_deref()), (None, Some("echo")));
        assert_eq!(job.image, None);
        let contained = Draft { image: " alpine:3.20 ".to_owned(), ..draft() }.request().unwrap();
        assert_eq!(contained.image.as_deref(), Some("alpine:3.20"));
        // Not every node runs images, so it has a bearing on the place.
        assert_eq!(for_plan(contained).image.as_deref(), Some("alpine:3.20"));
    }

    #[test]
    fn every_fault_is_told_at_its_place() {
        let bad = Draft {
            count: "two".to_owned(),
            command: "echo 'a".to_owned(),
            limit: "0".to_owned(),
            files: vec![(String::new(), "x".to_owned())],
            env: vec![("A".to_owned(), "1".to_owned()), ("A".to_owned(), "2".to_owned())],
            ..draft()
        };
        let bad = Draft { after: "job_nonsense".to_owned(), ..bad };
        let all = ["/count", "/max_duration_s", "/command", "/depends_on", "/files", "/env"];
        assert_eq!(pointers(&bad), all);
    }

    #[test]
    fn limits_are_exact() {
        assert_eq!(limit_seconds("90", LimitUnit::Minutes), Some(5_400));
        assert_eq!(limit_seconds("0.1", LimitUnit::Hours), Some(360));
        for no in ["", "-1", "0", "0.000001", "9999999999999", "1h"] {
            assert_eq!(limit_seconds(no, LimitUnit::Minutes), None, "{no}");
        }
        assert_eq!(LimitUnit::parse(LimitUnit::Minutes.name()), LimitUnit::Minutes);
    }

    #[test]
    fn a_plan_follows_only_price_and_place() {
        let typed = for_plan(draft().request().unwrap());
        let empty = Draft { name: String::new(), command: String::new(), files: Vec::new(), ..draft() };
        assert_eq!(for_plan(empty.request().unwrap()), typed);
        assert_eq!((typed.count, typed.max_duration_s), (2, 5_400));
        let longer = Draft { limit: "2".to_owned(), ..draft() };
        assert_ne!(for_plan(longer.request().unwrap()), typed);
        let shared = Draft { share: "25".to_owned(), closeness: Topology::Nvlink, ..draft() };
        let shared = for_plan(shared.request().unwrap());
        assert_eq!((shared.gpu_milli, shared.topology), (Some(250), Topology::Nvlink));
        let plain = Draft { preemptible: true, ..draft() };
        let inside = "res_00000000000000000000000001".parse().ok();
        let inside = for_plan(Draft { reservation: inside, ..draft() }.request().unwrap());
        assert_ne!(inside, typed);
        let patient = Draft { tries: "3".to_owned(), grace: "60".to_owned(), ..plain.clone() };
        assert_eq!(for_plan(patient.request().unwrap()), for_plan(plain.request().unwrap()));
    }

    #[test]
    fn a_share_is_typed_in_percent() {
        let typed = |text: &str| Draft { share: text.to_owned(), ..draft() };
        let cases = [("", None), (" ", None), ("10", Some(100)), ("12.5", Some(125)), (" 25 % ", Some(250))];
        for (text, milli) in cases {
            assert_eq!(typed(text).request().unwrap().gpu_milli, milli, "{text}");
        }
        // What is a share at all, the portal says.
        assert_eq!(["0", "0.1", "100%"].map(share_milli), [Some(0), Some(1), Some(1_000)]);
        for no in ["half", "-5", "12.55", "1e1", "%", "999999999999"] {
            assert_eq!(pointers(&typed(no)), ["/gpu_milli"], "{no}");
        }
    }

    #[test]
    fn further_tries_and_a_notice_are_asked_for_only_when_wanted() {
        let plain = draft().request().unwrap();
        assert_eq!((plain.retry, plain.checkpoint, plain.topology), (None, None, Topology::Any));
        let wanted = Draft {
            tries: " 3 ".to_owned(),
            preemptible: true,
            grace: "60".to_owned(),
            signal: CheckpointSignal::Usr1,
            ..draft()
        };
        let job = wanted.request().unwrap();
        let on = vec![RetryOn::NodeLost, RetryOn::Preempted, RetryOn::Exit];
        assert_eq!(job.retry, Some(Retry { max: 3, on }));
        assert_eq!(
            job.checkpoint,
            Some(Checkpoint { signal: CheckpointSignal::Usr1, grace_s: 60, ..Checkpoint::default() })
        );
        let usual_time = Draft { grace: String::new(), ..wanted.clone() }.request().unwrap();
        assert_eq!(
            usual_time.checkpoint,
            Some(Checkpoint { signal: CheckpointSignal::Usr1, grace_s: 10, ..Checkpoint::default() })
        );
        let usual = Draft { grace: String::new(), signal: CheckpointSignal::Term, ..wanted.clone() };
        assert_eq!(usual.request().unwrap().checkpoint, None);
        let bad = Draft { tries: "-1".to_owned(), grace: "soon".to_owned(), ..wanted };
        assert_eq!(pointers(&bad), ["/retry/max", "/checkpoint/grace_s"]);
        // A field that is not shown is not meant.
        let stays = Draft { tries: "0".to_owned(), preemptible: false, ..bad };
        assert_eq!(stays.request().unwrap().checkpoint, None);
    }

    #[test]
    fn labels_and_the_idle_rule_are_part_of_request_and_plan() {
        let plain = draft().request().unwrap();
        assert_eq!((plain.stop_when_idle, plain.labels.len()), (None, 0));
        let wanted = Draft { labels: "project=ocr".to_owned(), idle: true, ..draft() };
        let job = wanted.request().unwrap();
        let rule = Some(StopWhenIdle { below_percent: 40, for_s: 3_600 });
        assert_eq!((job.stop_when_idle, job.labels.get("project").map(String::as_str)), (rule, Some("ocr")));
        assert_eq!((for_plan(job.clone()).labels, for_plan(job.clone()).stop_when_idle), (job.labels, rule));
        let ported = Draft { ports: "8888".to_owned(), ports_keep_path: true, ..draft() }.request().unwrap();
        assert_eq!((ported.ports, ported.ports_keep_path), (vec![8_888], true));
        let bad = Draft { labels: "project".to_owned(), idle_percent: "low".to_owned(), ..wanted };
        assert_eq!(pointers(&bad), ["/stop_when_idle/below_percent", "/labels"]);
    }

    #[test]
    fn options_are_read_back() {
        for closeness in CLOSENESS {
            assert_eq!(parse_closeness(closeness.name()), closeness);
        }
        for signal in SIGNALS {
            assert_eq!(parse_signal(signal_text(signal)), signal);
        }
        assert_eq!((parse_closeness("near"), parse_signal("9")), (Topology::Any, CheckpointSignal::Term));
    }
}
