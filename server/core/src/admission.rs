//! Checks of a submission that need no database.

use std::collections::{BTreeMap, HashSet};

use berth_types::jobs::{Network, NewJob, RetryOn, Topology};
use berth_types::money::money_text;
use berth_types::paths::{JOB_PATHS, is_reserved, overlap};
use berth_types::problems::FieldError;

use crate::images::Reference;
use crate::secrets::is_variable;
use crate::volumes::{RESERVED_PATH, find_clash};

/// Limits of one submission.
pub const MAX_NAME_CHARS: usize = 100;
/// Bytes of the slug of an offering.
pub const MAX_SLUG_BYTES: usize = 100;
pub const MAX_FILES: usize = 256;
pub const MAX_FILES_BYTES: usize = 8 << 20;
pub const MAX_SCRIPT_BYTES: usize = 1 << 20;
pub const MAX_ARGS: usize = 1_024;
pub const MAX_ENV: usize = 256;
/// Bytes of the name and the value of one variable of a job in an image.
pub const MAX_IMAGE_ENV_BYTES: usize = 48 << 10;
pub const MAX_LABELS: usize = 32;
pub const MAX_DEPENDENCIES: usize = 32;
pub const MAX_CPUS: u32 = 65_536;
pub const MAX_MEMORY_MIB: u64 = 1 << 30;
pub const MAX_DEVICES: u32 = 64;
pub const MAX_NODES: u32 = 64;
pub const MAX_RETRIES: u32 = 100;
/// The shortest lease that a job may choose. A short failure of the network would end a shorter one.
pub const MIN_LEASE_S: u32 = 60;
pub const MAX_LEASE_S: u32 = 86_400;
/// The longest time in seconds between the stop signal of a preemption and SIGKILL: a job saves its state in
/// it.
pub const MAX_GRACE_S: u32 = 600;
/// Seconds of low utilization after which a job can have itself stopped: ten minutes to a day.
pub const IDLE_S: std::ops::RangeInclusive<u32> = 600..=86_400;
/// Seconds between two checkpoints of a running job.
pub const CHECKPOINT_EVERY_S: std::ops::RangeInclusive<u32> = 5..=86_400;
/// Number of checkpoints kept of a job. At least two, because the job may have been faulty already when it
/// made the newest one.
pub const CHECKPOINTS_KEPT: std::ops::RangeInclusive<u32> = 2..=10;
pub const MAX_PATTERNS: usize = 32;
/// Thirty days.
pub const MAX_DURATION_S: u64 = 30 * 86_400;

