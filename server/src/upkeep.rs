//! Commands while no portal runs: the change of the key for secrets, the removal of a second factor, and the end of the
//! rule for a second operator.

use std::sync::Arc;

use berth_foundation::Settings;
use berth_foundation::clock::SystemClock;
use berth_server::arguments::Store;
use berth_server::portal::Portal;
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

use super::KeyFiles;

/// Seals all values under former keys again with the present key.
pub async fn rewrap(store: Store, keys: KeyFiles) -> Result<(), String> {
    let (_lock, db) = store.open_stopped().await?;
    let settings = Settings {
        secrets_key: keys.secrets_key_file,
        secrets_old_keys: keys.secrets_old_key_files,
        data: store.data,
        ..Settings::default()
    };
    let portal = Portal::new(db, settings, Arc::new(SystemClock), ChaCha20Rng::from_os_rng())?;
    portal.factors.check_key_file().await?;
    portal.sso.providers.check_key_file().await?;
    let found = portal.secrets.reseal_secrets().await?;
    let (apps, unreadable_apps) = portal.factors.reseal().await?;
    let (clients, unreadable_clients) = portal.sso.providers.reseal().await?;
    println!(
        "Secrets, webhooks, authenticator apps and single sign-on sealed again: {}",
        found.done + apps + clients
    );
    match found.unreadable + unreadable_apps + unreadable_clients {
        0 => Ok(()),
        n => Err(format!(
            "{n} secrets, webhooks, authenticator apps or clients of single sign-on are damaged, or sealed with a missing key; the log above names them. \
             Give the missing keys with --secrets-old-key-files"
        )),
    }
}

/// Removes the second factor of an account.
pub async fn remove_factors(store: Store, email: &str) -> Result<(), String> {
    let (_lock, db) = store.open_stopped().await?;
    let settings = Settings { data: store.data, ..Settings::default() };
    let portal = Portal::new(db, settings, Arc::new(SystemClock), ChaCha20Rng::from_os_rng())?;
    portal.users.remove_factors_by_command(email).await?;
    println!("The second factor was removed. The password alone signs in now");
    Ok(())
}

/// Ends the rule for a second operator.
pub async fn end_second_operator(store: Store) -> Result<(), String> {
    let (_lock, db) = store.open_stopped().await?;
    let settings = Settings { data: store.data, ..Settings::default() };
    let portal = Portal::new(db, settings, Arc::new(SystemClock), ChaCha20Rng::from_os_rng())?;
    portal.operators.end_policy_by_command().await?;
    println!("The rule for a second operator has ended. Each operator acts alone now");
    Ok(())
}
