//! The change of the portal's key for the secrets of authenticator apps.

use berth_foundation::envelope::Keys;
use berth_store as store;
use berth_store::factors::StoredTotp;
use futures::FutureExt;

use super::{SecondFactors, with_totp_context};

impl SecondFactors {
    async fn list_totp(&self) -> Result<Vec<StoredTotp>, String> {
        let mut conn = self.context.db.read().await.map_err(|e| e.to_string())?;
        store::factors::list_totp(&mut conn.tx()).await.map_err(|e| e.to_string())
    }

    /// Checks that the missing key file is not needed. To be called before anything creates the file.
    ///
    /// # Errors
    /// The file is missing, and authenticator apps need its key.
    pub async fn check_key_file(&self) -> Result<(), String> {
        let settings = &self.context.settings;
        let file = settings.secrets_key_file();
        let sealed: Vec<String> = self.list_totp().await?.into_iter().map(|row| row.sealed).collect();
        if file.exists() || Keys::can_open_all(&settings.secrets_old_keys, &sealed)? {
            return Ok(());
        }
        Err(format!(
            "{} is missing, and authenticator apps need its key. Restore the file. If it is lost, create a new key there (openssl rand -base64 32); people then sign in with recovery codes",
            file.display()
        ))
    }

    /// Seals the secrets of all apps with the present key. Returns the numbers of sealed and of unreadable secrets.
    ///
    /// # Errors
    /// The database or the key file cannot be read.
    pub async fn reseal(&self) -> Result<(usize, usize), String> {
        let (mut done, mut unreadable) = (0, 0);
        let rows = self.list_totp().await?;
        if rows.is_empty() {
            return Ok((done, unreadable));
        }
        let keys = self.context.keys()?;
        for row in rows {
            match with_totp_context(row.user_id, |context| keys.rewrap(context, &row.sealed)) {
                Ok(None) => {}
                Ok(Some(sealed)) => {
                    let updated = self.context.db.write(move |tx| {
                        let (row, sealed) = (row.clone(), sealed.clone());
                        async move { store::factors::reseal_totp(tx, &row, &sealed).await }.boxed()
                    });
                    done += usize::from(updated.await.map_err(|e| e.to_string())?);
                }
                Err(error) => {
                    tracing::error!(user = %row.user_id, %error, "the secret of an authenticator app cannot be opened");
                    unreadable += 1;
                }
            }
        }
        Ok((done, unreadable))
    }
}
