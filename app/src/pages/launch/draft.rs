//! Input of the launch form and its request.
//!
//! Pure. Checks only the format of input, with the same error pointers as the portal.

pub mod rows;

use std::collections::BTreeMap;

use berth_types::ids::ReservationId;
use berth_types::jobs::{NewJob, Priority, Retry, RetryOn, Topology};
use berth_types::problems::FieldError;
use berth_types::secrets::RegistryUse;
use serde::{Deserialize, Serialize};

use self::rows::{DependencyRow, SecretRow, VolumeRow};
use super::super::shell_words;
use super::advanced::AdvancedDraft;
use super::checkpoint::CheckpointDraft;
use super::idle;
use super::units::{LimitUnit, limit_seconds, share_milli};

/// The topologies in the order of the form, without one node: a job of one node has this topology anyway.
pub const TOPOLOGIES: [Topology; 4] =
    [Topology::Any, Topology::SameSwitch, Topology::SameRack, Topology::Nvlink];

/// Parses the name of a topology; anywhere for other text.
pub fn parse_topology(name: &str) -> Topology {
    TOPOLOGIES.into_iter().find(|topology| topology.name() == name).unwrap_or_default()
}

/// The ends with a retry: jobs without a policy are retried after a preemption, so jobs with one are, too.
pub const RETRY_ON: [RetryOn; 3] = [RetryOn::NodeLost, RetryOn::Preempted, RetryOn::Exit];

/// The input of the form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    /// The name of the job.
    pub name: String,
    /// The slug of an offering.
    pub offering: String,
    /// The number of devices on each node.
    pub count: String,
    /// The number of nodes.
    pub nodes: String,
    /// True for a script, false for a command line.
    pub as_script: bool,
    /// A command line.
    pub command: String,
    /// The text of a script.
    pub script: String,
    /// The image; empty for the operating system of the node.
    pub image: String,
    /// The name of the registry secret; empty for a public image.
    pub registry: String,
    /// Path and content of each file.
    pub files: Vec<(String, String)>,
    /// Name and value of each variable.
    pub env: Vec<(String, String)>,
    /// The time limit.
    pub limit: String,
    /// The unit of the time limit.
    pub unit: LimitUnit,
    /// The priority.
    pub priority: Priority,
    /// True for a preemptible job.
    pub preemptible: bool,
    /// Jobs that must end first.
    pub after: Vec<DependencyRow>,
    /// Percent of a board; empty for the whole board.
    pub share: String,
    /// The required topology of the devices.
    pub topology: Topology,
    /// The number of retries.
    pub retries: String,
    /// Checkpoints, grace period and artifacts.
    pub checkpoint: CheckpointDraft,
    /// Advanced options.
    pub advanced: AdvancedDraft,
    /// The reservation of the job.
    pub reservation: Option<ReservationId>,
    /// Secrets.
    pub secrets: Vec<SecretRow>,
    /// Volumes.
    pub volumes: Vec<VolumeRow>,
    /// Key and value of each label.
    pub labels: Vec<(String, String)>,
    /// Port numbers.
    pub ports: Vec<String>,
    /// True to pass the full path to the program behind a port.
    pub ports_keep_path: bool,
    /// True to stop the job when idle.
    pub idle: bool,
    /// Percent of utilization below which the devices are idle.
    pub idle_percent: String,
    /// Minutes of idle devices before the stop.
    pub idle_minutes: String,
}

/// Returns trimmed input; nothing for empty input.
fn non_empty(text: &str) -> Option<String> {
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned)
}

impl Draft {
    /// Returns an empty form with a chosen offering.
    pub fn new(offering: String) -> Self {
        Self {
            name: String::new(),
            offering,
            count: "1".to_owned(),
            nodes: "1".to_owned(),
            as_script: false,
            command: String::new(),
            script: String::new(),
            image: String::new(),
            registry: String::new(),
            files: Vec::new(),
            env: Vec::new(),
            limit: "1".to_owned(),
            unit: LimitUnit::Hours,
            priority: Priority::Normal,
            preemptible: false,
            after: Vec::new(),
            share: String::new(),
            topology: Topology::Any,
            retries: "0".to_owned(),
            checkpoint: CheckpointDraft::default(),
            advanced: AdvancedDraft::default(),
            reservation: None,
            secrets: Vec::new(),
            volumes: Vec::new(),
            labels: Vec::new(),
            ports: Vec::new(),
            ports_keep_path: false,
            idle: false,
            idle_percent: "40".to_owned(),
            idle_minutes: "60".to_owned(),
        }
    }

