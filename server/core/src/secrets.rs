//! What a secret may be called and hold, and how a job may ask for one. Must not keep a value.

use std::collections::HashSet;

use berth_types::jobs::NewJob;

use crate::admission::is_variable;

/// Secrets of one organization.
pub const MAX_SECRETS: usize = 200;
/// Secrets of one job.
pub const MAX_USES: usize = 32;
/// Bytes, without white space around them. What is shorter occurs in a log by chance, and masking it would
/// give it away.
pub const MIN_VALUE: usize = 8;
/// Bytes. All that a job can ask for fits into the environment of a process.
pub const MAX_VALUE: usize = 32 << 10;

const NAMED: &str = "A name has up to 64 letters, digits and . _ - and begins with a letter or a digit.";

/// Variables that say how a job was started, and those that the C library reads before it begins.
const FIXED: [&str; 15] = [
    "PATH",
    "HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "GCONV_PATH",
    "GETCONF_DIR",
    "GLIBC_TUNABLES",
    "HOSTALIASES",
    "LOCALDOMAIN",
    "LOCPATH",
    "NLSPATH",
    "RESOLV_HOST_CONF",
    "RES_OPTIONS",
    "TZDIR",
];
/// Beginnings of such names: Berth's own, and the loader's.
const FIXED_FAMILIES: [&str; 2] = ["BERTH_", "LD_"];

/// Whether a text can be the name of a secret, or of its file.
pub fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// What is wrong with a name.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if is_name(name) { Ok(()) } else { Err(NAMED) }
}

/// What is wrong with a value.
pub fn check_value(value: &str) -> Result<(), &'static str> {
    if value.trim().len() < MIN_VALUE {
        return Err(
            "A secret has at least 8 bytes, white space around it not counted: a shorter one would be found in logs by chance, so it could not be masked there.",
        );
    }
    if value.len() > MAX_VALUE {
        return Err("A secret has at most 32 KiB.");
    }
    if value.contains('\0') {
        return Err("A secret is text without NUL bytes; put anything else into base64.");
    }
    Ok(())
}

/// Faults of how a job asks for secrets, as far as they can be seen without looking one up.
pub fn check_uses(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.secrets.len() > MAX_USES {
        refuse("/secrets", "A job is given at most 32 secrets.");
        return;
    }
    let (mut variables, mut files) = (HashSet::new(), HashSet::new());
    for (index, wanted) in job.secrets.iter().enumerate() {
        let at = |field: &str| format!("/secrets/{index}{field}");
        if !is_name(&wanted.name) {
            refuse(&at("/name"), NAMED);
        }
        match (&wanted.env, &wanted.file) {
            (None, None) | (Some(_), Some(_)) => {
                refuse(
                    &at(""),
                    "Say how the job finds it: env names a variable, or file a file in /run/secrets.",
                );
            }
            (Some(env), None) => {
                if !is_variable(env) {
                    refuse(
                        &at("/env"),
                        "A variable's name has letters, digits and _ and does not start with a digit.",
                    );
                } else if FIXED.contains(&env.as_str())
                    || FIXED_FAMILIES.iter().any(|family| env.starts_with(family))
                {
                    refuse(&at("/env"), "This variable is not the job's own; choose another.");
                } else if job.env.contains_key(env) || !variables.insert(env) {
                    refuse(&at("/env"), "The job sets this variable already; keep one of them.");
                }
            }
            (None, Some(file)) => {
                if !is_name(file) {
                    refuse(&at("/file"), NAMED);
                } else if !files.insert(file) {
                    refuse(&at("/file"), "Another secret is in this file already; keep one of them.");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::secrets::SecretUse;
    use proptest::prelude::*;

    fn wants(name: &str, env: Option<&str>, file: Option<&str>) -> SecretUse {
        SecretUse { name: name.to_owned(), env: env.map(str::to_owned), file: file.map(str::to_owned) }
    }

    fn pointers(secrets: Vec<SecretUse>) -> Vec<String> {
        let env = [("SEED".to_owned(), "7".to_owned())].into();
        let mut out = Vec::new();
        check_uses(&NewJob { secrets, env, ..NewJob::default() }, &mut |at: &str, _: &str| {
            out.push(at.to_owned());
        });
        out
    }

    #[test]
    fn values_are_long_enough_to_be_masked() {
        for good in ["12345678", " \n12345678\n", &"x".repeat(MAX_VALUE), "\u{fc}\u{fc}\u{fc}\u{fc}"] {
            assert_eq!(check_value(good), Ok(()), "{good}");
        }
        for bad in ["", "1234567", "1234567     ", "12345678\0", &"x".repeat(MAX_VALUE + 1)] {
            assert!(check_value(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(
            pointers(vec![wants("hf-token", Some("HF_TOKEN"), None), wants("hf-token", None, Some("hf"))]),
            [""; 0]
        );
        let cases = [
            (wants("../x", Some("A"), None), "/secrets/0/name"),
            (wants("x", None, None), "/secrets/0"),
            (wants("x", Some("A"), Some("a")), "/secrets/0"),
            (wants("x", Some("1A"), None), "/secrets/0/env"),
            (wants("x", Some("HOME"), None), "/secrets/0/env"),
            (wants("x", Some("BERTH_JOB_ID"), None), "/secrets/0/env"),
            (wants("x", Some("LD_PRELOAD"), None), "/secrets/0/env"),
            (wants("x", Some("SEED"), None), "/secrets/0/env"),
            (wants("x", None, Some(".bashrc")), "/secrets/0/file"),
            (wants("x", None, Some("a/b")), "/secrets/0/file"),
        ];
        for (wanted, pointer) in cases {
            assert_eq!(pointers(vec![wanted]), [pointer]);
        }
        let twice = |wanted: SecretUse| pointers(vec![wanted.clone(), wanted]);
        assert_eq!(twice(wants("x", Some("A"), None)), ["/secrets/1/env"]);
        assert_eq!(twice(wants("x", None, Some("a"))), ["/secrets/1/file"]);
        assert_eq!(pointers(vec![wants("x", None, Some("a")); 33]), ["/secrets"]);
    }

    proptest! {
        #[test]
        fn a_name_is_always_one_plain_part_of_a_path(name in ".{0,70}") {
            if is_name(&name) {
                let parts: Vec<_> = std::path::Path::new(&name).components().collect();
                prop_assert!(matches!(parts.as_slice(), [std::path::Component::Normal(_)]));
            }
        }
    }
}
