//! The change of the portal's key for the secrets of clients and for refresh tokens.

use berth_foundation::envelope::Keys;
use berth_store as store;
use berth_store::sso::{StoredGrant, StoredProvider};
use futures::FutureExt;

use super::Providers;
use super::flow::with_refresh_context;
use super::provider::with_client_context;

impl Providers {
    async fn list_sealed(&self) -> Result<(Vec<StoredProvider>, Vec<StoredGrant>), String> {
        let mut conn = self.context.db.read().await.map_err(|e| e.to_string())?;
        let mut tx = conn.tx();
        let providers = store::sso::list_providers(&mut tx).await.map_err(|e| e.to_string())?;
        let grants = store::sso::list_sealed_grants(&mut tx).await.map_err(|e| e.to_string())?;
        Ok((providers, grants))
    }

    /// Checks that the missing key file is not needed. To be called before anything creates the file.
    ///
    /// # Errors
    /// The file is missing, and the secrets of clients need its key.
    pub async fn check_key_file(&self) -> Result<(), String> {
        let settings = &self.context.settings;
        let file = settings.secrets_key_file();
        let sealed: Vec<String> =
            self.list_sealed().await?.0.into_iter().map(|row| row.sealed_secret).collect();
        if file.exists() || Keys::can_open_all(&settings.secrets_old_keys, &sealed)? {
            return Ok(());
        }
        Err(format!(
            "{} is missing, and single sign-on needs its key. Restore the file. If it is lost, create a new key there (openssl rand -base64 32); owners then enter the secrets of their clients again",
            file.display()
        ))
    }

    /// Seals all secrets of clients and refresh tokens with the present key. Returns the numbers of sealed and of
    /// unreadable ones.
    ///
    /// # Errors
    /// The database or the key file cannot be read.
    pub async fn reseal(&self) -> Result<(usize, usize), String> {
        let (mut done, mut unreadable) = (0, 0);
        let (providers, grants) = self.list_sealed().await?;
        if providers.is_empty() && grants.is_empty() {
            return Ok((done, unreadable));
        }
        let context = &self.context;
        let keys = context.keys()?;
        for row in providers {
            match with_client_context(row.org_id, |context| keys.rewrap(context, &row.sealed_secret)) {
                Ok(None) => {}
                Ok(Some(sealed)) => {
                    let updated = context.db.write(move |tx| {
                        let (row, sealed) = (row.clone(), sealed.clone());
                        async move { store::sso::reseal_provider(tx, &row, &sealed).await }.boxed()
                    });
                    done += usize::from(updated.await.map_err(|e| e.to_string())?);
                }
                Err(error) => {
                    tracing::error!(org = %row.org_id, %error, "the secret of a client cannot be opened");
                    unreadable += 1;
                }
            }
        }
        for row in grants {
            let sealed = row.sealed_refresh.clone().unwrap_or_default();
            match with_refresh_context(&row.issuer, &row.subject, |context| keys.rewrap(context, &sealed)) {
                Ok(None) => {}
                Ok(Some(sealed)) => {
                    let updated = context.db.write(move |tx| {
                        let (row, sealed) = (row.clone(), sealed.clone());
                        async move { store::sso::reseal_grant(tx, &row, &sealed).await }.boxed()
                    });
                    done += usize::from(updated.await.map_err(|e| e.to_string())?);
                }
                // Its session ends at the next refresh.
                Err(error) => tracing::warn!(issuer = row.issuer, %error, "a refresh token cannot be opened"),
            }
        }
        Ok((done, unreadable))
    }
}
