//! Input of the forms of services and its requests.
//!
//! Pure. Checks only the format of input. The pointers of errors are those of the form: the parts of a revision and of
//! its job are beside those of the service.

use std::str::FromStr;

use berth_service_types::revisions::{NewRevision, ReplicaProtocol, RolloutRule};
use berth_service_types::scaling::Scaling;
use berth_service_types::services::{NewService, ServiceAccess, ServiceModel, ServiceProtocol};
use berth_types::jobs::NewJob;
use berth_types::problems::{FieldError, Problem};
use berth_types::volumes::{VolumeMode, VolumeUse};

use super::super::launch::draft::Draft;
use super::super::launch::units::LimitUnit;
use super::model::{MODEL_DIR, ModelDraft};
use super::schedule::{WindowRow, parse_rows};

/// The pointer of the model's volume in the form.
pub const MODEL_VOLUME: &str = "/model/volume";

/// The program of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// A server for a model file in a volume.
    Model,
    /// A command or a script.
    Script,
}

impl Program {
    /// Returns the path whose answer says that the program is ready.
    pub const fn readiness_path(self) -> &'static str {
        match self {
            Self::Model => "/v1/models",
            Self::Script => "/",
        }
    }
}

/// Parses a number, or adds an error and returns the fallback.
pub fn number<T: FromStr>(
    text: &str,
    pointer: &str,
    detail: &str,
    fallback: T,
    errors: &mut Vec<FieldError>,
) -> T {
    text.trim().parse().unwrap_or_else(|_| {
        errors.push(FieldError::new(pointer, detail));
        fallback
    })
}

/// Returns the words of a text with spaces, commas or line breaks between them.
pub fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace());
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The rule for the number of replicas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScalingDraft {
    pub min: String,
    pub max: String,
    pub target: String,
    pub up: String,
    pub down: String,
    pub idle: String,
    pub shadow: bool,
    pub schedule: Vec<WindowRow>,
    /// The time zone of the schedule.
    pub zone: String,
}

impl ScalingDraft {
    /// Returns the input that makes this rule.
    pub fn new(scaling: &Scaling) -> Self {
        Self {
            min: scaling.min_replicas.to_string(),
            max: scaling.max_replicas.to_string(),
            target: scaling.target_requests.to_string(),
            up: scaling.up_delay_s.to_string(),
            down: scaling.down_delay_s.to_string(),
            idle: scaling.idle_s.to_string(),
            shadow: scaling.shadow,
            schedule: scaling.schedule.iter().map(WindowRow::new).collect(),
            zone: scaling.time_zone.clone(),
        }
    }

    /// Parses the rule.
    pub fn parse(&self, errors: &mut Vec<FieldError>) -> Scaling {
        let mut whole = |text: &str, part: &str| {
            number(text, &format!("/scaling/{part}"), "Enter a whole number.", 0, errors)
        };
        let (min_replicas, max_replicas) =
            (whole(&self.min, "min_replicas"), whole(&self.max, "max_replicas"));
        // An invalid greatest number has an error of its own and bounds no window.
        let max_floor = if max_replicas == 0 { u32::MAX } else { max_replicas };
        Scaling {
            min_replicas,
            max_replicas,
            target_requests: whole(&self.target, "target_requests"),
            up_delay_s: whole(&self.up, "up_delay_s"),
            down_delay_s: whole(&self.down, "down_delay_s"),
            idle_s: whole(&self.idle, "idle_s"),
            shadow: self.shadow,
            schedule: parse_rows(&self.schedule, max_floor, errors),
            time_zone: self.zone.trim().to_owned(),
        }
    }
}

/// The input of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionDraft {
    /// The job of a replica.
    pub job: Draft,
    pub port: String,
    pub replica_protocol: ReplicaProtocol,
    pub readiness_path: String,
    pub ready_within: String,
    pub concurrency: String,
    /// The steps of the canary in percent.
    pub canary: String,
    pub note: String,
}

impl RevisionDraft {
    /// Returns the input of a new program with a chosen offering.
    pub fn new(offering: String, program: Program) -> Self {
        let job =
            Draft { limit: "24".to_owned(), unit: LimitUnit::Hours, as_script: true, ..Draft::new(offering) };
        Self {
            job,
            port: "8000".to_owned(),
            replica_protocol: ReplicaProtocol::Http1,
            readiness_path: program.readiness_path().to_owned(),
            ready_within: "600".to_owned(),
            concurrency: "8".to_owned(),
            canary: String::new(),
            note: String::new(),
        }
    }

