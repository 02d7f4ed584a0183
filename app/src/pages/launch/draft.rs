//! What is typed into the launch form, and the request that it means.
//!
//! Pure; must not decide what the portal accepts: only what cannot be a request at all is refused
//! here, under the same pointers that the portal uses.

use std::collections::BTreeMap;

use berth_types::jobs::{Condition, DependsOn, NewJob, Priority};
use berth_types::money::parse_amount_micros;
use berth_types::problems::FieldError;

use super::super::shell_words;

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
            env,
            files,
            max_duration_s,
            priority: self.priority,
            preemptible: self.preemptible,
            cpus: None,
            memory_mib: None,
            depends_on,
            labels: BTreeMap::new(),
        })
    }
}

/// The request with stand-ins for what has no bearing on price and place: the preview says both
/// before everything is typed, and asks again only when one of them can have changed.
pub fn for_plan(job: NewJob) -> NewJob {
    NewJob {
        name: "preview".to_owned(),
        command: Some(vec!["true".to_owned()]),
        script: None,
        files: BTreeMap::new(),
        env: BTreeMap::new(),
        depends_on: Vec::new(),
        ..job
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft() -> Draft {
        Draft {
            name: " hello ".to_owned(),
            offering: "h100-80gb.1g.10gb".to_owned(),
            count: "2".to_owned(),
            nodes: "1".to_owned(),
            as_script: false,
            command: "python3 'a b.py'".to_owned(),
            script: String::new(),
            files: vec![(String::new(), String::new()), ("a b.py".to_owned(), "print(1)".to_owned())],
            env: vec![("SEED".to_owned(), "7".to_owned())],
            limit: "1.5".to_owned(),
            unit: LimitUnit::Hours,
            priority: Priority::Normal,
            preemptible: false,
            after: String::new(),
        }
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
        let pointers: Vec<String> =
            bad.request().unwrap_err().into_iter().map(|error| error.pointer).collect();
        assert_eq!(pointers, ["/count", "/max_duration_s", "/command", "/depends_on", "/files", "/env"]);
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
    }
}
