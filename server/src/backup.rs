//! The command `backup`.

use std::path::PathBuf;

use berth_foundation::backup::{Copied, back_up};
use berth_server::arguments::Store;

#[derive(clap::Args)]
pub struct Backup {
    #[command(flatten)]
    store: Store,
    /// The directory of the copy. It must not exist yet.
    #[arg(long)]
    to: PathBuf,
}

impl Backup {
    /// Copies the data of the portal. Returns the result as a text.
    ///
    /// # Errors
    /// The copy exists already, or a file cannot be read or written.
    pub async fn run(self) -> Result<String, String> {
        let Self { store, to } = self;
        let Copied { files, bytes } = back_up(&store.data, store.postgres_url()?.is_none(), &to).await?;
        let note = match store.database {
            None => "",
            Some(_) => {
                " The database is on Postgres, and not in the copy. A dump of it (pg_dump) must be older than the copy."
            }
        };
        Ok(format!("Copied {files} files, {bytes} bytes, to {}.{note}", to.display()))
    }
}