    /// Returns the input that makes the same revision, and the parts that the form cannot have.
    pub fn from_revision(spec: &NewRevision) -> (Self, Vec<&'static str>) {
        let (job, absent) = Draft::from_submission(&spec.job);
        let steps: Vec<String> = spec.canary_percent.iter().map(u8::to_string).collect();
        let draft = Self {
            job,
            port: spec.port.to_string(),
            replica_protocol: spec.replica_protocol,
            readiness_path: spec.readiness_path.clone(),
            ready_within: spec.ready_within_s.to_string(),
            concurrency: spec.concurrency.to_string(),
            canary: steps.join(", "),
            note: String::new(),
        };
        (draft, absent)
    }

    /// Parses the revision of a service with this name; `model` is a further volume, the last one of the job.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn request(&self, name: &str, model: Option<VolumeUse>) -> Result<NewRevision, Vec<FieldError>> {
        let mut errors = Vec::new();
        let port = number(&self.port, "/port", "Enter a port number, such as 8000.", 0, &mut errors);
        let whole = "Enter a whole number.";
        let ready_within_s = number(&self.ready_within, "/ready_within_s", whole, 0, &mut errors);
        let concurrency = number(&self.concurrency, "/concurrency", whole, 0, &mut errors);
        let steps = words(&self.canary.replace('%', " "));
        let canary_percent: Vec<u8> = steps
            .iter()
            .map(|step| {
                number(step, "/canary_percent", "Enter whole percentages, such as 10, 50.", 0_u8, &mut errors)
            })
            .collect();
        let job = Draft { name: name.to_owned(), ..self.job.clone() }.request();
        let job = match job {
            Ok(job) if errors.is_empty() => job,
            Ok(_) => return Err(errors),
            Err(wrong) => {
                errors.extend(wrong);
                return Err(errors);
            }
        };
        let volumes = job.volumes.into_iter().chain(model).collect();
        Ok(NewRevision {
            job: NewJob { volumes, ..job },
            port,
            replica_protocol: self.replica_protocol,
            readiness_path: self.readiness_path.trim().to_owned(),
            ready_within_s,
            concurrency,
            canary_percent,
            note: self.note.trim().to_owned(),
        })
    }
}

/// Parses models from their names and contexts.
pub fn parse_models<'a>(
    rows: impl Iterator<Item = (&'a str, &'a str)>,
    errors: &mut Vec<FieldError>,
) -> Vec<ServiceModel> {
    let model = |(index, (name, context)): (usize, (&str, &str))| {
        let pointer = format!("/models/{index}/context_tokens");
        let detail = "Enter the most tokens of a prompt and its answer, such as 8192.";
        ServiceModel {
            name: name.trim().to_owned(),
            context_tokens: number(context, &pointer, detail, 0, errors),
        }
    };
    rows.enumerate().map(model).collect()
}

/// Returns the rows of models with input.
pub fn filled_models(rows: &[(String, String)]) -> impl Iterator<Item = (&str, &str)> {
    let filled = rows.iter().filter(|(name, context)| !name.trim().is_empty() || !context.is_empty());
    filled.map(|(name, context)| (name.as_str(), context.as_str()))
}

/// The input of a new service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceDraft {
    /// For a model it may be empty: the name is that of the file.
    pub name: String,
    pub program: Program,
    /// The model, for the program of a model.
    pub model: ModelDraft,
    pub revision: RevisionDraft,
    /// The protocol of a script; a model has that of OpenAI.
    pub protocol: ServiceProtocol,
    /// Name and context of each model of a script.
    pub models: Vec<(String, String)>,
    pub access: ServiceAccess,
    /// Host names with spaces, commas or line breaks between them.
    pub hosts: String,
    /// The most KiB of the body of a request.
    pub body_kib: String,
    pub scaling: ScalingDraft,
}

impl ServiceDraft {
    /// Parses the models of the service.
    fn models(&self, errors: &mut Vec<FieldError>) -> Vec<ServiceModel> {
        match (self.program, self.protocol) {
            (Program::Model, _) => {
                let name = self.model.model_name();
                parse_models([(name.as_str(), self.model.context.as_str())].into_iter(), errors)
            }
            (Program::Script, ServiceProtocol::Http) => Vec::new(),
            (Program::Script, ServiceProtocol::OpenAi) => parse_models(filled_models(&self.models), errors),
        }
    }

