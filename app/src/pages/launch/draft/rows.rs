//! Rows of the launch form: secrets, volumes, ports, labels, dependencies, variables and files.
//!
//! Checks only the format of input. An empty row does not count. An error points to the item of a list by its
//! number, and to the item of a map by its name, as the errors of the portal do.

use std::collections::BTreeMap;

use berth_types::ids::JobId;
use berth_types::jobs::{Condition, DependsOn};
use berth_types::problems::FieldError;
use berth_types::secrets::SecretUse;
use berth_types::volumes::{VolumeMode, VolumeUse};
use serde::{Deserialize, Serialize};

/// The input of one row.
pub trait RowInput: Default {
    /// Returns true if the row has no input, so that it does not count.
    fn is_blank(&self) -> bool;
}

/// A secret as a variable or a file.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SecretRow {
    /// The name of the secret.
    pub name: String,
    /// True for a file in `/run/secrets`, false for an environment variable.
    pub as_file: bool,
    /// The name of the variable or of the file.
    pub target: String,
}

/// A volume at a path.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct VolumeRow {
    /// The name of the volume.
    pub name: String,
    /// The path in the job.
    pub path: String,
    /// True for a volume with changes by the job.
    pub writable: bool,
}

/// Another job whose end comes first.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DependencyRow {
    /// The id of the job, alone or after its name: `train-7b (job_01k…)`.
    pub job: String,
    /// The required end.
    pub condition: Condition,
}

impl RowInput for SecretRow {
    fn is_blank(&self) -> bool {
        self.name.is_empty() && self.target.trim().is_empty()
    }
}

impl RowInput for VolumeRow {
    fn is_blank(&self) -> bool {
        self.name.is_empty() && self.path.trim().is_empty()
    }
}

impl RowInput for DependencyRow {
    fn is_blank(&self) -> bool {
        self.job.trim().is_empty()
    }
}

/// A port number.
impl RowInput for String {
    fn is_blank(&self) -> bool {
        self.trim().is_empty()
    }
}

/// A name with its value.
impl RowInput for (String, String) {
    fn is_blank(&self) -> bool {
        self.0.trim().is_empty() && self.1.is_empty()
    }
}

