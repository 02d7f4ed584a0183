//! Secrets of organizations: sealed in the database, opened only for the worker of an attempt.
//!
//! This module must not put a value into an answer, a log or an error.

pub mod routes;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use berth_core::images::{Reference, parse_credentials};
use berth_core::secrets::{MAX_SECRETS, check_name, check_value};
use berth_types::Page;
use berth_types::ids::{JobId, OrgId};
use berth_types::jobs::{Failure, NewJob};
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::problems::{FieldError, Problem};
use berth_types::secrets::{PutSecret, RegistryUse, Secret, SecretUse};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::start_inputs::{RankSecret, RegistryLogin, StartInputError, StartSecrets};
use berth_foundation::Context;
use berth_foundation::envelope::{self, EnvelopeError, Keys, SealingContext};
use berth_foundation::{Caller, Right};
use berth_store::secrets::StoredSecret;
use berth_store::webhooks::StoredWebhook;
use berth_store::{self as store, StoreError, Tx, WriteError};

/// The reason why a secret cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unusable {
    /// There is no secret of this name.
    Missing,
    /// The portal does not have the key of the secret.
    Unreadable,
    /// The value is not of the form `username:password`.
    NoCredentials,
}

impl Unusable {
    /// The failure of a job that needs the secret.
    fn failure(self, name: &str) -> Failure {
        let (code, detail) = match self {
            Self::Missing => {
                ("secret.missing", format!("The secret {name} was deleted before the start of the attempt."))
            }
            Self::Unreadable => (
                "secret.unreadable",
                format!("The secret {name} is sealed with a missing key. Set the secret again."),
            ),
            Self::NoCredentials => (
                "secret.no_credentials",
                format!(
                    "The secret {name} does not have the form username:password of a registry. Set the secret again."
                ),
            ),
        };
        Failure { code: code.to_owned(), detail }
    }
}

fn to_secret(row: StoredSecret) -> Secret {
    Secret {
        name: row.name,
        version: row.version,
        created_at: row.created_at,
        created_by: row.created_by,
        updated_at: row.updated_at,
        updated_by: row.updated_by,
        last_used_at: row.last_used_at,
    }
}

/// Runs `work` with the sealing context of a secret.
fn with_secret_context<T>(row: &StoredSecret, work: impl FnOnce(&SealingContext<'_>) -> T) -> T {
    let org = row.org_id.to_string();
    work(&SealingContext { kind: "secret", org: &org, name: &row.name, version: row.version })
}

/// Runs `work` with the sealing context of the secret of a webhook.
fn with_webhook_context<T>(row: &StoredWebhook, work: impl FnOnce(&SealingContext<'_>) -> T) -> T {
    let (org, id) = (row.org_id.to_string(), row.id.to_string());
    work(&SealingContext { kind: "webhook", org: &org, name: &id, version: 1 })
}

fn seal_error(error: EnvelopeError) -> StoreError {
    StoreError::Engine(format!("a secret cannot be sealed: {error}"))
}

fn limit_reached() -> Problem {
    let detail = format!("An organization has at most {MAX_SECRETS} secrets. Delete an unused one.");
    Problem::conflict("secret.limit", "Too many secrets", detail)
}

/// Refuses a submission that names a missing secret.
pub async fn check_secrets_exist(tx: &mut Tx<'_>, org: OrgId, spec: &NewJob) -> Result<(), WriteError> {
    let mut errors = Vec::new();
    for (index, request) in spec.secrets.iter().enumerate() {
        if store::secrets::find(tx, org, &request.name).await?.is_none() {
            let detail = format!("The secret {} does not exist in this organization.", request.name);
            errors.push(FieldError::new(format!("/secrets/{index}/name"), detail));
        }
    }
    if let Some(registry) = &spec.registry
        && store::secrets::find(tx, org, &registry.secret).await?.is_none()
    {
        let detail = format!("The secret {} does not exist in this organization.", registry.secret);
        errors.push(FieldError::new("/registry/secret", detail));
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::invalid(errors).into()) }
}

/// The row of a new value: a new secret, or the next version of `former`.
fn sealed_row(
    keys: &Keys,
    (org, name, value): (OrgId, &str, &str),
    former: Option<StoredSecret>,
    by: &str,
    now: Timestamp,
) -> Result<StoredSecret, StoreError> {
    let first = StoredSecret {
        org_id: org,
        name: name.to_owned(),
        version: 0,
        sealed: String::new(),
        created_by: by.to_owned(),
        created_at: now,
        updated_by: String::new(),
        updated_at: now,
        last_used_at: None,
    };
    let mut row = former.unwrap_or(first);
    row.version += 1;
    row.updated_by = by.to_owned();
    row.updated_at = now;
    row.sealed = with_secret_context(&row, |context| keys.seal(context, value)).map_err(seal_error)?;
    Ok(row)
}

/// The numbers of secrets and webhooks in a change of the key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resealed {
    /// Sealed with the present key now.
    pub done: usize,
    /// Sealed with a key that this portal does not have, or damaged.
    pub unreadable: usize,
}

