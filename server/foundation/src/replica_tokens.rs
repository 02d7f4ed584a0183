//! The tokens of the replicas of services. A gateway shows its token to the worker of a replica, and the worker has
//! only the hash of the token, which it gets once.
//!
//! All tokens follow from a root in the settings, sealed with the portal's key: a change of that key must not cut off the
//! replicas that run.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use berth_store as store;
use berth_store::services::replicas;
use berth_store::{StoreError, Tx};
use berth_types::ids::JobId;
use futures::FutureExt;
use ring::hmac;
use sha2::{Digest, Sha256};

use crate::context::Context;
use crate::envelope::{EnvelopeError, Keys, SealingContext, new_key};

/// The purpose of a root that is derived from the portal's key.
const LABEL: &str = "berth replica token 1";
/// The setting with the sealed roots, separated by spaces. The last one is in use. The others did not open when their
/// successors began, and one of them is used again when it opens.
const ROOTS: &str = "replica_token_roots";
const CONTEXT: SealingContext<'static> =
    SealingContext { kind: "replica tokens", org: "", name: ROOTS, version: 1 };

/// The key of all tokens.
pub struct TokenRoot(hmac::Key);

impl TokenRoot {
    fn new(bytes: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, bytes))
    }

    /// The root of portals without a root in their settings.
    pub fn derived(keys: &Keys) -> Self {
        Self::new(keys.derive(LABEL).as_ref())
    }

    fn open(keys: &Keys, sealed: &str) -> Result<Self, EnvelopeError> {
        let bytes = STANDARD.decode(keys.open_sealed(&CONTEXT, sealed)?);
        bytes.map(|bytes| Self::new(&bytes)).map_err(|_| EnvelopeError::Malformed)
    }

    /// The present root.
    ///
    /// # Errors
    /// The database cannot be read, or the portal has no key for the root.
    pub async fn find(tx: &mut Tx<'_>, keys: &Keys) -> Result<Self, StoreError> {
        let stored = store::accounts::find_setting(tx, ROOTS).await?;
        match stored.as_deref().and_then(last) {
            None => Ok(Self::derived(keys)),
            Some(sealed) => Self::open(keys, sealed)
                .map_err(|error| StoreError::corrupt("settings", ROOTS, "value", error)),
        }
    }

    /// The token of a rank of an attempt. It must reach no log.
    pub fn token(&self, job: JobId, attempt: u32, rank: u32) -> String {
        URL_SAFE_NO_PAD.encode(hmac::sign(&self.0, format!("{job}|{attempt}|{rank}").as_bytes()))
    }
}

/// The hash of a token for the worker.
pub fn replica_token_hash(token: &str) -> [u8; 32] {
    Sha256::digest(token.as_bytes()).into()
}

/// The root in use.
fn last(roots: &str) -> Option<&str> {
    roots.split_whitespace().next_back()
}

/// Checks that the missing key file is not needed. To be called before anything creates the file.
///
/// # Errors
/// The file is missing, and the tokens of open replicas need its key.
pub async fn check_key_file(context: &Context) -> Result<(), String> {
    let settings = &context.settings;
    let file = settings.secrets_key_file();
    if file.exists() {
        return Ok(());
    }
    let mut conn = context.db.read().await.map_err(|e| e.to_string())?;
    let mut tx = conn.tx();
    let stored = store::accounts::find_setting(&mut tx, ROOTS).await.map_err(|e| e.to_string())?;
    let has_key = match stored.as_deref().and_then(last) {
        Some(sealed) => Keys::can_open_all(&settings.secrets_old_keys, &[sealed.to_owned()])?,
        None => !settings.secrets_old_keys.is_empty(),
    };
    if has_key || !replicas::any_open(&mut tx).await.map_err(|e| e.to_string())? {
        return Ok(());
    }
    Err(format!(
        "{} is missing, and replicas of services need its key. Restore the file. If it is lost, create a new key there (openssl rand -base64 32) and deploy each service again",
        file.display()
    ))
}

/// Seals the root with the present key, and makes a missing one. Returns the numbers of sealed and of unreadable roots. To
/// be called before other values are sealed again: their keys decide about the first root.
///
/// # Errors
/// The database or the key file cannot be read or written.
pub async fn reseal(context: &Context) -> Result<(usize, usize), String> {
    let is_new = !context.settings.secrets_key_file().exists();
    let keys = context.keys()?;
    let resealed = context.db.write(move |tx| {
        let keys = keys.clone();
        async move { reseal_roots(tx, &keys, is_new).await }.boxed()
    });
    resealed.await.map_err(|e| e.to_string())
}

