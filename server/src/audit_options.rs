//! The options of the audit log: its key, and its destinations outside of the portal.

use std::path::PathBuf;

use berth_foundation::Settings;
use berth_foundation::audit_targets::{AuditTargets, BucketTarget, SyslogTarget, WebhookTarget};
use berth_server::arguments::AuditKeyFile;

#[derive(clap::Args)]
pub struct AuditOptions {
    #[command(flatten)]
    key: AuditKeyFile,
    /// The https URL that gets all audit events in signed requests. Its address may be private, and its certificate needs
    /// an authority of this system.
    #[arg(long, env = "BERTH_AUDIT_WEBHOOK", hide_env_values = true)]
    audit_webhook: Option<String>,
    /// The file with the secret for the signatures of --audit-webhook: at least 16 characters.
    #[arg(long, env = "BERTH_AUDIT_WEBHOOK_SECRET_FILE")]
    audit_webhook_secret_file: Option<PathBuf>,
    /// The syslog server that gets all audit events: tls://HOST:PORT (RFC 5424 over TLS, RFC 5425).
    #[arg(long, env = "BERTH_AUDIT_SYSLOG")]
    audit_syslog: Option<String>,
    /// --audit-syslog may be tcp://HOST:PORT, without TLS.
    #[arg(long, env = "BERTH_AUDIT_SYSLOG_PLAIN")]
    audit_syslog_plain: bool,
    /// The PEM file with the authorities of --audit-syslog. By default the authorities of this system.
    #[arg(long, env = "BERTH_AUDIT_SYSLOG_CA_FILE")]
    audit_syslog_ca_file: Option<PathBuf>,
    /// The bucket that gets all audit events as NDJSON files, and the checkpoints: s3://BUCKET, with its credentials
    /// as AWS_* in the environment.
    #[arg(long, env = "BERTH_AUDIT_BUCKET")]
    audit_bucket: Option<String>,
}

fn webhook(url: Option<String>, secret_file: Option<PathBuf>) -> Result<Option<WebhookTarget>, String> {
    match (url, secret_file) {
        (None, None) => Ok(None),
        (Some(url), Some(file)) => {
            let secret = std::fs::read_to_string(&file)
                .map_err(|e| format!("--audit-webhook-secret-file {}: {e}", file.display()))?;
            WebhookTarget::parse(&url, &secret).map(Some)
        }
        (Some(_), None) => Err("--audit-webhook needs --audit-webhook-secret-file".to_owned()),
        (None, Some(_)) => Err("--audit-webhook-secret-file needs --audit-webhook".to_owned()),
    }
}

impl AuditOptions {
    /// Returns the settings with these options.
    ///
    /// # Errors
    /// A file cannot be read, or an address is invalid.
    pub fn apply(self, settings: Settings) -> Result<Settings, String> {
        let (plain, authorities) = (self.audit_syslog_plain, self.audit_syslog_ca_file);
        let syslog = self.audit_syslog.map(|url| SyslogTarget::parse(&url, plain, authorities));
        let audit_targets = AuditTargets {
            webhook: webhook(self.audit_webhook, self.audit_webhook_secret_file)?,
            syslog: syslog.transpose()?,
            bucket: self.audit_bucket.as_deref().map(BucketTarget::parse).transpose()?,
        };
        Ok(Settings { audit_key: self.key.audit_key_file, audit_targets, ..settings })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Args {
        #[command(flatten)]
        audit: AuditOptions,
    }

    fn targets(arguments: &[&str]) -> Result<AuditTargets, String> {
        let parsed = Args::try_parse_from(["portal"].iter().chain(arguments)).map_err(|e| e.to_string())?;
        parsed.audit.apply(Settings::default()).map(|settings| settings.audit_targets)
    }

    #[test]
    fn each_destination_has_its_option_and_a_webhook_its_secret() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "a-secret-of-the-operator\n").unwrap();
        let file = file.to_str().unwrap();
        let none = targets(&[]).unwrap();
        assert!(none.webhook.is_none() && none.syslog.is_none() && none.bucket.is_none());
        let hook = ["--audit-webhook", "https://10.0.0.9/in"];
        let with_secret = [hook[0], hook[1], "--audit-webhook-secret-file", file];
        assert_eq!(targets(&with_secret).unwrap().webhook.unwrap().secret, "a-secret-of-the-operator");
        assert!(targets(&hook).is_err());
        assert!(targets(&["--audit-webhook-secret-file", file]).is_err());
        let missing = [hook[0], hook[1], "--audit-webhook-secret-file", "/nowhere/secret"];
        assert!(targets(&missing).err().unwrap().contains("--audit-webhook-secret-file /nowhere/secret"));
        let syslog = ["--audit-syslog", "tcp://logs.example.org:514"];
        assert!(targets(&syslog).err().unwrap().contains("--audit-syslog-plain"));
        assert!(!targets(&[syslog[0], syslog[1], "--audit-syslog-plain"]).unwrap().syslog.unwrap().tls);
        assert_eq!(targets(&["--audit-bucket", "s3://audit"]).unwrap().bucket.unwrap().address, "s3://audit");
    }
}
