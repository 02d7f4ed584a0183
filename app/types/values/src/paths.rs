//! Limits of kept files and their paths, shared by the portal and its workers.

/// The maximum number of files, directories and links in a checkpoint.
pub const CHECKPOINT_ENTRIES: usize = 100_000;
/// The maximum number of artifacts of one attempt.
pub const ATTEMPT_ARTIFACTS: usize = 1_000;
/// The maximum number of artifacts of one job.
pub const JOB_ARTIFACTS: usize = 10_000;
/// The maximum number of entries in the directories that the patterns of artifacts reach.
pub const REACHED_ENTRIES: usize = 1_000_000;
/// The maximum number of these directories.
pub const REACHED_DIRECTORIES: usize = 100_000;
/// The maximum number of files in one volume.
pub const VOLUME_FILES: usize = 10_000;
/// The maximum number of bytes of one name in a path.
pub const NAME_BYTES: usize = 255;
/// The maximum number of characters in a note about paths left out.
pub const NOTE_CHARS: usize = 1_000;
/// The maximum number of names in such a note.
pub const NOTE_NAMES: usize = 3;
/// The maximum number of characters of each name.
pub const NOTE_NAME_CHARS: usize = 60;

/// The worker's file for the script in a job's directory.
pub const SCRIPT: &str = ".berth-script";
/// The worker's directory for volumes in a job's directory, used without a sandbox.
pub const ROOT_VOLUMES: &str = ".volumes";

/// The limits of paths in one location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathRules {
    /// The maximum number of bytes in a path.
    pub bytes: usize,
    /// The maximum number of names in a path.
    pub parts: usize,
}

/// The limits of paths in a job's directory: submitted files, checkpoints and artifacts.
pub const JOB_PATHS: PathRules = PathRules { bytes: 512, parts: 128 };
/// The limits of paths in a volume.
pub const VOLUME_PATHS: PathRules = PathRules { bytes: 1_024, parts: 64 };

impl PathRules {
    /// Checks a relative path of plain names.
    ///
    /// # Errors
    /// Returns a sentence about the first fault.
    pub fn check(&self, path: &str) -> Result<(), String> {
        if path.is_empty() || path.len() > self.bytes {
            return Err(format!("A path has 1 to {} bytes.", self.bytes));
        }
        if path.contains('\\') || path.chars().any(char::is_control) {
            return Err("A path has printable characters without \\, with / between its parts.".to_owned());
        }
        if path.split('/').count() > self.parts {
            return Err(format!("A path has at most {} parts.", self.parts));
        }
        let plain = |part: &str| !matches!(part, "" | "." | "..") && part.len() <= NAME_BYTES;
        if !path.split('/').all(plain) {
            return Err(format!(
                "Enter a relative path inside the directory: without a leading /, without . or .. as a part, and with at most {NAME_BYTES} bytes for each part."
            ));
        }
        Ok(())
    }
}

/// Returns true if the worker uses this path of a job's directory, or a path above it, for its own files.
pub fn is_reserved(path: &str) -> bool {
    let first = path.split('/').next().unwrap_or_default();
    first == SCRIPT || first == ROOT_VOLUMES
}

/// Returns true if the paths are equal or one is inside the other.
pub fn overlap(one: &str, other: &str) -> bool {
    let inside =
        |a: &str, b: &str| a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    inside(one, other) || inside(other, one)
}

/// The count of paths left out, with the first few names, escaped and shortened.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LeftOut {
    pub count: u64,
    names: Vec<String>,
}

impl LeftOut {
    /// Adds a path of any bytes.
    pub fn add(&mut self, path: &[u8]) {
        self.count += 1;
        if self.names.len() < NOTE_NAMES {
            self.names.push(escaped(path));
        }
    }

    /// Returns a sentence with the count, `rule` (such as "only files are kept") and the names; empty for no
    /// path.
    pub fn note(&self, rule: &str) -> String {
        if self.count == 0 {
            return String::new();
        }
        let more = if self.count > self.names.len() as u64 { ", …" } else { "" };
        format!("{} not kept: {rule}: {}{more}.", self.count, self.names.join(", "))
    }
}

/// Formats a path for people: unprintable characters are escaped, and a long path is cut.
fn escaped(path: &[u8]) -> String {
    let mut out = String::new();
    // A character has at most four bytes, so this prefix has at least `NOTE_NAME_CHARS` characters.
    for chunk in path.get(..path.len().min(4 * NOTE_NAME_CHARS)).unwrap_or_default().utf8_chunks() {
        out.extend(chunk.valid().chars().flat_map(char::escape_debug));
        out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    match out.char_indices().nth(NOTE_NAME_CHARS) {
        Some((end, _)) => format!("\"{}…\"", out.get(..end).unwrap_or_default()),
        None => format!("\"{out}\""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn paths_stay_inside_and_within_the_limits() {
        let deep = |parts: usize| vec!["x"; parts].join("/");
        for rules in [JOB_PATHS, VOLUME_PATHS] {
            let long = format!("{}x", "yyy/".repeat(rules.bytes / 4));
            for bad in [
                "",
                "/a",
                "../a",
                "a/../b",
                "a//b",
                "a/",
                ".",
                "./a",
                "a\0b",
                "a\nb",
                "a\\b",
                &deep(rules.parts + 1),
                &"x".repeat(256),
                &long,
            ] {
                assert!(rules.check(bad).is_err(), "{bad:?}");
            }
            let y = "y".repeat(255);
            for good in ["a", "a b/ü.bin", "..a/b", &deep(rules.parts), &format!("{y}/{y}")] {
                assert_eq!(rules.check(good), Ok(()), "{good:?}");
            }
        }
    }

    #[test]
    fn what_is_left_out_is_counted_and_few_are_named() {
        let mut out = LeftOut::default();
        assert_eq!(out.note("x"), "");
        out.add(b"out/\xff\n\"");
        assert_eq!(out.note("odd"), "1 not kept: odd: \"out/\\xff\\n\\\"\".");
        out.add("ü/\u{202e}".as_bytes());
        out.add(&[0xff; 5_000]);
        out.add(b"d");
        let note = out.note("odd");
        assert!(note.starts_with("4 not kept: odd: ") && note.ends_with("…\", …."), "{note}");
        assert!(note.contains("\"ü/\\u{202e}\"") && note.chars().count() < NOTE_CHARS, "{note}");
    }

    #[test]
    fn names_of_the_worker_are_known() {
        for (path, reserved) in
            [(".berth-script", true), (".volumes/data", true), ("a/.berth-script", false), (".berth", false)]
        {
            assert_eq!(is_reserved(path), reserved, "{path}");
        }
        assert!(overlap("a", "a/b") && overlap("a/b", "a") && overlap("a", "a") && !overlap("a", "ab"));
    }

    proptest! {
        #[test]
        fn an_accepted_path_never_leaves_its_directory(path in ".{0,40}") {
            if JOB_PATHS.check(&path).is_ok() {
                let mut parts = std::path::Path::new(&path).components();
                prop_assert!(parts.all(|part| matches!(part, std::path::Component::Normal(_))));
            }
        }

        #[test]
        fn a_note_is_printable_and_short(paths in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..600), 0..9)) {
            let mut out = LeftOut::default();
            paths.iter().for_each(|path| out.add(path));
            let note = out.note("only files are kept");
            prop_assert!(!note.chars().any(char::is_control) && note.chars().count() <= NOTE_CHARS);
        }
    }
}
