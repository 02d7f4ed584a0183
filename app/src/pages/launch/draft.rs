//! What is typed into the launch form, and the request that it means.
//!
//! Pure; must not decide what the portal accepts: only what cannot be a request at all is refused
//! here, under the same pointers that the portal uses.

use std::collections::BTreeMap;

use berth_types::ids::ReservationId;
use berth_types::jobs::{Condition, DependsOn, NewJob, Priority, Retry, RetryOn, Topology};
use berth_types::problems::FieldError;
use berth_types::secrets::RegistryUse;

use super::super::shell_words;
use super::advanced::AdvancedDraft;
use super::keeping::KeepingDraft;
use super::units::{LimitUnit, limit_seconds, share_milli};
use super::{idle, labels, ports, secrets, volumes};

/// How near the devices of a job can be asked to be, in the order of the form. One node is what a job of
/// one node gets anyway, so it is no choice.
pub const CLOSENESS: [Topology; 4] =
    [Topology::Any, Topology::SameSwitch, Topology::SameRack, Topology::Nvlink];

/// The closeness that an option stands for; anywhere for anything unknown.
pub fn parse_closeness(name: &str) -> Topology {
    CLOSENESS.into_iter().find(|closeness| closeness.name() == name).unwrap_or_default()
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
    /// The secret of the image's registry; empty for one that asks for nothing.
    pub registry: String,
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
    /// What is kept of it, and the notice before it makes room.
    pub keeping: KeepingDraft,
    /// What hardly any job needs.
    pub advanced: AdvancedDraft,
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

/// What is typed, where anything is.
fn given(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
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
        let checkpoint = self.keeping.checkpoint(&mut errors);
        let stop_when_idle = idle::parse(self.idle, &self.idle_percent, &self.idle_minutes, &mut errors);
        let secrets = secrets::parse(&self.secrets, &mut errors);
        let volumes = volumes::parse(&self.volumes, &mut errors);
        let labels = labels::parse(&self.labels, &mut errors);
        let ports = ports::parse(&self.ports, &mut errors);
        let (cpus, memory_mib) = (self.advanced.cpus(&mut errors), self.advanced.memory_mib(&mut errors));
        let lease_s = self.advanced.lease_s(&mut errors);
        let files = rows(&self.files, "/files", "file", &mut errors);
        let env = rows(&self.env, "/env", "variable", &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let image = given(&self.image);
        Ok(NewJob {
            name: self.name.trim().to_owned(),
            offering: self.offering.clone(),
            count,
            nodes,
            command,
            script: self.as_script.then(|| self.script.clone()),
            registry: image.as_ref().and_then(|_| given(&self.registry)).map(|secret| RegistryUse { secret }),
            image,
            env,
            secrets,
            files,
            max_duration_s,
            priority: self.priority,
            preemptible: self.preemptible,
            cpus,
            memory_mib,
            gpu_milli,
            topology: self.closeness,
            network: self.advanced.network(),
            ports_keep_path: self.ports_keep_path && !ports.is_empty(),
            ports,
            retry,
            checkpoint,
            artifacts: self.keeping.artifacts(),
            volumes,
            stop_when_idle,
            lease_s,
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
    use berth_types::jobs::{Network, StopWhenIdle};

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
            registry: "pull".to_owned(),
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
            keeping: KeepingDraft::default(),
            advanced: AdvancedDraft::default(),
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
        // Only an image comes from a registry.
        assert_eq!((job.image, job.registry), (None, None));
        let contained = Draft { image: " alpine:3.20 ".to_owned(), ..draft() }.request().unwrap();
        assert_eq!(contained.image.as_deref(), Some("alpine:3.20"));
        assert_eq!(contained.registry, Some(RegistryUse { secret: "pull".to_owned() }));
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
        let keeping = KeepingDraft { grace: "60".to_owned(), ..KeepingDraft::default() };
        let patient = Draft { tries: "3".to_owned(), keeping, ..plain.clone() };
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
    fn further_tries_are_asked_for_only_when_wanted() {
        assert_eq!(draft().request().unwrap().retry, None);
        let job = Draft { tries: " 3 ".to_owned(), ..draft() }.request().unwrap();
        let on = vec![RetryOn::NodeLost, RetryOn::Preempted, RetryOn::Exit];
        assert_eq!(job.retry, Some(Retry { max: 3, on }));
        assert_eq!(pointers(&Draft { tries: "-1".to_owned(), ..draft() }), ["/retry/max"]);
    }

    #[test]
    fn what_is_kept_and_what_is_advanced_are_part_of_the_request() {
        let keeping = KeepingDraft {
            dir: "ckpt".to_owned(),
            artifacts: "out/**".to_owned(),
            ..KeepingDraft::default()
        };
        let advanced = AdvancedDraft {
            alone: true,
            lease: "600".to_owned(),
            cpus: "8".to_owned(),
            memory: "1024".to_owned(),
        };
        let wanted = Draft { keeping, advanced, ..draft() };
        let job = wanted.request().unwrap();
        let dir = job.checkpoint.as_ref().and_then(|checkpoint| checkpoint.dir.as_deref());
        assert_eq!((dir, job.artifacts.as_slice()), (Some("ckpt"), ["out/**".to_owned()].as_slice()));
        assert_eq!((job.network, job.lease_s), (Network::None, Some(600)));
        // Where there is room is another question, so the preview asks for it too.
        let plan = for_plan(job);
        assert_eq!((plan.cpus, plan.memory_mib, plan.artifacts.len()), (Some(8), Some(1_024), 0));
        let keeping = KeepingDraft { grace: "soon".to_owned(), ..wanted.keeping.clone() };
        let advanced = AdvancedDraft { lease: "long".to_owned(), ..wanted.advanced.clone() };
        let bad = Draft { keeping, advanced, ..wanted };
        assert_eq!(pointers(&bad), ["/checkpoint/grace_s", "/lease_s"]);
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
        assert_eq!(parse_closeness("near"), Topology::Any);
    }
}
