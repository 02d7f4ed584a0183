//! Rules for secrets: names, values, and their use in a job. Must not store a value.

use std::collections::HashSet;

use berth_types::jobs::NewJob;

/// True if a text can be the name of an environment variable.
pub fn is_variable(name: &str) -> bool {
    (1..=256).contains(&name.len())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Secrets of one organization.
pub const MAX_SECRETS: usize = 200;
/// Secrets of one job.
pub const MAX_USES: usize = 32;
/// The least number of bytes of a value, without the white space around it. A shorter value occurs in logs by
/// chance, and masking it there would reveal it.
pub const MIN_VALUE: usize = 8;
/// The greatest number of bytes of a value. All secrets of one job together fit into the environment of a
/// process.
pub const MAX_VALUE: usize = 32 << 10;

const NAME_RULE: &str = "A name has up to 64 letters, digits and . _ - and begins with a letter or a digit.";

/// Variables that Berth sets for a job, and variables that the C library reads at the start of a program.
const RESERVED_VARIABLES: [&str; 14] = [
    "PATH",
    "HOME",
    "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICES",
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
/// Prefixes of such variables: those of Berth and of the dynamic loader.
const RESERVED_PREFIXES: [&str; 2] = ["BERTH_", "LD_"];

/// True if a text can be the name of a secret, or of its file.
pub fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))
}

/// Checks a name.
///
/// # Errors
/// A sentence with the rule for names.
pub fn check_name(name: &str) -> Result<(), &'static str> {
    if is_name(name) { Ok(()) } else { Err(NAME_RULE) }
}

/// Checks a value.
///
/// # Errors
/// A sentence with the rule that the value breaks.
pub fn check_value(value: &str) -> Result<(), &'static str> {
    if value.trim().len() < MIN_VALUE {
        return Err(
            "A secret has at least 8 bytes without surrounding white space. A shorter value cannot be masked in logs.",
        );
    }
    if value.len() > MAX_VALUE {
        return Err("A secret has at most 32 KiB.");
    }
    if value.contains('\0') {
        return Err("A secret is text without NUL bytes. Encode binary content in base64.");
    }
    Ok(())
}

/// Reports the faults of a job's secrets that are visible without the database.
pub fn check_uses(job: &NewJob, refuse: &mut impl FnMut(&str, &str)) {
    if job.secrets.len() > MAX_USES {
        refuse("/secrets", "A job has at most 32 secrets.");
        return;
    }
    let (mut variables, mut files) = (HashSet::new(), HashSet::new());
    for (index, secret) in job.secrets.iter().enumerate() {
        let at = |field: &str| format!("/secrets/{index}{field}");
        if !is_name(&secret.name) {
            refuse(&at("/name"), NAME_RULE);
        }
        match (&secret.env, &secret.file) {
            (None, None) | (Some(_), Some(_)) => {
                refuse(&at(""), "Enter either env for a variable, or file for a file in /run/secrets.");
            }
            (Some(env), None) => {
                if !is_variable(env) {
                    refuse(
                        &at("/env"),
                        "The name of a variable has letters, digits and _ and does not begin with a digit.",
                    );
                } else if RESERVED_VARIABLES.contains(&env.as_str())
                    || RESERVED_PREFIXES.iter().any(|prefix| env.starts_with(prefix))
                {
                    refuse(&at("/env"), "This variable is reserved. Choose another.");
                } else if job.env.contains_key(env) || !variables.insert(env) {
                    refuse(&at("/env"), "The job already sets this variable. Remove one of them.");
                }
            }
            (None, Some(file)) => {
                if !is_name(file) {
                    refuse(&at("/file"), NAME_RULE);
                } else if !files.insert(file) {
                    refuse(&at("/file"), "Another secret has this file. Choose another.");
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

    fn secret_use(name: &str, env: Option<&str>, file: Option<&str>) -> SecretUse {
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
            pointers(vec![
                secret_use("hf-token", Some("HF_TOKEN"), None),
                secret_use("hf-token", None, Some("hf"))
            ]),
            [""; 0]
        );
        let cases = [
            (secret_use("../x", Some("A"), None), "/secrets/0/name"),
            (secret_use("x", None, None), "/secrets/0"),
            (secret_use("x", Some("A"), Some("a")), "/secrets/0"),
            (secret_use("x", Some("1A"), None), "/secrets/0/env"),
            (secret_use("x", Some("HOME"), None), "/secrets/0/env"),
            (secret_use("x", Some("BERTH_JOB_ID"), None), "/secrets/0/env"),
            (secret_use("x", Some("LD_PRELOAD"), None), "/secrets/0/env"),
            (secret_use("x", Some("SEED"), None), "/secrets/0/env"),
            (secret_use("x", None, Some(".bashrc")), "/secrets/0/file"),
            (secret_use("x", None, Some("a/b")), "/secrets/0/file"),
        ];
        for (secret, pointer) in cases {
            assert_eq!(pointers(vec![secret]), [pointer]);
        }
        let twice = |secret: SecretUse| pointers(vec![secret.clone(), secret]);
        assert_eq!(twice(secret_use("x", Some("A"), None)), ["/secrets/1/env"]);
        assert_eq!(twice(secret_use("x", None, Some("a"))), ["/secrets/1/file"]);
        assert_eq!(pointers(vec![secret_use("x", None, Some("a")); 33]), ["/secrets"]);
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