    /// Returns the volume of the model.
    fn model_volume(&self, errors: &mut Vec<FieldError>) -> Option<VolumeUse> {
        if self.program == Program::Script {
            return None;
        }
        if self.model.volume.is_empty() {
            errors.push(FieldError::new(MODEL_VOLUME, "Choose the volume with the model."));
        }
        if self.model.path.trim().is_empty() {
            errors.push(FieldError::new(
                "/model/path",
                "Enter the path of the file in the volume, such as model.gguf.",
            ));
        }
        Some(VolumeUse { name: self.model.volume.clone(), path: MODEL_DIR.to_owned(), mode: VolumeMode::Ro })
    }

    /// Parses the request.
    ///
    /// # Errors
    /// One error for each invalid field.
    pub fn request(&self) -> Result<NewService, Vec<FieldError>> {
        let mut errors = Vec::new();
        let name = match self.name.trim() {
            "" if self.program == Program::Model => self.model.service_name(),
            name => name.to_owned(),
        };
        if name.is_empty() {
            errors.push(FieldError::new("/name", "Enter a name, such as chat."));
        }
        let volume = self.model_volume(&mut errors);
        let models = self.models(&mut errors);
        let kib: u64 =
            number(&self.body_kib, "/max_body_bytes", "Enter a whole number of KiB.", 0, &mut errors);
        let scaling = self.scaling.parse(&mut errors);
        let revision = match self.revision.request(&name, volume) {
            Ok(revision) if errors.is_empty() => revision,
            Ok(_) => return Err(errors),
            Err(wrong) => {
                errors.extend(wrong);
                return Err(errors);
            }
        };
        let protocol = if self.program == Program::Model { ServiceProtocol::OpenAi } else { self.protocol };
        Ok(NewService {
            name,
            protocol,
            access: self.access,
            hosts: words(&self.hosts),
            models,
            max_body_bytes: kib.saturating_mul(1_024),
            scaling,
            rollout: RolloutRule::default(),
            revision,
        })
    }
}

/// Removes the first of these bases from a pointer; other pointers stay.
fn local_pointer(pointer: &str, bases: &[&str]) -> String {
    let inside =
        |base: &&str| pointer.strip_prefix(*base).filter(|rest| rest.is_empty() || rest.starts_with('/'));
    bases.iter().find_map(inside).unwrap_or(pointer).to_owned()
}

