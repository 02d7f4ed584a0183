//! Arguments that several commands of the program share, and the arguments of `audit verify`.

use std::path::PathBuf;
use std::time::Duration;

use berth_foundation::Settings;
use berth_foundation::audit_check::{Fault, verify};
use berth_foundation::audit_key::{AuditKey, LastCheckpoint};
use berth_foundation::data_directory::{DATABASE, check_database, existing_database};
use berth_foundation::portal_lock::PortalLock;
use berth_store::{Db, StoreError, is_protected_url};

fn cannot_open(error: StoreError) -> String {
    format!("the database cannot be opened: {error}")
}

#[derive(clap::Args)]
pub struct Store {
    /// The directory for all data of the portal.
    #[arg(long, env = "BERTH_DATA", default_value = "./data")]
    pub data: PathBuf,
    /// The postgres:// URL of the database. Without it the database is an SQLite file in the data directory.
    #[arg(long, env = "BERTH_DATABASE", hide_env_values = true)]
    pub database: Option<String>,
    /// Postgres on another host may be reached without sslmode=verify-full in the URL. Everybody on the way to it can
    /// then read and change all data.
    #[arg(long, env = "BERTH_DATABASE_UNVERIFIED")]
    pub database_unverified: bool,
}

impl Store {
    /// The URL of Postgres; `None` for SQLite.
    ///
    /// # Errors
    /// Postgres is on another host, and neither its URL nor an option decides about the verification of that host.
    pub fn postgres_url(&self) -> Result<Option<&str>, String> {
        let Some(url) = self.database.as_deref() else { return Ok(None) };
        let protected = is_protected_url(url).map_err(cannot_open)?;
        if protected || self.database_unverified {
            return Ok(Some(url));
        }
        Err("the database is on another host, and its URL has no sslmode=verify-full, so that anybody on the way can read and change all data. Nothing was opened. Add sslmode=verify-full and, for a private authority, sslrootcert=FILE to the URL, or accept this with --database-unverified".to_owned())
    }

    /// Opens the database, and chains the audit events of earlier versions of Berth.
    ///
    /// # Errors
    /// The data directory or the database cannot be opened.
    pub async fn open(&self) -> Result<Db, String> {
        let db = self.open_unchained().await?;
        db.chain_audit_events().await.map_err(|e| format!("the audit log cannot be chained: {e}"))?;
        Ok(db)
    }

    /// Locks the data directory and the database for one portal, or for a command while none runs. Nothing is read or
    /// changed before. Waits at most `wait` for the end of another portal.
    ///
    /// # Errors
    /// Another portal runs, the data directory or the database cannot be opened, or the directory has the data of a portal
    /// without its database.
    pub async fn lock(&self, wait: Duration) -> Result<PortalLock, String> {
        let url = self.postgres_url()?;
        if url.is_none() {
            check_database(&self.data)?;
        }
        PortalLock::lock(&self.data, url, wait).await
    }

    /// Locks the data and opens the database of a portal, without a new SQLite file at a mistyped place.
    ///
    /// # Errors
    /// A portal runs, there is no SQLite file, or the database cannot be opened.
    pub async fn open_stopped(&self) -> Result<(PortalLock, Db), String> {
        if self.postgres_url()?.is_none() {
            existing_database(&self.data)?;
        }
        let lock = self.lock(Duration::ZERO).await?;
        Ok((lock, self.open().await?))
    }

    /// Brings the database to this version.
    ///
    /// # Errors
    /// A portal runs, there is no SQLite file, or the database cannot be opened.
    pub async fn migrate(&self) -> Result<(), String> {
        self.open_stopped().await.map(drop)
    }

    /// Opens the database without a change of audit events.
    async fn open_unchained(&self) -> Result<Db, String> {
        let db = match self.postgres_url()? {
            Some(url) => Db::postgres(url).await,
            None => Db::sqlite(&self.data.join(DATABASE)).await,
        };
        db.map_err(cannot_open)
    }

    /// Opens the database of a portal without a change: it creates no file and runs no migration.
    async fn open_existing(&self) -> Result<Db, String> {
        let db = match self.postgres_url()? {
            Some(url) => Db::existing_postgres(url).await,
            None => Db::existing_sqlite(&existing_database(&self.data)?).await,
        };
        db.map_err(cannot_open)
    }
}

#[derive(clap::Args)]
pub struct AuditKeyFile {
    /// The file with the key for checkpoints of the audit log: 32 bytes in base64. By default audit.key in the
    /// data directory; the portal creates a missing file.
    #[arg(long, env = "BERTH_AUDIT_KEY_FILE")]
    pub audit_key_file: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct VerifyLog {
    #[command(flatten)]
    store: Store,
    #[command(flatten)]
    key: AuditKeyFile,
    /// The number of the first event. The hash before it is trusted.
    #[arg(long, value_name = "SEQ", default_value_t = 1, value_parser = clap::value_parser!(i64).range(1..))]
    from: i64,
}

/// A fault of the log in one line.
fn fault_text(fault: &Fault) -> String {
    match fault.id.as_str() {
        "" => format!("event {}: {}", fault.seq, fault.difference),
        id => format!("event {} ({id}): {}", fault.seq, fault.difference),
    }
}

impl VerifyLog {
    /// Verifies the log. Returns the result as a text.
    ///
    /// # Errors
    /// The first fault of the log, or a file or a database that cannot be read.
    pub async fn run(self) -> Result<String, String> {
        let Self { store, key, from } = self;
        let db = store.open_existing().await?;
        let settings = Settings { data: store.data, audit_key: key.audit_key_file, ..Settings::default() };
        let key = AuditKey::read(&settings.audit_key_file())?;
        let last = LastCheckpoint::find(&settings.data.join(LastCheckpoint::FILE))?;
        let report = verify(&db, &key, last.as_ref(), from).await.map_err(|e| e.to_string())?;
        if let Some(fault) = report.fault {
            return Err(fault_text(&fault));
        }
        let note = match last {
            Some(last) => {
                format!("The last checkpoint is {} with the hash of event {}.", last.number, last.seq)
            }
            None => format!(
                "The file {} is missing, so a removal of the last checkpoints is not visible.",
                LastCheckpoint::FILE
            ),
        };
        Ok(format!(
            "The audit log is intact. Events: {}, checkpoints: {}. {note} The public key is {}.",
            report.events,
            report.checkpoints,
            key.public_key()
        ))
    }
}