/// The secrets of organizations.
#[derive(Clone)]
pub struct Secrets {
    context: Context,
}

impl Secrets {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    fn sealing_keys(&self) -> Result<Arc<Keys>, Problem> {
        self.context.keys().map_err(|error| {
            tracing::error!(error, "no key for secrets is available");
            Problem::internal()
        })
    }

    /// A page of the names and times of an organization's secrets. Members who may run jobs may use them.
    pub async fn list_secrets(
        &self,
        caller: &Caller,
        org: OrgId,
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<Secret>, Problem> {
        self.context.authorise(caller, org, Right::Run).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::secrets::list(&mut conn.tx(), org, options).await?;
        Ok(options.page(rows, |row| NameCursor(row.name.clone())).map(to_secret))
    }

    /// Creates a secret, or replaces the value of one.
    pub async fn put_secret(
        &self,
        caller: &Caller,
        org: OrgId,
        name: String,
        input: PutSecret,
    ) -> Result<Secret, Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let mut errors = Vec::new();
        if let Err(detail) = check_name(&name) {
            errors.push(FieldError::new("/name", detail));
        }
        if let Err(detail) = check_value(&input.value) {
            errors.push(FieldError::new("/value", detail));
        }
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let (keys, now) = (self.sealing_keys()?, self.context.now());
        let event = self.context.audit_event(caller, "secret.created", name.clone(), String::new());
        let done = self.context.db.try_write(move |tx| {
            let (keys, name, input, mut event) = (keys.clone(), name.clone(), input.clone(), event.clone());
            async move {
                let former = store::secrets::find(tx, org, &name).await?;
                let most = i64::try_from(MAX_SECRETS).unwrap_or(i64::MAX);
                if former.is_none() && store::secrets::count(tx, org).await? >= most {
                    return Err(limit_reached().into());
                }
                if former.is_some() {
                    event.action = "secret.replaced".to_owned();
                }
                let row = sealed_row(&keys, (org, &name, &input.value), former, &event.actor, now)?;
                event.detail = format!("version {}", row.version);
                store::secrets::put(tx, &row).await?;
                store::quotas::insert_audit(tx, Some(org), &event).await?;
                Ok(row)
            }
            .boxed()
        });
        Ok(to_secret(done.await?))
    }

