//! The options of the single sign-on of operators, and the DNS server for the domains of organizations.

use std::net::SocketAddr;
use std::path::PathBuf;

use berth_foundation::addresses::parse_dns_server;
use berth_foundation::settings::OperatorProvider;
use berth_types::operators::OperatorRole;

/// Bytes of the file with the secret of the client.
const MAX_SECRET_BYTES: usize = 4_096;

#[derive(clap::Args)]
pub struct SsoOptions {
    /// The issuer of the OpenID Connect provider for operators, such as https://id.example.org. It may be in a private
    /// network. Without it operators sign in with passwords only.
    #[arg(
        long,
        env = "BERTH_OIDC_ISSUER",
        requires = "oidc_client_id",
        requires = "oidc_client_secret_file",
        requires = "oidc_operator_group"
    )]
    oidc_issuer: Option<String>,
    /// The id of the client of this portal at the provider.
    #[arg(long, env = "BERTH_OIDC_CLIENT_ID", requires = "oidc_issuer")]
    oidc_client_id: Option<String>,
    /// The file with the secret of the client.
    #[arg(long, env = "BERTH_OIDC_CLIENT_SECRET_FILE", requires = "oidc_issuer")]
    oidc_client_secret_file: Option<PathBuf>,
    /// The group of operators in the claim groups. Each person in it becomes an operator at the first sign-in.
    #[arg(long, env = "BERTH_OIDC_OPERATOR_GROUP", requires = "oidc_issuer")]
    oidc_operator_group: Option<String>,
    /// The DNS server for the records that confirm domains of single sign-on, such as 192.0.2.53:53. By default the
    /// servers of this host. The portal trusts its answers.
    #[arg(long, env = "BERTH_DNS_SERVER", value_parser = parse_dns_server)]
    pub dns_server: Option<SocketAddr>,
    /// The role of a person in the group at the first sign-in: owner, fleet, billing, support or auditor. Owners change
    /// the role on the page Operators.
    #[arg(
        long,
        env = "BERTH_OIDC_OPERATOR_ROLE",
        default_value = "owner",
        value_parser = parse_role
    )]
    oidc_operator_role: OperatorRole,
}

fn parse_role(text: &str) -> Result<OperatorRole, String> {
    OperatorRole::parse(text).ok_or_else(|| "enter owner, fleet, billing, support or auditor".to_owned())
}

/// True for https, and for http to this host.
fn is_issuer(text: &str) -> bool {
    let local = ["http://127.0.0.1", "http://localhost", "http://[::1]"];
    let has_host = text.strip_prefix("https://").is_some_and(|host| !host.is_empty());
    let is_local = local.iter().any(|start| {
        text.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '/']))
    });
    (has_host || is_local) && !text.contains(['?', '#', ' '])
}

impl SsoOptions {
    /// The provider of the operators.
    ///
    /// # Errors
    /// The issuer is no https address, or the file with the secret cannot be read.
    pub fn provider(self) -> Result<Option<OperatorProvider>, String> {
        let (Some(issuer), Some(client_id), Some(file), Some(group)) =
            (self.oidc_issuer, self.oidc_client_id, self.oidc_client_secret_file, self.oidc_operator_group)
        else {
            return Ok(None);
        };
        if !is_issuer(&issuer) {
            return Err(format!("--oidc-issuer {issuer}: expected https://HOST without query"));
        }
        let at = || format!("--oidc-client-secret-file {}", file.display());
        let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", at()))?;
        let client_secret = text.trim().to_owned();
        if client_secret.is_empty() || client_secret.len() > MAX_SECRET_BYTES {
            return Err(format!("{}: expected the secret of the client", at()));
        }
        Ok(Some(OperatorProvider { issuer, client_id, client_secret, group, role: self.oidc_operator_role }))
    }
}

#[cfg(test)]
mod tests {
    use super::is_issuer;

    #[test]
    fn an_issuer_is_https_or_on_this_host() {
        for good in [
            "https://id.example.org",
            "https://id.example.org/realms/x",
            "http://127.0.0.1:9",
            "http://localhost",
        ] {
            assert!(is_issuer(good), "{good}");
        }
        for bad in
            ["", "https://", "http://id.example.org", "http://localhost.example", "https://a?b", "ftp://a"]
        {
            assert!(!is_issuer(bad), "{bad}");
        }
    }
}
