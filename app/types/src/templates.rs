//! Types of templates: first inputs for submissions of jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::jobs::NewJob;

/// A first input for submissions of jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobTemplate {
    /// The unique name, such as `notebook`: lower-case letters, digits and hyphens, at most 63 bytes.
    pub name: String,
    /// The title, 1 to 40 characters.
    pub title: String,
    /// Sentences about the purpose, at most 300 characters.
    pub description: String,
    /// Fields of a submission (`NewJob`). `name` and `offering` may be absent; `reservation` and `depends_on` are
    /// always absent.
    pub job: BTreeMap<String, Value>,
}

/// The templates of the portal: the built-in ones, then those of the operator by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JobTemplates {
    /// At most 104 templates, 1 MiB (bytes) in all.
    pub templates: Vec<JobTemplate>,
}

impl JobTemplate {
    /// Returns the submission, with the name of the template and this offering in place of absent ones.
    ///
    /// # Errors
    /// A field is unknown, or has a value of another type.
    pub fn submission(&self, offering: &str) -> Result<NewJob, serde_json::Error> {
        let mut fields = self.job.clone();
        for (field, value) in [("name", self.name.as_str()), ("offering", offering)] {
            fields.entry(field.to_owned()).or_insert_with(|| Value::from(value));
        }
        // By its text, like all other bodies: another parser would be more code in the module of the browser.
        serde_json::from_str(&serde_json::to_string(&fields)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(job: Value) -> JobTemplate {
        let (title, description) = ("Notebook", "");
        let body = json!({"name": "notebook", "title": title, "description": description, "job": job});
        serde_json::from_value(body).unwrap()
    }

    #[test]
    fn absent_names_and_offerings_are_filled() {
        let plain = template(json!({"command": ["true"]})).submission("h100").unwrap();
        assert_eq!((plain.name.as_str(), plain.offering.as_str()), ("notebook", "h100"));
        let full = template(json!({"command": ["true"], "name": "lab", "offering": "a30"}));
        let full = full.submission("h100").unwrap();
        assert_eq!((full.name.as_str(), full.offering.as_str()), ("lab", "a30"));
    }

    #[test]
    fn unknown_fields_and_other_types_are_refused() {
        for job in [json!({"gpus": 1}), json!({"count": "two"}), json!({"organization": "lab"})] {
            assert!(template(job.clone()).submission("h100").is_err(), "{job}");
        }
    }
}