/// Returns a problem of the portal with the pointers of the form. `bases` are the pointers of the parts whose fields
/// the form has beside the others. `model_at` is the number of the model's volume in the job.
pub fn local_problem(problem: Problem, bases: &[&str], model_at: Option<usize>) -> Problem {
    let model = model_at.map(|index| format!("/volumes/{index}"));
    let errors = problem.errors.into_iter().map(|error| {
        let pointer = local_pointer(&error.pointer, bases);
        let is_model = |base: &String| {
            pointer
                .strip_prefix(base.as_str())
                .is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let pointer = if model.as_ref().is_some_and(is_model) { MODEL_VOLUME.to_owned() } else { pointer };
        FieldError { pointer, ..error }
    });
    Problem { errors: errors.collect(), ..problem }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(program: Program) -> ServiceDraft {
        ServiceDraft {
            name: " chat ".to_owned(),
            program,
            model: ModelDraft {
                volume: "weights".to_owned(),
                path: "/qwen 2.gguf".to_owned(),
                name: "qwen".to_owned(),
                context: "4096".to_owned(),
            },
            revision: RevisionDraft::new("h100-80gb.1g.10gb".to_owned(), program),
            protocol: ServiceProtocol::Http,
            models: Vec::new(),
            access: ServiceAccess::Organization,
            hosts: "chat.example.org, www.example.org\n".to_owned(),
            body_kib: "1024".to_owned(),
            scaling: ScalingDraft::new(&Scaling::default()),
        }
    }

    fn pointers(bad: &ServiceDraft) -> Vec<String> {
        bad.request().unwrap_err().into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn a_model_in_a_volume_becomes_an_openai_service() {
        let mut wanted = draft(Program::Model);
        wanted.revision.job.script = wanted.model.script();
        let made = wanted.request().unwrap();
        assert_eq!((made.name.as_str(), made.protocol), ("chat", ServiceProtocol::OpenAi));
        assert_eq!(made.models, [ServiceModel { name: "qwen".to_owned(), context_tokens: 4_096 }]);
        assert_eq!(made.hosts, ["chat.example.org", "www.example.org"]);
        assert_eq!((made.max_body_bytes, made.scaling), (1 << 20, Scaling::default()));
        let job = &made.revision.job;
        assert_eq!((job.name.as_str(), job.max_duration_s, job.command.is_some()), ("chat", 86_400, false));
        let script = job.script.as_deref().unwrap();
        assert_eq!(
            script,
            "exec python3 -m llama_cpp.server --model '/models/qwen 2.gguf' --model_alias qwen --n_ctx 4096 \
             --n_gpu_layers -1 --host 127.0.0.1 --port \"$PORT\"\n"
        );
        let mounts: Vec<_> = job.volumes.iter().map(|v| (v.name.as_str(), v.path.as_str(), v.mode)).collect();
        assert_eq!(mounts, [("weights", "/models", VolumeMode::Ro)]);
        assert_eq!((made.revision.port, made.revision.readiness_path.as_str()), (8_000, "/v1/models"));
    }

    #[test]
    fn a_model_needs_no_name() {
        let mut wanted = draft(Program::Model);
        wanted.name = " ".to_owned();
        wanted.model.name = String::new();
        wanted.revision.job.script = wanted.model.script();
        let made = wanted.request().unwrap();
        assert_eq!((made.name.as_str(), made.models[0].name.as_str()), ("qwen-2", "qwen-2"));
        wanted.program = Program::Script;
        assert_eq!(pointers(&wanted), ["/name"]);
    }

    #[test]
    fn a_script_has_models_only_with_the_protocol_of_openai() {
        let mut wanted = draft(Program::Script);
        wanted.models = vec![(String::new(), String::new()), ("a".to_owned(), "10".to_owned())];
        let http = wanted.request().unwrap();
        assert_eq!((http.models.len(), http.revision.job.volumes.len()), (0, 0));
        assert_eq!(http.revision.readiness_path, "/");
        wanted.protocol = ServiceProtocol::OpenAi;
        assert_eq!(wanted.request().unwrap().models.len(), 1);
        wanted.models.push((" ".to_owned(), "many".to_owned()));
        assert_eq!(pointers(&wanted), ["/models/1/context_tokens"], "a blank row does not count");
    }

    #[test]
    fn each_error_of_a_service_has_its_pointer() {
        let mut bad = draft(Program::Model);
        bad.name = " ".to_owned();
        bad.model = ModelDraft { context: "many".to_owned(), ..ModelDraft::default() };
        bad.body_kib = "1 MiB".to_owned();
        bad.scaling.idle = "soon".to_owned();
        bad.revision.port = "http".to_owned();
        bad.revision.canary = "10 %, half".to_owned();
        bad.revision.job.count = "two".to_owned();
        assert_eq!(
            pointers(&bad),
            [
                "/name",
                "/model/volume",
                "/model/path",
                "/models/0/context_tokens",
                "/max_body_bytes",
                "/scaling/idle_s",
                "/port",
                "/canary_percent",
                "/count"
            ]
        );
    }

    #[test]
    fn percentages_may_have_their_sign() {
        let mut wanted = draft(Program::Script);
        wanted.revision.canary = "10%, 50 % 75".to_owned();
        assert_eq!(wanted.request().unwrap().revision.canary_percent, [10, 50, 75]);
    }

    #[test]
    fn a_revision_survives_the_form() {
        let mut wanted = draft(Program::Script);
        wanted.revision.job.script = "echo".to_owned();
        wanted.revision.job.env = vec![("A".to_owned(), "1".to_owned())];
        wanted.revision.canary = "5, 25".to_owned();
        let made = wanted.request().unwrap().revision;
        let (again, absent) = RevisionDraft::from_revision(&made);
        assert_eq!((again.request("chat", None), absent.len()), (Ok(made), 0));
    }

    #[test]
    fn a_problem_of_the_portal_points_to_the_fields_of_the_form() {
        let bases = ["/revision/job", "/revision"];
        for (pointer, model_at, local) in [
            ("/revision/job/offering", None, "/offering"),
            ("/revision/port", None, "/port"),
            ("/revision/jobs", None, "/jobs"),
            ("/name", None, "/name"),
            ("/scaling/max_replicas", None, "/scaling/max_replicas"),
            ("/revision/job/volumes/1/name", Some(1), MODEL_VOLUME),
            ("/revision/job/volumes/1", Some(1), MODEL_VOLUME),
            ("/revision/job/volumes/10/name", Some(1), "/volumes/10/name"),
            ("/revision/job/volumes/0/name", Some(1), "/volumes/0/name"),
            ("/revisions", None, "/revisions"),
        ] {
            let problem = Problem::invalid_field(pointer, "Wrong.");
            let local_errors = local_problem(problem, &bases, model_at).errors;
            let found: Vec<&str> = local_errors.iter().map(|error| error.pointer.as_str()).collect();
            assert_eq!(found, [local], "{pointer}");
        }
    }
}
