//! The input of the form in the session storage of the browser tab, by user and organization.
//!
//! The stored text has no values of secrets and a limited size.

use berth_types::ids::{OrgId, UserId};
use serde::{Deserialize, Serialize};

use super::draft::Draft;

/// The start of all keys.
const PREFIX: &str = "berth.draft.";
/// Bytes of the largest stored text.
const MAX_BYTES: usize = 1 << 20;
/// Bytes of the contents of files up to which the files are stored.
const MAX_FILE_BYTES: usize = 512 << 10;
/// Parts of the names of variables with secret values.
const SECRET_PARTS: [&str; 6] = ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY"];

/// A stored draft.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredDraft {
    /// The part of the form's address that determines its first input.
    pub origin: String,
    /// The input.
    pub draft: Draft,
    /// The name in it from a template; empty without one.
    #[serde(default)]
    pub template_name: String,
    /// Names of variables without their values.
    without_value: Vec<String>,
    /// True if the files were too large.
    without_files: bool,
}

/// Returns true if a variable with this name probably has a secret value.
pub fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET_PARTS.iter().any(|part| name.contains(part))
}

impl StoredDraft {
    /// Returns a draft without the values of secret variables and without large files.
    pub fn new(origin: String, mut draft: Draft, template_name: String) -> Self {
        let mut without_value = Vec::new();
        for (name, value) in draft.env.iter_mut().filter(|(name, _)| is_secret(name)) {
            value.clear();
            without_value.push(name.clone());
        }
        let without_files = draft.files.iter().map(|(_, text)| text.len()).sum::<usize>() > MAX_FILE_BYTES;
        if without_files {
            draft.files.clear();
        }
        Self { origin, draft, template_name, without_value, without_files }
    }

    /// Returns the text for the storage; `None` for a text that is too large.
    pub fn text(&self) -> Option<String> {
        serde_json::to_string(self).ok().filter(|text| text.len() <= MAX_BYTES)
    }

    /// Returns the sentences about a restored draft.
    pub fn notice(&self) -> String {
        let mut text = "Restored the input of this browser tab.".to_owned();
        if !self.without_value.is_empty() {
            text.push_str(&format!(" Not stored: values of {}.", self.without_value.join(", ")));
        }
        if self.without_files {
            text.push_str(" Not stored: the files, which are too large.");
        }
        text
    }
}

/// Returns the key of a user's draft for an organization.
pub fn key(user: UserId, org: OrgId) -> String {
    format!("{PREFIX}{user}.{org}")
}

#[cfg(feature = "hydrate")]
fn storage() -> Option<web_sys::Storage> {
    web_sys::window()?.session_storage().ok()?
}

/// Finds a stored draft. A text of another version counts as absent.
#[cfg(feature = "hydrate")]
pub fn find(key: &str) -> Option<StoredDraft> {
    let text = storage()?.get_item(key).ok()??;
    serde_json::from_str(&text).ok()
}

/// Finds nothing outside of a browser.
#[cfg(not(feature = "hydrate"))]
pub fn find(_key: &str) -> Option<StoredDraft> {
    None
}

/// Stores a draft, or removes it with `None`. Without storage a reload loses the input. After the end of the session
/// nothing is stored.
pub fn put(key: &str, draft: Option<&StoredDraft>) {
    let text = draft.and_then(StoredDraft::text);
    #[cfg(feature = "hydrate")]
    if let Some(storage) = storage().filter(|_| !crate::session::has_ended()) {
        // A full storage loses the draft.
        let _ = match text {
            Some(text) => storage.set_item(key, &text),
            None => storage.remove_item(key),
        };
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = (key, text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(env: &[(&str, &str)], file_bytes: usize) -> StoredDraft {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let files = vec![("a.txt".to_owned(), "x".repeat(file_bytes))];
        let draft = Draft { env, files, ..Draft::new("h100".to_owned()) };
        StoredDraft::new(String::new(), draft, "notebook".to_owned())
    }

    #[test]
    fn values_of_secrets_are_not_stored() {
        let one = stored(&[("LR", "0.1"), ("HF_TOKEN", "hf_123"), ("aws_secret", "s"), ("API_KEY", "")], 1);
        let text = one.text().unwrap();
        assert!(text.contains("0.1") && !text.contains("hf_123"), "{text}");
        assert_eq!(
            one.draft.env.iter().map(|(_, value)| value.as_str()).collect::<Vec<_>>(),
            ["0.1", "", "", ""]
        );
        assert!(
            one.notice().ends_with(" Not stored: values of HF_TOKEN, aws_secret, API_KEY."),
            "{}",
            one.notice()
        );
        assert_eq!(serde_json::from_str::<StoredDraft>(&text).unwrap(), one);
        assert_eq!(stored(&[], 1).notice(), "Restored the input of this browser tab.");
    }

    #[test]
    fn the_stored_text_has_a_limited_size() {
        let small = stored(&[], MAX_FILE_BYTES);
        assert_eq!((small.draft.files.len(), small.without_files), (1, false));
        let large = stored(&[], MAX_FILE_BYTES + 1);
        assert_eq!((large.draft.files.len(), large.without_files), (0, true));
        assert!(large.notice().ends_with("the files, which are too large."));
        let value = "x".repeat(MAX_BYTES);
        assert!(stored(&[("A", value.as_str())], 1).text().is_none());
    }
}