    /// Parses the request.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn request(&self) -> Result<NewJob, Vec<FieldError>> {
        let mut errors = Vec::new();
        let count = self.count.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/count", "Enter a whole number of devices."));
            1
        });
        let nodes = self.nodes.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/nodes", "Enter a whole number of nodes."));
            1
        });
        let max_duration_s = limit_seconds(&self.limit, self.unit).unwrap_or_else(|| {
            errors.push(FieldError::new("/max_duration_s", "Enter a time, such as 90 minutes or 1.5 hours."));
            3_600
        });
        let command = (!self.as_script).then(|| {
            shell_words::split(&self.command).unwrap_or_else(|unsplit| {
                errors.push(FieldError::new("/command", unsplit.text()));
                Vec::new()
            })
        });
        let depends_on = rows::dependencies(&self.after, &mut errors);
        let gpu_milli = self.gpu_milli(&mut errors);
        let retry = self.retry(&mut errors);
        let checkpoint = self.checkpoint.parse(&mut errors);
        let stop_when_idle = idle::parse(self.idle, &self.idle_percent, &self.idle_minutes, &mut errors);
        let secrets = rows::secrets(&self.secrets, &mut errors);
        let volumes = rows::volumes(&self.volumes, &mut errors);
        let labels = rows::labels(&self.labels, &mut errors);
        let ports = rows::ports(&self.ports, &mut errors);
        let (cpus, memory_mib) = (self.advanced.cpus(&mut errors), self.advanced.memory_mib(&mut errors));
        let lease_s = self.advanced.lease_s(&mut errors);
        let files = rows::named(&self.files, "/files", "file", &mut errors);
        let env = rows::named(&self.env, "/env", "variable", &mut errors);
        if !errors.is_empty() {
            return Err(errors);
        }
        let image = non_empty(&self.image);
        Ok(NewJob {
            name: self.name.trim().to_owned(),
            offering: self.offering.clone(),
            count,
            nodes,
            command,
            script: self.as_script.then(|| self.script.clone()),
            registry: image
                .as_ref()
                .and_then(|_| non_empty(&self.registry))
                .map(|secret| RegistryUse { secret }),
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
            topology: self.topology,
            network: self.advanced.network,
            rdma: self.advanced.rdma,
            ports_keep_path: self.ports_keep_path && !ports.is_empty(),
            ports,
            retry,
            checkpoint,
            artifacts: self.checkpoint.artifacts(),
            volumes,
            stop_when_idle,
            lease_s,
            reservation: self.reservation,
            depends_on,
            labels,
        })
    }

    /// Parses the share of a board in thousandths; nothing for the whole board.
    fn gpu_milli(&self, errors: &mut Vec<FieldError>) -> Option<u32> {
        if self.share.trim().is_empty() {
            return None;
        }
        let milli = share_milli(&self.share);
        if milli.is_none() {
            let detail = "Enter a percentage, such as 25 or 12.5, in steps of 0.1, or leave the field empty for the whole board.";
            errors.push(FieldError::new("/gpu_milli", detail));
        }
        milli
    }

    /// Parses the retries after any failure.
    fn retry(&self, errors: &mut Vec<FieldError>) -> Option<Retry> {
        let max: u32 = self.retries.trim().parse().unwrap_or_else(|_| {
            errors.push(FieldError::new("/retry/max", "Enter a whole number of retries, 0 for none."));
            0
        });
        let on = RETRY_ON.to_vec();
        (max > 0).then_some(Retry { max, on })
    }
}

