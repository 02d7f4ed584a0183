//! The options of stored bytes, retention and free space.

use berth_foundation::Settings;

use super::service_options::ServiceOptions;

#[derive(clap::Args)]
pub struct StorageOptions {
    /// The limit of stored files of an organization that never had credit and has no credit limit, in MiB.
    #[arg(long, env = "BERTH_FREE_STORAGE_MIB", default_value_t = 100, value_parser = clap::value_parser!(i64).range(0..=1_073_741_824))]
    free_storage_mib: i64,
    /// The limit of stored jobs of an organization that never had credit and has no credit limit.
    #[arg(long, env = "BERTH_FREE_JOBS", default_value_t = 100, value_parser = clap::value_parser!(i64).range(0..=1_000_000_000))]
    free_jobs: i64,
    /// The days for which an ended job keeps its submission, logs and files; 0: for ever. Organizations may
    /// choose fewer days.
    #[arg(long, env = "BERTH_KEEP_ENDED_JOBS_DAYS", default_value_t = 365, value_parser = clap::value_parser!(i64).range(0..=36_500))]
    keep_ended_jobs_days: i64,
    /// The free space of the data directory's file system in GiB below which the portal refuses uploads, and
    /// below half of which also submissions and files of workers; 0: no such mark.
    #[arg(long, env = "BERTH_MIN_FREE_GIB", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=1_048_576))]
    min_free_gib: u64,
    #[command(flatten)]
    services: ServiceOptions,
}

impl StorageOptions {
    /// Returns the settings with these options.
    pub fn apply(&self, settings: Settings) -> Settings {
        let settings = self.services.apply(settings);
        Settings {
            free_storage_bytes: self.free_storage_mib << 20,
            free_jobs: self.free_jobs,
            keep_ended_jobs_days: Some(self.keep_ended_jobs_days).filter(|days| *days > 0),
            min_free_bytes: self.min_free_gib << 30,
            ..settings
        }
    }
}
