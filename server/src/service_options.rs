//! The options of services: the retention of their records, and the credit of gateways.

use berth_foundation::Settings;

#[derive(clap::Args)]
pub struct ServiceOptions {
    /// The days for which the use of services by hour, ended replicas, deleted services and revoked inference keys stay;
    /// 0: for ever. Deleted services and revoked keys stay as long as their use, and the use stays for 41 days at least,
    /// because promises need it.
    #[arg(long, env = "BERTH_KEEP_SERVICE_RECORDS_DAYS", default_value_t = 400, value_parser = clap::value_parser!(i64).range(0..=36_500))]
    keep_service_records_days: i64,
    /// The most credit of one gateway in one organization in an hour, in whole units of the currency: open blocks and
    /// charges. It bounds what a stolen token of a gateway can spend.
    #[arg(long, env = "BERTH_GATEWAY_CREDIT", default_value_t = 100, value_parser = clap::value_parser!(i64).range(1..=1_000_000))]
    gateway_credit: i64,
}

impl ServiceOptions {
    /// Returns the settings with these options.
    pub fn apply(&self, settings: Settings) -> Settings {
        Settings {
            keep_service_records_days: Some(self.keep_service_records_days).filter(|days| *days > 0),
            gateway_credit_micros: self.gateway_credit * 1_000_000,
            ..settings
        }
    }
}