/// Replaces fields without effect on price and placement by fixed values. The preview then works with
/// incomplete input, and requests a new plan only for a relevant change. Labels and the idle rule stay, so that
/// their errors appear before the launch.
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
    use berth_types::jobs::{Condition, Network, StopWhenIdle};
    use berth_types::volumes::VolumeMode;

    fn draft() -> Draft {
        Draft {
            name: " hello ".to_owned(),
            count: "2".to_owned(),
            command: "python3 'a b.py'".to_owned(),
            image: " ".to_owned(),
            registry: "pull".to_owned(),
            files: vec![(String::new(), String::new()), ("a b.py".to_owned(), "print(1)".to_owned())],
            env: vec![("SEED".to_owned(), "7".to_owned())],
            limit: "1.5".to_owned(),
            ..Draft::new("h100-80gb.1g.10gb".to_owned())
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
        // Not every node runs images, so an image affects the placement.
        assert_eq!(for_plan(contained).image.as_deref(), Some("alpine:3.20"));
    }

    #[test]
    fn each_error_has_its_pointer() {
        let bad = Draft {
            count: "two".to_owned(),
            command: "echo 'a".to_owned(),
            limit: "0".to_owned(),
            files: vec![(String::new(), "x".to_owned())],
            env: vec![("A".to_owned(), "1".to_owned()), ("A".to_owned(), "2".to_owned())],
            ..draft()
        };
        let after = vec![DependencyRow { job: "job_nonsense".to_owned(), ..DependencyRow::default() }];
        let bad = Draft { after, ..bad };
        let all = ["/count", "/max_duration_s", "/command", "/depends_on/0/job", "/files/", "/env/A"];
        assert_eq!(pointers(&bad), all);
    }

    #[test]
    fn a_plan_depends_on_price_and_placement_only() {
        let typed = for_plan(draft().request().unwrap());
        let empty = Draft { name: String::new(), command: String::new(), files: Vec::new(), ..draft() };
        assert_eq!(for_plan(empty.request().unwrap()), typed);
        assert_eq!((typed.count, typed.max_duration_s), (2, 5_400));
        let longer = Draft { limit: "2".to_owned(), ..draft() };
        assert_ne!(for_plan(longer.request().unwrap()), typed);
        let shared = Draft { share: "25".to_owned(), topology: Topology::Nvlink, ..draft() };
        let shared = for_plan(shared.request().unwrap());
        assert_eq!((shared.gpu_milli, shared.topology), (Some(250), Topology::Nvlink));
        let plain = Draft { preemptible: true, ..draft() };
        let inside = "res_00000000000000000000000001".parse().ok();
        let inside = for_plan(Draft { reservation: inside, ..draft() }.request().unwrap());
        assert_ne!(inside, typed);
        let checkpoint = CheckpointDraft { grace: "60".to_owned(), ..CheckpointDraft::default() };
        let patient = Draft { retries: "3".to_owned(), checkpoint, ..plain.clone() };
        assert_eq!(for_plan(patient.request().unwrap()), for_plan(plain.request().unwrap()));
    }

    #[test]
    fn a_share_is_typed_in_percent() {
        let typed = |text: &str| Draft { share: text.to_owned(), ..draft() };
        let cases = [("", None), (" ", None), ("10", Some(100)), ("12.5", Some(125)), (" 25 % ", Some(250))];
        for (text, milli) in cases {
            assert_eq!(typed(text).request().unwrap().gpu_milli, milli, "{text}");
        }
        // The portal checks the range of a share.
        assert_eq!(["0", "0.1", "100%"].map(share_milli), [Some(0), Some(1), Some(1_000)]);
        for no in ["half", "-5", "12.55", "1e1", "%", "999999999999"] {
            assert_eq!(pointers(&typed(no)), ["/gpu_milli"], "{no}");
        }
    }

    #[test]
    fn zero_retries_are_no_policy() {
        assert_eq!(draft().request().unwrap().retry, None);
        let job = Draft { retries: " 3 ".to_owned(), ..draft() }.request().unwrap();
        let on = vec![RetryOn::NodeLost, RetryOn::Preempted, RetryOn::Exit];
        assert_eq!(job.retry, Some(Retry { max: 3, on }));
        assert_eq!(pointers(&Draft { retries: "-1".to_owned(), ..draft() }), ["/retry/max"]);
    }

    #[test]
    fn checkpoints_and_advanced_options_are_in_the_request() {
        let checkpoint = CheckpointDraft {
            dir: "ckpt".to_owned(),
            artifacts: "out/**".to_owned(),
            ..CheckpointDraft::default()
        };
        let advanced = AdvancedDraft {
            network: Network::None,
            rdma: false,
            lease: "600".to_owned(),
            cpus: "8".to_owned(),
            memory: "1024".to_owned(),
        };
        let wanted = Draft { checkpoint, advanced, ..draft() };
        let job = wanted.request().unwrap();
        let dir = job.checkpoint.as_ref().and_then(|checkpoint| checkpoint.dir.as_deref());
        assert_eq!((dir, job.artifacts.as_slice()), (Some("ckpt"), ["out/**".to_owned()].as_slice()));
        assert_eq!((job.network, job.lease_s), (Network::None, Some(600)));
        // CPU cores and memory affect the placement.
        let plan = for_plan(job);
        assert_eq!((plan.cpus, plan.memory_mib, plan.artifacts.len()), (Some(8), Some(1_024), 0));
        let checkpoint = CheckpointDraft { grace: "soon".to_owned(), ..wanted.checkpoint.clone() };
        let advanced = AdvancedDraft { lease: "long".to_owned(), ..wanted.advanced.clone() };
        let bad = Draft { checkpoint, advanced, ..wanted };
        assert_eq!(pointers(&bad), ["/checkpoint/grace_s", "/lease_s"]);
    }

    #[test]
    fn labels_and_the_idle_rule_are_in_request_and_plan() {
        let plain = draft().request().unwrap();
        assert_eq!((plain.stop_when_idle, plain.labels.len()), (None, 0));
        let label = |key: &str| vec![(key.to_owned(), "ocr".to_owned())];
        let wanted = Draft { labels: label("project"), idle: true, ..draft() };
        let job = wanted.request().unwrap();
        let rule = Some(StopWhenIdle { below_percent: 40, for_s: 3_600 });
        assert_eq!((job.stop_when_idle, job.labels.get("project").map(String::as_str)), (rule, Some("ocr")));
        assert_eq!((for_plan(job.clone()).labels, for_plan(job.clone()).stop_when_idle), (job.labels, rule));
        let ports = vec!["8888".to_owned()];
        let ported = Draft { ports, ports_keep_path: true, ..draft() }.request().unwrap();
        assert_eq!((ported.ports, ported.ports_keep_path), (vec![8_888], true));
        let bad = Draft { labels: label(""), idle_percent: "low".to_owned(), ..wanted };
        assert_eq!(pointers(&bad), ["/stop_when_idle/below_percent", "/labels/"]);
    }

    #[test]
    fn rows_become_items_of_the_request_and_a_draft_survives_its_text() {
        let text = str::to_owned;
        let job = "job_01h455vb4pex5vsknk084sn02q";
        let full = Draft {
            after: vec![DependencyRow { job: format!("train ({job})"), condition: Condition::Finished }],
            secrets: vec![SecretRow { name: text("hf-token"), as_file: false, target: text("HF_TOKEN") }],
            volumes: vec![VolumeRow { name: text("set-1"), path: text("/data"), writable: true }],
            ..draft()
        };
        let made = full.request().unwrap();
        let [dependency] = made.depends_on.as_slice() else { panic!("{made:?}") };
        assert_eq!((dependency.job.to_string().as_str(), dependency.condition), (job, Condition::Finished));
        let uses: Vec<_> =
            made.secrets.iter().map(|s| (s.name.as_str(), s.env.as_deref(), s.file.as_deref())).collect();
        assert_eq!(uses, [("hf-token", Some("HF_TOKEN"), None)]);
        let mounts: Vec<_> =
            made.volumes.iter().map(|v| (v.name.as_str(), v.path.as_str(), v.mode)).collect();
        assert_eq!(mounts, [("set-1", "/data", VolumeMode::Rw)]);
        let stored = serde_json::to_string(&full).unwrap();
        assert_eq!(serde_json::from_str::<Draft>(&stored).unwrap(), full);
    }

    #[test]
    fn topologies_survive_text_and_parsing() {
        for topology in TOPOLOGIES {
            assert_eq!(parse_topology(topology.name()), topology);
        }
        assert_eq!(parse_topology("near"), Topology::Any);
    }
}
