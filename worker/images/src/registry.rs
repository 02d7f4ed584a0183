//! Credentials for registries, in a file for podman: in the attempt's directory, readable by the worker only, removed
//! after the pull.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use berth_proto::RegistryAuth;
use serde_json::{Map, Value, json};

/// The file in the attempt's directory.
pub const AUTH: &str = "registry.json";

/// The content of the file: the operator's credentials, replaced by the job's for the same registry and its repositories.
fn contents(operator: Option<&str>, own: Option<&RegistryAuth>) -> io::Result<Value> {
    let mut auths = match operator.map(serde_json::from_str::<Value>).transpose().map_err(io::Error::other)? {
        None => Map::new(),
        Some(mut file) => match file.get_mut("auths").map(Value::take) {
            Some(Value::Object(auths)) => auths,
            _ => Map::new(),
        },
    };
    if let Some(own) = own {
        let auth = BASE64_STANDARD.encode(format!("{}:{}", own.username, own.password));
        // podman prefers the longest name that fits the image.
        let below = format!("{}/", own.registry);
        auths.retain(|name, _| !name.starts_with(&below));
        auths.insert(own.registry.clone(), json!({ "auth": auth }));
    }
    Ok(json!({ "auths": auths }))
}

/// Writes the file, also without credentials, so podman reads no other file.
pub fn write(dir: &Path, operator: Option<&Path>, own: Option<&RegistryAuth>) -> io::Result<PathBuf> {
    let operator = operator.map(fs::read_to_string).transpose()?;
    let text = serde_json::to_vec(&contents(operator.as_deref(), own)?).map_err(io::Error::other)?;
    let path = dir.join(AUTH);
    remove(dir)?;
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(&text)?;
    Ok(path)
}

/// Removes the file. An absent file is no error.
pub fn remove(dir: &Path) -> io::Result<()> {
    match fs::remove_file(dir.join(AUTH)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn own() -> RegistryAuth {
        let (registry, username, password) = ("r.example".to_owned(), "ada".to_owned(), "pw:1".to_owned());
        RegistryAuth { registry, username, password, ..RegistryAuth::default() }
    }

    #[test]
    fn a_jobs_own_credentials_come_before_the_operators() {
        let operator = r#"{"auths": {"r.example": {"auth": "old"}, "o.example": {"auth": "kept"}}}"#;
        let both = contents(Some(operator), Some(&own())).unwrap();
        assert_eq!(both["auths"]["o.example"]["auth"], "kept");
        assert_eq!(both["auths"]["r.example"]["auth"], BASE64_STANDARD.encode("ada:pw:1"));
        // podman would prefer the credentials of a path over those of its registry.
        let operator = r#"{"auths": {"r.example/team": {"auth": "old"}, "o.example/team": {"auth": "kept"},
            "r.example:5000/team": {"auth": "kept"}}}"#;
        let both = contents(Some(operator), Some(&own())).unwrap();
        let has = |name: &str| both["auths"].get(name).is_some();
        assert!(!has("r.example/team") && has("r.example"), "{both}");
        assert!(has("o.example/team") && has("r.example:5000/team"), "{both}");
        let alone = contents(Some(operator), None).unwrap();
        assert_eq!(alone["auths"].as_object().unwrap().len(), 3, "a job without credentials gets them all");
        assert_eq!(contents(None, None).unwrap(), json!({ "auths": {} }));
        assert_eq!(contents(Some("{}"), None).unwrap(), json!({ "auths": {} }));
        assert!(contents(Some("nonsense"), None).is_err());
    }

    #[test]
    fn nobody_else_may_read_the_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(AUTH), "older").unwrap();
        let path = write(dir.path(), None, Some(&own())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(fs::read_to_string(&path).unwrap().contains("r.example"));
        remove(dir.path()).unwrap();
        assert!(!path.exists());
        remove(dir.path()).unwrap();
        assert!(write(dir.path(), Some(Path::new("/no/such/file")), None).is_err());
    }
}
