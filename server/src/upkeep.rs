//! Commands while no portal runs: the change of the key for secrets, the removal of a second factor, and the end of the
//! rule for a second operator.

use std::sync::Arc;

use berth_foundation::Settings;
use berth_foundation::clock::SystemClock;
use berth_server::arguments::Store;
use berth_server::portal::Portal;
use berth_server::serve::reseal;
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
    let (done, unreadable) = reseal(&portal).await?;
    println!("Values sealed again: {done}");
    match unreadable {
        0 => Ok(()),
        n => Err(format!(
            "{n} values are damaged, or sealed with a missing key; the log above names them. \
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