/// Returns the pointer to a key of a map. The portal cuts a long key to 80 characters in it.
pub fn key_pointer(base: &str, key: &str) -> String {
    let key: String = key.trim().chars().take(80).collect();
    format!("{base}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Numbers the rows with input.
fn filled<T: RowInput>(rows: &[T]) -> impl Iterator<Item = (usize, &T)> {
    rows.iter().filter(|row| !row.is_blank()).enumerate()
}

/// Collects rows by their names. `kind` is the noun of a row, such as `variable`.
pub fn named(
    rows: &[(String, String)],
    pointer: &str,
    kind: &str,
    errors: &mut Vec<FieldError>,
) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (_, (name, value)) in filled(rows) {
        let name = name.trim();
        let mut refuse = |detail: String| errors.push(FieldError::new(key_pointer(pointer, name), detail));
        if name.is_empty() {
            refuse(format!("Enter a name for the {kind}, or remove the row."));
        } else if out.insert(name.to_owned(), value.clone()).is_some() {
            refuse(format!("Duplicate name {name}: remove one row."));
        }
    }
    out
}

/// Collects the labels by their keys.
pub fn labels(rows: &[(String, String)], errors: &mut Vec<FieldError>) -> BTreeMap<String, String> {
    let trimmed: Vec<(String, String)> =
        rows.iter().map(|(key, value)| (key.clone(), value.trim().to_owned())).collect();
    named(&trimmed, "/labels", "label", errors)
}

/// Parses the secrets.
pub fn secrets(rows: &[SecretRow], errors: &mut Vec<FieldError>) -> Vec<SecretUse> {
    filled(rows)
        .map(|(index, row)| {
            let target = row.target.trim();
            let mut refuse = |part: &str, detail: &str| {
                errors.push(FieldError::new(format!("/secrets/{index}/{part}"), detail))
            };
            if row.name.is_empty() {
                refuse("name", "Choose a secret, or remove the row.");
            }
            match (target.is_empty(), row.as_file) {
                (true, true) => refuse("file", "Enter the name of a file, such as key.pem."),
                (true, false) => refuse("env", "Enter the name of a variable, such as HF_TOKEN."),
                (false, _) => {}
            }
            let target = target.to_owned();
            let (env, file) = if row.as_file { (None, Some(target)) } else { (Some(target), None) };
            SecretUse { name: row.name.clone(), env, file }
        })
        .collect()
}

/// Parses the volumes.
pub fn volumes(rows: &[VolumeRow], errors: &mut Vec<FieldError>) -> Vec<VolumeUse> {
    filled(rows)
        .map(|(index, row)| {
            let path = row.path.trim();
            let mut refuse = |part: &str, detail: &str| {
                errors.push(FieldError::new(format!("/volumes/{index}/{part}"), detail))
            };
            if row.name.is_empty() {
                refuse("name", "Choose a volume, or remove the row.");
            }
            if path.is_empty() {
                refuse("path", "Enter a path, such as /data.");
            }
            let mode = if row.writable { VolumeMode::Rw } else { VolumeMode::Ro };
            VolumeUse { name: row.name.clone(), path: path.to_owned(), mode }
        })
        .collect()
}

/// Parses the port numbers.
pub fn ports(rows: &[String], errors: &mut Vec<FieldError>) -> Vec<u32> {
    let read = |(index, row): (usize, &String)| {
        let port = row.trim().parse::<u32>().ok();
        if port.is_none() {
            errors.push(FieldError::new(format!("/ports/{index}"), "Enter a port number, such as 8888."));
        }
        port
    };
    filled(rows).filter_map(read).collect()
}

/// Finds the id of a job, which is alone or at the end of a text.
pub fn find_job_id(text: &str) -> Option<JobId> {
    let id = text.get(text.rfind("job_")?..)?;
    id.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).parse().ok()
}

/// Parses the dependencies.
pub fn dependencies(rows: &[DependencyRow], errors: &mut Vec<FieldError>) -> Vec<DependsOn> {
    let read = |(index, row): (usize, &DependencyRow)| {
        let job = find_job_id(&row.job);
        if job.is_none() {
            let detail = "Choose a job of the list, or enter a job ID, such as job_01k….";
            errors.push(FieldError::new(format!("/depends_on/{index}/job"), detail));
        }
        job.map(|job| DependsOn { job, condition: row.condition })
    };
    filled(rows).filter_map(read).collect()
}