/// True for a character without a shape that hides in a line or turns its direction. Joiners are parts of words.
pub const fn is_hidden(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

/// True for a character that nobody sees without others.
fn is_blank(c: char) -> bool {
    c.is_whitespace()
        || is_hidden(c)
        || matches!(
            c,
            '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
                | '\u{200c}' | '\u{200d}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

/// Checks a name for people: one line of 1 to [`MAX_NAME_CHARS`] visible characters, not blank.
pub fn check_name(pointer: &str, name: &str, errors: &mut Vec<FieldError>) {
    let mut refuse = |detail: &str| errors.push(FieldError::new(pointer, detail));
    if name.chars().all(is_blank) {
        refuse("This field is required.");
    } else if name.chars().count() > MAX_NAME_CHARS {
        refuse("Use at most 100 characters.");
    } else if name.chars().any(|c| c.is_control() || is_hidden(c)) {
        refuse("Use printable characters only.");
    }
}

/// The text for an amount outside of a range in micro-units. Fields of requests have micro-units, and the text has the
/// currency.
pub fn amount_text(least: i64, most: i64, currency: &str) -> String {
    format!("Enter {} to {}.", money_text(least, currency), money_text(most, currency))
}

/// True if a text can be one e-mail address, without a display name and without a list.
pub fn is_email(text: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && !"<>()[],;:\\\"".contains(c);
    let parts = text.split_once('@');
    text.len() <= 254
        && text.chars().all(fits)
        && parts.is_some_and(|(user, host)| !user.is_empty() && !host.is_empty() && !host.contains('@'))
}

/// All faults of a submission that are visible without the database.
pub fn check_job(job: &NewJob) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_name("/name", &job.name, &mut errors);
    let mut refuse = |pointer: &str, detail: &str| errors.push(FieldError::new(pointer, detail));
    check_devices(job, &mut refuse);
    check_program(job, &mut refuse);
    check_env(job, &mut refuse);
    crate::secrets::check_uses(job, &mut refuse);
    crate::ports::check(&job.ports, &mut refuse);
    crate::volumes::check_uses(job, &mut refuse);
    if job.files.len() > MAX_FILES || job.files.values().map(String::len).sum::<usize>() > MAX_FILES_BYTES {
        refuse("/files", "A job has at most 256 files and 8 MiB in all.");
    } else {
        check_files(job, &mut refuse);
    }
    check_host(job, &mut refuse);
    if job.topology == Topology::SameNode && job.nodes > 1 {
        refuse("/topology", "Several nodes cannot be the same node. Choose one node, or same_switch.");
    }
    if job.network == Network::None && job.nodes > 1 {
        refuse("/network", "The ranks of a job on several nodes need the network. Choose outbound.");
    }
    if job.rdma && job.network == Network::None {
        refuse("/rdma", "RDMA is a network. Choose the network outbound, or omit rdma.");
    }
    if job.rdma && job.gpu_milli.is_some() {
        refuse("/rdma", "RDMA needs all boards of a node, not a share. Omit gpu_milli or rdma.");
    }
    check_retry(job, &mut refuse);
    check_kept_files(job, &mut refuse);
    check_idle(job, &mut refuse);
    check_image(job, &mut refuse);
    if job.lease_s.is_some_and(|s| !(MIN_LEASE_S..=MAX_LEASE_S).contains(&s)) {
        refuse("/lease_s", "Enter 60 to 86400 seconds (a day), or omit the field.");
    }
    if job.depends_on.len() > MAX_DEPENDENCIES {
        refuse("/depends_on", "A job depends on at most 32 jobs.");
    }
    check_labels(job, &mut refuse);
    errors
}

/// Checks the offering, the number of devices and the time limit.
fn check_devices(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.offering.is_empty() || job.offering.len() > MAX_SLUG_BYTES {
        refuse(
            "/offering",
            "Enter an offering, such as h100-80gb.1g.10gb. GET /api/v1/offerings lists them.",
        );
    }
    if job.count == 0 || job.count > MAX_DEVICES {
        refuse("/count", "Enter 1 to 64 devices per node.");
    }
    if job.nodes == 0 || job.nodes > MAX_NODES {
        refuse("/nodes", "Enter 1 to 64 nodes.");
    }
    if job.max_duration_s == 0 || job.max_duration_s > MAX_DURATION_S {
        refuse("/max_duration_s", "Enter 1 to 2592000 seconds (30 days).");
    }
}

/// Checks that there is a command or a script, and not both.
fn check_program(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    match (&job.command, &job.script) {
        (Some(_), Some(_)) => refuse("/script", "Enter a command or a script, not both."),
        (None, None) => refuse("/command", "Enter a command or a script."),
        (Some(command), None) => check_command(command, refuse),
        (None, Some(script)) => {
            if script.trim().is_empty() {
                refuse("/script", "The script is empty.");
            } else if script.len() > MAX_SCRIPT_BYTES {
                refuse("/script", "A script has at most 1 MiB. Put larger content into files.");
            } else if script.contains('\0') {
                refuse("/script", "A script cannot contain NUL bytes.");
            }
        }
    }
}

fn check_env(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.env.len() > MAX_ENV {
        refuse("/env", "A job has at most 256 variables.");
        return;
    }
    for (key, value) in &job.env {
        if !is_variable(key) {
            refuse(
                &pointer_to("/env", key),
                "The name of a variable has letters, digits and _ and does not begin with a digit.",
            );
        } else if value.contains('\0') || value.len() > 128 << 10 {
            refuse(&pointer_to("/env", key), "A value has at most 128 KiB and no NUL bytes.");
        }
    }
}

/// Checks processors, memory and the share of a board.
fn check_host(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.cpus.is_some_and(|n| n == 0 || n > MAX_CPUS) {
        refuse("/cpus", "Enter 1 to 65536 processors, or omit the field.");
    }
    if job.memory_mib.is_some_and(|n| n == 0 || n > MAX_MEMORY_MIB) {
        refuse("/memory_mib", "Enter 1 MiB to 1 PiB, or omit the field.");
    }
    if let Some(milli) = job.gpu_milli {
        if milli == 0 || milli > 999 {
            refuse("/gpu_milli", "Enter 1 to 999 thousandths of a board. Omit the field for a whole board.");
        } else if job.count != 1 || job.nodes != 1 {
            refuse("/gpu_milli", "A share is a part of one board on one node. Set count and nodes to 1.");
        }
    }
}

fn check_labels(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.labels.len() > MAX_LABELS {
        refuse("/labels", "A job has at most 32 labels.");
        return;
    }
    for (key, value) in &job.labels {
        if key.is_empty()
            || key.len() > 63
            || value.len() > 63
            || (key.clone() + value).chars().any(char::is_control)
        {
            refuse(
                &pointer_to("/labels", key),
                "The key and the value of a label have at most 63 printable characters.",
            );
        } else if key.contains('=') {
            // A filter has the label as `key=value`.
            refuse(&pointer_to("/labels", key), "The key of a label has no =.");
        }
    }
}

/// Checks the rules for retries.
fn check_retry(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    let Some(retry) = &job.retry else { return };
    if retry.max > MAX_RETRIES {
        refuse("/retry/max", "Enter at most 100 retries.");
    }
    let kinds: HashSet<&RetryOn> = retry.on.iter().collect();
    if kinds.is_empty() || kinds.len() < retry.on.len() {
        refuse("/retry/on", "Enter one or more of node_lost, preempted and exit, each at most once.");
    }
}

/// Checks the paths of the job's own files.
fn check_files(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    for path in job.files.keys() {
        if let Err(detail) = JOB_PATHS.check(path) {
            refuse(&pointer_to("/files", path), &detail);
        } else if is_reserved(path) {
            refuse(&pointer_to("/files", path), RESERVED_PATH);
        }
    }
    let counted: BTreeMap<&str, usize> = job.files.keys().map(|path| (path.as_str(), 1)).collect();
    if let Some(path) = find_clash(&counted) {
        let detail = "This path is a file, so no other file can be below it. Rename one of them.";
        refuse(&pointer_to("/files", path), detail);
    }
}

/// Checks the path of the checkpoint directory.
fn check_checkpoint_dir(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    let Some(dir) = job.checkpoint.as_ref().and_then(|checkpoint| checkpoint.dir.as_deref()) else { return };
    // Files of the job may be inside the directory: a restored checkpoint replaces them.
    let is_file = |path: &String| overlap(path, dir) && path.len() <= dir.len();
    if let Err(detail) = JOB_PATHS.check(dir) {
        refuse("/checkpoint/dir", &detail);
    } else if is_reserved(dir) {
        refuse("/checkpoint/dir", RESERVED_PATH);
    } else if let Some(file) = job.files.keys().find(|path| is_file(path)) {
        let detail =
            format!("{file} is a file of the job, so it cannot be a directory. Choose another directory.");
        refuse("/checkpoint/dir", &detail);
    }
}

/// Checks the files that are kept: checkpoints and artifacts.
fn check_kept_files(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if let Some(checkpoint) = &job.checkpoint {
        if checkpoint.grace_s == 0 || checkpoint.grace_s > MAX_GRACE_S {
            refuse("/checkpoint/grace_s", "Enter 1 to 600 seconds.");
        }
        check_checkpoint_dir(job, refuse);
        if checkpoint.dir.is_none() && (checkpoint.every_s.is_some() || checkpoint.keep.is_some()) {
            refuse("/checkpoint/dir", "Enter the checkpoint directory.");
        }
        if checkpoint.every_s.is_some_and(|s| !CHECKPOINT_EVERY_S.contains(&s)) {
            refuse("/checkpoint/every_s", "Enter 5 to 86400 seconds (a day).");
        }
        if checkpoint.keep.is_some_and(|n| !CHECKPOINTS_KEPT.contains(&n)) {
            refuse("/checkpoint/keep", "Enter 2 to 10 checkpoints.");
        }
    }
    if job.artifacts.len() > MAX_PATTERNS {
        refuse("/artifacts", "A job has at most 32 patterns.");
        return;
    }
    for (index, pattern) in job.artifacts.iter().enumerate() {
        if let Err(detail) = JOB_PATHS.check(pattern) {
            refuse(&format!("/artifacts/{index}"), &detail);
        }
    }
}

fn check_image(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if let Some(registry) = &job.registry
        && let Err(detail) = crate::secrets::check_name(&registry.secret)
    {
        refuse("/registry/secret", detail);
    }
    let Some(image) = &job.image else {
        if job.registry.is_some() {
            refuse(
                "/registry",
                "Credentials of a registry need an image. Enter an image, or omit the field.",
            );
        }
        return;
    };
    match Reference::parse(image) {
        Err(detail) => refuse("/image", detail),
        Ok(image) if image.is_local() && job.registry.is_some() => {
            refuse("/registry", "An image of localhost is never pulled. Omit the field.");
        }
        Ok(_) => {}
    }
    for (key, value) in job.env.iter().take(MAX_ENV) {
        if value.contains(['\n', '\r']) || key.len() + value.len() > MAX_IMAGE_ENV_BYTES {
            refuse(
                &pointer_to("/env", key),
                "A variable of a job in an image has at most 48 KiB and no line breaks. Put longer values into files.",
            );
        }
    }
}

fn check_idle(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    let Some(idle) = job.stop_when_idle else { return };
    if !(1..=100).contains(&idle.below_percent) {
        refuse("/stop_when_idle/below_percent", "Enter 1 to 100 percent.");
    }
    if !IDLE_S.contains(&idle.for_s) {
        refuse("/stop_when_idle/for_s", "Enter 600 to 86400 seconds (10 minutes to a day).");
    }
    if job.gpu_milli.is_some() {
        refuse(
            "/stop_when_idle",
            "The driver reports the utilization of whole boards and slices, not of shares. Omit the field, or choose a slice or a whole board.",
        );
    }
}

fn check_command(command: &[String], refuse: &mut impl FnMut(&str, &str)) {
    if command.first().is_none_or(|program| program.trim().is_empty()) {
        refuse("/command/0", "Enter the program as the first entry.");
    }
    if command.len() > MAX_ARGS || command.iter().map(String::len).sum::<usize>() > 512 << 10 {
        refuse("/command", "A command has at most 1024 arguments and 512 KiB in all.");
    }
    if let Some(i) = command.iter().position(|arg| arg.contains('\0')) {
        refuse(&format!("/command/{i}"), "An argument cannot contain NUL bytes.");
    }
}

/// A JSON pointer to `key` below `base`, with the escapes of RFC 6901. A long key is cut to 80 characters.
fn pointer_to(base: &str, key: &str) -> String {
    let key: String = key.chars().take(80).collect();
    format!("{base}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod submissions;

#[cfg(test)]
mod tests;
