//! The run of the portal: both listeners and every loop, until the stop.
//!
//! Must not read settings or signals: the caller passes a portal, bound listeners and the future of the stop.

use std::io::Write;
use std::time::Duration;

use tokio::net::TcpListener;

use berth_access::ports;
use berth_foundation::{Settings, replica_tokens};

use crate::connections;
use crate::portal::Portal;
use crate::web::{self, Assets};
use crate::{rest, workers};

/// The longest wait for the mails of accounts at the stop.
const LAST_MAILS: Duration = Duration::from_secs(5);

/// The stack of each thread of the portal. The rendering of a page is a deep recursion.
pub const STACK_BYTES: usize = 8 << 20;

/// Prints a line on standard output. A closed output does not stop the portal.
fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// True if a proxy is in front of the portal and is not trusted. The portal itself has no HTTPS for browsers.
fn is_proxy_untrusted(settings: &Settings) -> bool {
    settings.public_url.starts_with("https://") && settings.trusted_proxies.networks.is_empty()
}

/// Seals all values again with the present key. Returns the numbers of sealed and of unreadable ones.
///
/// # Errors
/// The key file is missing and values need it, or the database or a key file cannot be read or written.
pub async fn reseal(portal: &Portal) -> Result<(usize, usize), String> {
    portal.secrets.check_key_file().await?;
    portal.factors.check_key_file().await?;
    portal.sso.providers.check_key_file().await?;
    replica_tokens::check_key_file(&portal.context).await?;
    let (roots, lost_roots) = replica_tokens::reseal(&portal.context).await?;
    let found = portal.secrets.reseal_secrets().await?;
    let (apps, lost_apps) = portal.factors.reseal().await?;
    let (clients, lost_clients) = portal.sso.providers.reseal().await?;
    let (networks, lost_networks) = berth_gangs::networks::reseal(&portal.context).await?;
    let lost = lost_roots + found.unreadable + lost_apps + lost_clients + lost_networks;
    Ok((roots + found.done + apps + clients + networks, lost))
}

/// Serves browsers and scripts on `listener` and workers on `worker_listener` until `stopped` resolves.
/// Prints the addresses of the listeners, and the setup token while no operator exists.
///
/// # Errors
/// A listener, the database or a loop failed.
pub async fn serve(
    portal: Portal,
    assets: Option<Assets>,
    listener: TcpListener,
    worker_listener: TcpListener,
    stopped: impl Future<Output = ()>,
) -> Result<(), String> {
    if assets.is_none() {
        tracing::warn!("no built pages found; --web gives their directory");
    }
    if is_proxy_untrusted(&portal.context.settings) {
        tracing::warn!(
            "--public-url is https and no proxy is trusted: all people have the address of the proxy and share one limit of sign-ins and connections; --trusted-proxies gives the networks of the proxies"
        );
    }
    reseal(&portal).await?;
    let at = listener.local_addr().map_err(|e| e.to_string())?;
    let worker_at = worker_listener.local_addr().map_err(|e| e.to_string())?;
    print_line(&format!("Berth listens on http://{at}"));
    print_line(&format!("Workers connect to https://{worker_at}"));
    if let Some(token) = portal.accounts.open_setup().await.map_err(|e| e.to_string())? {
        print_line(&format!(
            "No operator exists yet. Setup token, valid until used or until the next start: {token}"
        ));
    }
    crate::loops::start(&portal);
    portal.terminals.resume_terminals().await.map_err(|e| e.to_string())?;
    portal.webhooks.publish_job_webhooks().await.map_err(|e| e.to_string())?;
    let (stop, stopping) = tokio::sync::watch::channel(());
    let stop_signal = |mut stopping: tokio::sync::watch::Receiver<()>| async move {
        // The sender is dropped at the stop.
        let _ = stopping.changed().await;
    };
    let router = web::router(rest::router(portal.clone()), assets.as_ref(), portal.context.settings.https);
    let router = ports::with_port_hosts(router, portal.ports.clone());
    let limits = connections::Limits::from_settings(&portal.context.settings);
    let pages = connections::serve(listener, router, limits, stop_signal(stopping.clone()));
    let (loops, accounts) = (portal.loops.clone(), portal.accounts.clone());
    let workers = workers::serve(portal, worker_listener, stop_signal(stopping));
    tokio::select! {
        () = pages => Ok(()),
        result = workers => result,
        name = loops.panicked() => Err(format!("the loop {name} panicked")),
        () = stopped => {
            drop(stop);
            // Their links exist in no other place.
            let _ = tokio::time::timeout(LAST_MAILS, accounts.mails_sent()).await;
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use berth_foundation::proxies::TrustedProxies;

    use super::*;

    #[test]
    fn https_without_a_trusted_proxy_is_noticed() {
        let settings = |public_url: &str, networks: &[&str]| {
            let networks = networks.iter().map(|n| n.parse().unwrap()).collect();
            let trusted_proxies = TrustedProxies { networks, ..TrustedProxies::default() };
            Settings { public_url: public_url.to_owned(), trusted_proxies, ..Settings::default() }
        };
        assert!(is_proxy_untrusted(&settings("https://berth.example.org", &[])));
        assert!(!is_proxy_untrusted(&settings("https://berth.example.org", &["10.0.0.0/8"])));
        assert!(!is_proxy_untrusted(&settings("http://127.0.0.1:8080", &[])));
    }
}
