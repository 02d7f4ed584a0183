//! Secrets on their way from the daemon to a shim: through a pipe, never through a file or an argument.

use std::io::{self, Write};

use berth_isolation::secret_files;
use berth_proto::Spec;
use serde::{Deserialize, Serialize};

/// The secrets that a shim gets. They end with its process.
#[derive(Default, Serialize, Deserialize)]
pub struct ShimSecrets {
    /// Variables of the job.
    pub env: Vec<(String, String)>,
    /// Values that the log must not have.
    #[serde(rename = "mask")]
    pub redacted: Vec<String>,
}

impl ShimSecrets {
    pub fn from_spec(spec: &Spec) -> Self {
        Self {
            // A container gets its variables from podman when it is created. The shim of a container starts podman as
            // root, and no variable of a job may reach that.
            env: if spec.image.is_empty() { secret_files::variables(spec).collect() } else { Vec::new() },
            redacted: spec.secrets.iter().map(|secret| secret.value.clone()).collect(),
        }
    }

    /// Sends the secrets to the shim at the other end of the pipe. A shim that has ended records that itself.
    pub fn send(&self, mut pipe: impl Write) {
        let sent = serde_json::to_vec(self).map_err(io::Error::other).and_then(|text| pipe.write_all(&text));
        if let Err(error) = sent {
            tracing::warn!(%error, "a shim did not receive the secrets of its job and will not start it");
        }
    }

    /// Receives the secrets from the daemon through the standard input. Secrets that a dying daemon cut off cannot be
    /// read.
    pub fn receive() -> Result<Self, String> {
        serde_json::from_reader(io::stdin().lock()).map_err(|_| "the secrets did not arrive".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use berth_proto::Secret;

    use super::*;

    fn spec(secrets: &[(&str, &str, &str)]) -> Spec {
        let secret = |(env, file, value): &(&str, &str, &str)| Secret {
            name: "any".to_owned(),
            value: (*value).to_owned(),
            env: (*env).to_owned(),
            file: (*file).to_owned(),
        };
        Spec { secrets: secrets.iter().map(secret).collect(), ..Spec::default() }
    }

    #[test]
    fn podman_is_started_with_no_variable_of_a_job() {
        let own = spec(&[("TOKEN", "", "abcdefghij"), ("LD_PRELOAD", "", "/home/job/x.so")]);
        let expected = [("TOKEN".to_owned(), "abcdefghij".to_owned())];
        assert_eq!(ShimSecrets::from_spec(&own).env, expected);
        let contained = Spec { image: "localhost/x:1".to_owned(), ..own };
        assert!(ShimSecrets::from_spec(&contained).env.is_empty());
        assert_eq!(
            ShimSecrets::from_spec(&contained).redacted,
            ["abcdefghij", "/home/job/x.so"],
            "masked all the same"
        );
        assert_eq!(secret_files::variables(&contained).collect::<Vec<_>>(), expected);
    }
}
