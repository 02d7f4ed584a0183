//! Templates of jobs: the built-in ones, and the files of the operator's directory.
//!
//! The portal reads the directory at its start and at each SIGHUP. The log names each invalid file with its reason.

pub mod routes;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use berth_core::admission::check_job;
use berth_types::templates::{JobTemplate, JobTemplates};
use serde::Deserialize;
use serde_json::Value;

/// Name and text of each built-in template, in the order of the launch form.
const BUILT_IN: [(&str, &str); 4] = [
    ("notebook", include_str!("templates/notebook.json")),
    ("training", include_str!("templates/training.json")),
    ("shell", include_str!("templates/shell.json")),
    ("server", include_str!("templates/server.json")),
];

/// Files of the directory.
const MAX_FILES: usize = 100;
/// Bytes of a file.
const MAX_FILE_BYTES: usize = 64 << 10;
/// Bytes of all files: each launch form loads all templates.
const MAX_BYTES: usize = 1 << 20;
const MAX_NAME_BYTES: usize = 63;
const MAX_TITLE_CHARS: usize = 40;
const MAX_DESCRIPTION_CHARS: usize = 300;

/// The content of a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TemplateFile {
    title: String,
    #[serde(default)]
    description: String,
    job: BTreeMap<String, Value>,
}

/// A file that is no template.
#[derive(Debug, PartialEq, Eq)]
struct Refusal {
    file: String,
    /// A sentence.
    reason: String,
}

/// True for lower-case letters, digits and hyphens, without a hyphen at the begin.
fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(fits) && !name.starts_with('-')
}

fn is_printable(text: &str, max_chars: usize) -> bool {
    text.chars().count() <= max_chars && !text.chars().any(char::is_control)
}

/// The message of a JSON error without the position in a text that the operator does not have.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

/// Parses a template. The error is a sentence.
fn parse(name: &str, text: &str) -> Result<JobTemplate, String> {
    if !is_name(name) {
        return Err(
            "The name of the file has lower-case letters, digits and hyphens, at most 63 bytes, before \
                    .json."
                .to_owned(),
        );
    }
    let file: TemplateFile = serde_json::from_str(text).map_err(|e| format!("The JSON is invalid: {e}."))?;
    let TemplateFile { title, description, job } = file;
    if title.trim().is_empty() || !is_printable(&title, MAX_TITLE_CHARS) {
        return Err("/title: Enter 1 to 40 printable characters.".to_owned());
    }
    if !is_printable(&description, MAX_DESCRIPTION_CHARS) {
        return Err("/description: Enter at most 300 printable characters.".to_owned());
    }
    for field in ["reservation", "depends_on"] {
        if job.contains_key(field) {
            return Err(format!("/job/{field}: Omit the field, which names an object of one organization."));
        }
    }
    let template = JobTemplate { name: name.to_owned(), title, description, job };
    // An absent offering comes from the form.
    let submission = template.submission("any").map_err(|e| format!("/job: {}.", without_position(&e)))?;
    match check_job(&submission).first() {
        None => Ok(template),
        Some(error) => Err(format!("/job{}: {}", error.pointer, error.detail)),
    }
}

/// Reads a file of at most [`MAX_FILE_BYTES`]. The error is a sentence.
fn read_file(path: &Path) -> Result<String, String> {
    let unreadable = |e: std::io::Error| format!("The file cannot be read: {e}.");
    // The opening of a pipe would wait for its other end.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("This is no file.".to_owned());
    }
    let mut bytes = Vec::new();
    let limit = MAX_FILE_BYTES as u64 + 1;
    File::open(path).map_err(unreadable)?.take(limit).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > MAX_FILE_BYTES {
        return Err("The file has more than 64 KiB.".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "The file is not text in UTF-8.".to_owned())
}