    /// Deletes a secret. Queued jobs that use it fail at their start. Running jobs keep their copy.
    pub async fn delete_secret(&self, caller: &Caller, org: OrgId, name: String) -> Result<(), Problem> {
        self.context.authorise(caller, org, Right::Manage).await?;
        let event = self.context.audit_event(caller, "secret.deleted", name.clone(), String::new());
        let known = self.context.db.write(move |tx| {
            let (name, event) = (name.clone(), event.clone());
            async move {
                let known = store::secrets::delete(tx, org, &name).await?;
                if known {
                    store::quotas::insert_audit(tx, Some(org), &event).await?;
                }
                Ok(known)
            }
            .boxed()
        });
        if known.await? { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// Opens the value of a secret for the worker of a job. It must not enter an answer.
    async fn open_value(&self, tx: &mut Tx<'_>, org: OrgId, name: &str) -> Result<String, StartInputError> {
        let Some(row) = store::secrets::find(tx, org, name).await? else {
            return Err(StartInputError::Unusable(Unusable::Missing.failure(name)));
        };
        let opened = self.context.keys().and_then(|keys| {
            let opened = with_secret_context(&row, |context| keys.open_sealed(context, &row.sealed));
            opened.map_err(|error| error.to_string())
        });
        opened.map_err(|error| {
            tracing::error!(%org, name, version = row.version, error, "a secret cannot be opened");
            StartInputError::Unusable(Unusable::Unreadable.failure(name))
        })
    }

    /// Opens all secrets of a submission for its worker.
    ///
    /// # Errors
    /// The first secret that is not there any more, cannot be opened or has no credentials; or the database
    /// cannot be read.
    pub async fn open_start_secrets(
        &self,
        tx: &mut Tx<'_>,
        org: OrgId,
        submission: &NewJob,
    ) -> Result<StartSecrets, StartInputError> {
        let mut opened = StartSecrets::default();
        for SecretUse { name, env, file } in submission.secrets.iter().cloned() {
            let value = self.open_value(tx, org, &name).await?;
            opened.secrets.push(RankSecret { name, value, env, file });
        }
        if let Some(RegistryUse { secret }) = &submission.registry {
            opened.registry_login =
                self.open_registry_login(tx, org, submission.image.as_deref(), secret).await?;
        }
        Ok(opened)
    }

    /// The credentials for the registry of an image. `None` for a job without an image, or with a local one.
    async fn open_registry_login(
        &self,
        tx: &mut Tx<'_>,
        org: OrgId,
        image: Option<&str>,
        secret: &str,
    ) -> Result<Option<RegistryLogin>, StartInputError> {
        let image = image.and_then(|name| Reference::parse(name).ok());
        let Some(image) = image.filter(|image| !image.is_local()) else { return Ok(None) };
        let value = self.open_value(tx, org, secret).await?;
        let Some((username, password)) = parse_credentials(&value) else {
            return Err(StartInputError::Unusable(Unusable::NoCredentials.failure(secret)));
        };
        Ok(Some(RegistryLogin {
            registry: image.registry().to_owned(),
            username: username.to_owned(),
            password: password.to_owned(),
            secret: secret.to_owned(),
        }))
    }

    /// Records the use of secrets, given as pairs of job id and secret name.
    pub async fn mark_secrets_used(&self, given: Vec<(String, String)>) {
        if given.is_empty() {
            return;
        }
        let now = self.context.now();
        let parse = |(job, name): (String, String)| Some((job.parse::<JobId>().ok()?, name));
        let given: Vec<(JobId, String)> = given.into_iter().filter_map(parse).collect();
        let noted = self.context.db.write(move |tx| {
            let given = given.clone();
            async move {
                let jobs: Vec<JobId> = given.iter().map(|(job, _)| *job).collect();
                let jobs = store::jobs::list_any(tx, &jobs).await?;
                let orgs: HashMap<JobId, OrgId> = jobs.into_iter().map(|job| (job.id, job.org_id)).collect();
                let org_secret = |(job, name): (JobId, String)| Some((*orgs.get(&job)?, name));
                // Jobs of one organization can share a secret.
                let used: BTreeSet<(OrgId, String)> = given.into_iter().filter_map(org_secret).collect();
                for (org, name) in used {
                    store::secrets::mark_used(tx, org, &name, now).await?;
                }
                Ok(())
            }
            .boxed()
        });
        if let Err(error) = noted.await {
            tracing::warn!(%error, "the last use of secrets cannot be recorded");
        }
    }

    /// Seals the secret of a webhook.
    pub fn seal_webhook(&self, row: StoredWebhook) -> Result<StoredWebhook, Problem> {
        let keys = self.sealing_keys()?;
        let sealed = with_webhook_context(&row, |context| keys.seal(context, &row.secret));
        Ok(StoredWebhook { secret: sealed.map_err(seal_error)?, ..row })
    }

    /// The secret that signs the requests of a webhook. `None` if it cannot be opened.
    pub fn signing_secret(&self, row: &StoredWebhook) -> Option<String> {
        if !envelope::is_sealed(&row.secret) {
            return Some(row.secret.clone());
        }
        let opened = self.context.keys().and_then(|keys| {
            let opened = with_webhook_context(row, |context| keys.open_sealed(context, &row.secret));
            opened.map_err(|error| error.to_string())
        });
        opened
            .inspect_err(
                |error| tracing::error!(webhook = %row.id, error, "the secret of a webhook cannot be opened"),
            )
            .ok()
    }

    /// Checks that the missing key file is not needed. To be called before anything creates the file.
    ///
    /// # Errors
    /// The file is missing, and there are secrets that only its key opens.
    pub async fn check_key_file(&self) -> Result<(), String> {
        let file = self.context.settings.secrets_key_file();
        if file.exists() {
            return Ok(());
        }
        let (secrets, hooks) = self.sealed().await.map_err(|e| e.to_string())?;
        let secrets = secrets.into_iter().map(|row| row.sealed);
        let all: Vec<String> = secrets.chain(hooks.into_iter().map(|row| row.secret)).collect();
        if Keys::can_open_all(&self.context.settings.secrets_old_keys, &all)? {
            return Ok(());
        }
        Err(format!(
            "{} is missing, and stored secrets need its key. Restore the file. If it is lost, create a new key there (openssl rand -base64 32) and set the secrets and webhooks again",
            file.display()
        ))
    }

    /// Loads or creates the key and seals with it all secrets and webhooks that are not sealed with it yet.
    /// To be called at the start, before the portal serves requests.
    ///
    /// # Errors
    /// The key file is missing and there are secrets that only its key opens.
    pub async fn reseal_secrets(&self) -> Result<Resealed, String> {
        self.check_key_file().await?;
        let (secrets, hooks) = self.sealed().await.map_err(|e| e.to_string())?;
        let keys = self.context.keys()?;
        let mut counts = Resealed::default();
        for row in secrets {
            let resealed = with_secret_context(&row, |context| keys.rewrap(context, &row.sealed));
            self.update_secret(row, resealed, &mut counts).await.map_err(|e| e.to_string())?;
        }
        for row in hooks {
            let resealed = with_webhook_context(&row, |context| match envelope::is_sealed(&row.secret) {
                true => keys.rewrap(context, &row.secret),
                false => keys.seal(context, &row.secret).map(Some),
            });
            self.update_webhook(row, resealed, &mut counts).await.map_err(|e| e.to_string())?;
        }
        if counts != Resealed::default() {
            tracing::info!(key = keys.id(), sealed = counts.done, unreadable = counts.unreadable, "secrets");
        }
        Ok(counts)
    }

    async fn sealed(&self) -> Result<(Vec<StoredSecret>, Vec<StoredWebhook>), StoreError> {
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        Ok((store::secrets::list_all(&mut tx).await?, store::webhooks::list(&mut tx, None).await?))
    }

    async fn update_secret(
        &self,
        row: StoredSecret,
        resealed: Result<Option<String>, EnvelopeError>,
        counts: &mut Resealed,
    ) -> Result<(), StoreError> {
        let Some(sealed) = resealed_text(resealed, row.org_id, &row.name, counts) else { return Ok(()) };
        let updated = self.context.db.write(move |tx| {
            let (row, sealed) = (row.clone(), sealed.clone());
            async move { store::secrets::reseal(tx, &row, &sealed).await }.boxed()
        });
        counts.done += usize::from(updated.await?);
        Ok(())
    }

    async fn update_webhook(
        &self,
        row: StoredWebhook,
        resealed: Result<Option<String>, EnvelopeError>,
        counts: &mut Resealed,
    ) -> Result<(), StoreError> {
        let Some(sealed) = resealed_text(resealed, row.org_id, &row.id.to_string(), counts) else {
            return Ok(());
        };
        let updated = self.context.db.write(move |tx| {
            let (row, sealed) = (row.clone(), sealed.clone());
            async move { store::webhooks::reseal(tx, &row, &sealed).await }.boxed()
        });
        counts.done += usize::from(updated.await?);
        Ok(())
    }
}

/// The new sealed text of a secret. `None` if the old text stays, because it is current or unreadable.
fn resealed_text(
    resealed: Result<Option<String>, EnvelopeError>,
    org: OrgId,
    name: &str,
    counts: &mut Resealed,
) -> Option<String> {
    resealed.unwrap_or_else(|error| {
        tracing::error!(%org, name, %error, "a secret cannot be opened; set it again");
        counts.unreadable += 1;
        None
    })
}