async fn reseal_roots(tx: &mut Tx<'_>, keys: &Keys, is_new: bool) -> Result<(usize, usize), StoreError> {
    let failed = |error: EnvelopeError| StoreError::Engine(error.to_string());
    let stored = store::accounts::find_setting(tx, ROOTS).await?.unwrap_or_default();
    let opens = |sealed: &&str| TokenRoot::open(keys, sealed).is_ok();
    let closed = stored.split_whitespace().take_while(|sealed| !opens(sealed));
    let mut roots: Vec<String> = closed.map(str::to_owned).collect();
    // The oldest one is that of the replicas from before a start without its key.
    let found = stored.split_whitespace().find(opens);
    let mut unreadable = 0;
    let root = if let Some(sealed) = found {
        if last(&stored) != found {
            tracing::warn!(
                "a former root of the tokens of replicas opens again; replicas that began since its loss refuse all requests, so deploy their services again"
            );
        }
        keys.rewrap(&CONTEXT, sealed).map_err(failed)?.unwrap_or_else(|| sealed.to_owned())
    } else {
        let has_replicas = replicas::any_open(tx).await?;
        let root = match last(&stored) {
            None if has_replicas => derived_root(tx, keys, is_new).await?,
            _ => new_key().map_err(failed)?,
        };
        match last(&stored).map(|sealed| TokenRoot::open(keys, sealed)) {
            Some(Err(error)) if has_replicas => {
                tracing::error!(%error, "the root of the tokens of replicas cannot be opened; replicas that run refuse all requests, so deploy each service again");
                unreadable = 1;
            }
            // No replica needs a former root.
            _ => roots.clear(),
        }
        keys.seal(&CONTEXT, &root).map_err(failed)?
    };
    roots.push(root);
    let roots = roots.join(" ");
    if roots == stored {
        return Ok((0, 0));
    }
    store::accounts::put_setting(tx, ROOTS, &roots).await?;
    Ok((usize::from(found.is_some()), unreadable))
}

/// The root of replicas that began before there was a root: derived from the key with which the portal ran then.
async fn derived_root(tx: &mut Tx<'_>, keys: &Keys, is_new: bool) -> Result<String, StoreError> {
    let secrets = store::secrets::list_all(tx).await?.into_iter().map(|row| row.sealed);
    let webhooks = store::webhooks::list(tx, None).await?.into_iter().map(|row| row.secret);
    let apps = store::factors::list_totp(tx).await?.into_iter().map(|row| row.sealed);
    let clients = store::sso::list_providers(tx).await?.into_iter().map(|row| row.sealed_secret);
    let seeds = store::gangs::list_seeds(tx).await?.into_iter().map(|row| row.sealed);
    let sealed: Vec<String> = secrets.chain(webhooks).chain(apps).chain(clients).chain(seeds).collect();
    Ok(STANDARD.encode(keys.derive_last(LABEL, &sealed, is_new)))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_rank_of_each_attempt_has_its_own_token() {
        let dir = tempfile::tempdir().unwrap();
        let root = || TokenRoot::derived(&Keys::open(&dir.path().join("secrets.key"), &[]).unwrap());
        let job = |n: u128| JobId::from_uuid(Uuid::from_u128(n));
        let token = |n: u128, attempt: u32, rank: u32| root().token(job(n), attempt, rank);
        let all: HashSet<String> =
            [token(1, 1, 0), token(2, 1, 0), token(1, 2, 0), token(1, 1, 1), token(1, 11, 0)].into();
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|token| token.len() == 43));
        assert_eq!(root().token(job(1), 1, 0), token(1, 1, 0));
        assert_ne!(replica_token_hash(&token(1, 1, 0)), replica_token_hash(&token(2, 1, 0)));
    }

    #[test]
    fn a_sealed_root_has_the_tokens_of_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let keys = Keys::open(&dir.path().join("secrets.key"), &[]).unwrap();
        let sealed = keys.seal(&CONTEXT, &STANDARD.encode(keys.derive_last(LABEL, &[], false))).unwrap();
        let job = JobId::from_uuid(Uuid::from_u128(1));
        let token = TokenRoot::open(&keys, &sealed).unwrap().token(job, 1, 0);
        assert_eq!(token, TokenRoot::derived(&keys).token(job, 1, 0));
        assert_eq!(last(&format!("s1.a.b.c {sealed}")), Some(sealed.as_str()));
        assert_eq!(last(""), None);
    }
}