/// Lists the JSON files of a directory by name.
fn list_files(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Adds a template, in the place of one with the same name.
fn put(templates: &mut Vec<JobTemplate>, template: JobTemplate) {
    match templates.iter_mut().find(|known| known.name == template.name) {
        Some(known) => *known = template,
        None => templates.push(template),
    }
}

/// Adds the templates of a directory. Returns the refused files.
///
/// # Errors
/// The directory cannot be read.
fn add_directory(templates: &mut Vec<JobTemplate>, directory: &Path) -> std::io::Result<Vec<Refusal>> {
    let refusal = |path: &Path, reason: String| Refusal { file: path.display().to_string(), reason };
    let files = list_files(directory)?;
    let (mut refused, mut total_bytes) = (Vec::new(), 0_usize);
    for path in files.iter().take(MAX_FILES) {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let read = read_file(path).and_then(|text| {
            if total_bytes.saturating_add(text.len()) > MAX_BYTES {
                return Err("The files have more than 1 MiB in all.".to_owned());
            }
            let template = parse(&name, &text)?;
            total_bytes = total_bytes.saturating_add(text.len());
            Ok(template)
        });
        match read {
            Ok(template) => put(templates, template),
            Err(reason) => refused.push(refusal(path, reason)),
        }
    }
    let over = files.len().saturating_sub(MAX_FILES);
    if over > 0 {
        let reason =
            format!("The directory has more than 100 templates. The last {over} by name are left out.");
        refused.push(refusal(directory, reason));
    }
    Ok(refused)
}

/// Reads all templates, and the refused files.
///
/// # Errors
/// The directory cannot be read.
fn read_all(directory: Option<&Path>) -> std::io::Result<(JobTemplates, Vec<Refusal>)> {
    let mut templates = Vec::new();
    let mut refused = Vec::new();
    for (name, text) in BUILT_IN {
        match parse(name, text) {
            Ok(template) => templates.push(template),
            Err(reason) => refused.push(Refusal { file: name.to_owned(), reason }),
        }
    }
    if let Some(directory) = directory {
        refused.extend(add_directory(&mut templates, directory)?);
    }
    Ok((JobTemplates { templates }, refused))
}

/// The templates in memory.
#[derive(Clone)]
pub struct Templates {
    directory: Option<Arc<Path>>,
    current: Arc<RwLock<Arc<JobTemplates>>>,
}

impl Templates {
    /// Reads the built-in templates and those of a directory.
    pub fn new(directory: Option<&Path>) -> Self {
        let new = Self { directory: directory.map(Arc::from), current: Arc::default() };
        if !new.reload()
            && let Ok((built_in, _)) = read_all(None)
        {
            new.replace(built_in);
        }
        new
    }

    /// True for templates of a directory, which may change.
    pub fn can_change(&self) -> bool {
        self.directory.is_some()
    }

    /// Reads all templates again. Blocks on the disk. If the directory cannot be read, the present templates stay and
    /// the result is false.
    pub fn reload(&self) -> bool {
        match read_all(self.directory.as_deref()) {
            Ok((templates, refused)) => {
                for Refusal { file, reason } in refused {
                    tracing::warn!(file, reason, "the launch form does not offer this template");
                }
                self.replace(templates);
                true
            }
            Err(error) => {
                tracing::error!(%error, "the directory of templates cannot be read; the launch form keeps its templates");
                false
            }
        }
    }

    fn replace(&self, templates: JobTemplates) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(templates);
    }

    fn list(&self) -> Arc<JobTemplates> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(job: &str) -> String {
        format!(r#"{{"title": "Sweep", "description": "Many runs.", "job": {job}}}"#)
    }

    fn reason(name: &str, text: &str) -> String {
        parse(name, text).unwrap_err()
    }

    #[test]
    fn each_built_in_template_is_a_valid_submission() {
        let (templates, refused) = read_all(None).unwrap();
        assert!(refused.is_empty(), "{refused:?}");
        let names: Vec<&str> = templates.templates.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["notebook", "training", "shell", "server"]);
    }

    #[test]
    fn the_reason_of_a_refusal_names_the_field() {
        let good = r#"{"command": ["true"]}"#;
        assert_eq!(parse("sweep-2", &file(good)).unwrap().title, "Sweep");
        let long = "a".repeat(64);
        for name in ["", "Sweep", "a b", "-a", long.as_str()] {
            assert!(reason(name, &file(good)).starts_with("The name of the file"), "{name}");
        }
        for (text, begin) in [
            ("{", "The JSON is invalid: "),
            ("[]", "The JSON is invalid: "),
            (r#"{"title": "Sweep"}"#, "The JSON is invalid: missing field `job`"),
            (r#"{"title": "Sweep", "org": "lab", "job": {}}"#, "The JSON is invalid: unknown field `org`"),
            (r#"{"title": " ", "job": {"command": ["true"]}}"#, "/title: "),
            (r#"{"title": "a\nb", "job": {"command": ["true"]}}"#, "/title: "),
            (r#"{"title": "a", "description": "\u0007", "job": {"command": ["true"]}}"#, "/description: "),
        ] {
            assert!(reason("sweep", text).starts_with(begin), "{text}: {}", reason("sweep", text));
        }
        for (job, begin) in [
            ("{}", "/job/command: "),
            (r#"{"command": ["true"], "gpus": 1}"#, "/job: unknown field `gpus`"),
            (r#"{"command": ["true"], "count": 65}"#, "/job/count: "),
            (r#"{"command": ["true"], "ports": ["http"]}"#, "/job: "),
            (r#"{"command": ["true"], "depends_on": []}"#, "/job/depends_on: "),
            (r#"{"command": ["true"], "reservation": null}"#, "/job/reservation: "),
        ] {
            let reason = reason("sweep", &file(job));
            assert!(reason.starts_with(begin) && !reason.contains("at line"), "{job}: {reason}");
        }
        let long = format!(r#"{{"title": "{}", "job": {good}}}"#, "a".repeat(41));
        assert!(reason("sweep", &long).starts_with("/title: "));
    }

    #[test]
    fn a_directory_has_limits() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let read = || {
            let (templates, refused) = read_all(Some(dir.path())).unwrap();
            let reasons: Vec<String> = refused.into_iter().map(|one| one.reason).collect();
            (templates.templates, reasons)
        };
        let good = file(r#"{"command": ["true"]}"#);
        write("notes.txt", "no template");
        write("shell.json", &good);
        let (templates, reasons) = read();
        assert_eq!((templates.len(), reasons.len()), (4, 0), "the file replaces a built-in template");
        assert_eq!(templates.iter().find(|one| one.name == "shell").unwrap().title, "Sweep");

        let padded = |bytes: usize| format!("{good}{}", " ".repeat(bytes - good.len()));
        write("large.json", &padded(MAX_FILE_BYTES + 1));
        std::fs::create_dir(dir.path().join("folder.json")).unwrap();
        std::fs::write(dir.path().join("binary.json"), [0xff, 0xfe]).unwrap();
        let wanted = ["The file is not text in UTF-8.", "This is no file.", "The file has more than 64 KiB."];
        assert_eq!(read().1, wanted);

        for name in ["large.json", "binary.json"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        std::fs::remove_dir(dir.path().join("folder.json")).unwrap();
        for number in 0..17 {
            write(&format!("a-{number:03}.json"), &padded(MAX_FILE_BYTES));
        }
        let (templates, reasons) = read();
        assert_eq!(templates.len(), 4 + 16, "16 files of 64 KiB are 1 MiB");
        assert_eq!(reasons, ["The files have more than 1 MiB in all."; 2]);

        for number in 0..101 {
            write(&format!("a-{number:03}.json"), &good);
        }
        let (templates, reasons) = read();
        assert_eq!(templates.len(), 4 + MAX_FILES);
        assert_eq!(reasons.len(), 1);
        assert!(reasons[0].contains("The last 2 by name"), "{reasons:?}");
    }

    #[test]
    fn a_directory_that_cannot_be_read_changes_no_template() {
        let dir = tempfile::tempdir().unwrap();
        let (path, moved) = (dir.path().join("templates"), dir.path().join("moved"));
        assert_eq!(Templates::new(Some(&path)).list().templates.len(), 4, "the built-in ones");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("sweep.json"), file(r#"{"command": ["true"]}"#)).unwrap();
        let templates = Templates::new(Some(&path));
        assert_eq!(templates.list().templates.len(), 5);
        std::fs::rename(&path, &moved).unwrap();
        assert!(!templates.reload());
        assert_eq!(templates.list().templates.len(), 5);
        std::fs::rename(&moved, &path).unwrap();
        std::fs::remove_file(path.join("sweep.json")).unwrap();
        assert!(templates.reload());
        assert_eq!(templates.list().templates.len(), 4);
    }
}