/// Parses lines such as `SEED=7`, without empty lines.
///
/// # Errors
/// A sentence for each line without a name and a `=`.
pub fn parse_lines(text: &str) -> Result<Vec<(String, String)>, Vec<String>> {
    let (mut out, mut errors) = (Vec::new(), Vec::new());
    for (number, line) in (1_u32..).zip(text.lines()) {
        if line.trim().is_empty() {
            continue;
        }
        match line.split_once('=').map(|(name, value)| (name.trim(), value)) {
            Some((name, value)) if !name.is_empty() => out.push((name.to_owned(), value.to_owned())),
            _ => errors.push(format!("Line {number}: expected NAME=value.")),
        }
    }
    if errors.is_empty() { Ok(out) } else { Err(errors) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> String {
        text.to_owned()
    }

    fn pointers(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|error| error.pointer.as_str()).collect()
    }

    #[test]
    fn a_secret_is_a_variable_or_a_file() {
        let mut errors = Vec::new();
        let row = |name: &str, as_file: bool, target: &str| SecretRow {
            name: text(name),
            as_file,
            target: text(target),
        };
        let rows = [row("hf-token", false, " HF_TOKEN "), row("", false, " "), row("key", true, "key.pem")];
        let wanted = |name: &str, env: Option<&str>, file: Option<&str>| SecretUse {
            name: text(name),
            env: env.map(text),
            file: file.map(text),
        };
        assert_eq!(
            secrets(&rows, &mut errors),
            [wanted("hf-token", Some("HF_TOKEN"), None), wanted("key", None, Some("key.pem"))]
        );
        assert!(errors.is_empty());
        let _ = secrets(&[row("", false, ""), row("", true, "x"), row("a", false, "")], &mut errors);
        let _ = secrets(&[row("a", true, "")], &mut errors);
        assert_eq!(pointers(&errors), ["/secrets/0/name", "/secrets/1/env", "/secrets/0/file"]);
    }

    #[test]
    fn a_volume_is_read_only_unless_writable() {
        let mut errors = Vec::new();
        let row = |name: &str, path: &str, writable: bool| VolumeRow {
            name: text(name),
            path: text(path),
            writable,
        };
        let rows = [row("set-1", " /data", false), row("out", "runs", true)];
        let parsed: Vec<(String, String, VolumeMode)> =
            volumes(&rows, &mut errors).into_iter().map(|v| (v.name, v.path, v.mode)).collect();
        let wanted =
            [(text("set-1"), text("/data"), VolumeMode::Ro), (text("out"), text("runs"), VolumeMode::Rw)];
        assert_eq!((parsed.as_slice(), errors.len()), (wanted.as_slice(), 0));
        let _ = volumes(&[VolumeRow::default(), row("a", "", false), row("", "b", false)], &mut errors);
        assert_eq!(pointers(&errors), ["/volumes/0/path", "/volumes/1/name"]);
    }

    #[test]
    fn a_port_is_a_number() {
        let mut errors = Vec::new();
        assert_eq!(ports(&[text("8888"), text(" "), text(" 80 ")], &mut errors), [8_888, 80]);
        assert!(errors.is_empty());
        assert_eq!(ports(&[text("80"), text("http"), text("-1")], &mut errors), [80]);
        assert_eq!(pointers(&errors), ["/ports/1", "/ports/2"]);
    }

    #[test]
    fn a_label_has_a_key_of_its_own() {
        let mut errors = Vec::new();
        let row = |key: &str, value: &str| (text(key), text(value));
        let read = labels(&[row(" project ", " ocr "), row("empty", ""), row("", "")], &mut errors);
        assert_eq!(read, BTreeMap::from([row("empty", ""), row("project", "ocr")]));
        assert!(errors.is_empty());
        let _ = labels(&[row("a/b", "1"), row("a/b", "2"), row("", "x")], &mut errors);
        assert_eq!(pointers(&errors), ["/labels/a~1b", "/labels/"]);
    }

    #[test]
    fn a_dependency_is_an_id_after_any_name() {
        let id = "job_01h455vb4pex5vsknk084sn02q";
        for good in [id, &format!("train job_7 ({id})"), &format!(" {id} ")] {
            assert_eq!(find_job_id(good).map(|job| job.to_string()).as_deref(), Some(id), "{good}");
        }
        let row = |job: &str| DependencyRow { job: text(job), condition: Condition::Finished };
        let mut errors = Vec::new();
        let read = dependencies(&[row(id), row(""), row("train"), row("job_nonsense")], &mut errors);
        assert_eq!(read, [DependsOn { job: id.parse().unwrap(), condition: Condition::Finished }]);
        assert_eq!(pointers(&errors), ["/depends_on/1/job", "/depends_on/2/job"]);
    }

    #[test]
    fn each_wrong_line_has_its_number() {
        let pair = |name: &str, value: &str| (text(name), text(value));
        assert_eq!(
            parse_lines("SEED=7\r\n\n FORMULA = a=b\nEMPTY="),
            Ok(vec![pair("SEED", "7"), pair("FORMULA", " a=b"), pair("EMPTY", "")])
        );
        let wanted = ["Line 2: expected NAME=value.", "Line 4: expected NAME=value."];
        assert_eq!(parse_lines("A=1\nB\n\n=x\n"), Err(wanted.map(text).to_vec()));
    }
}
