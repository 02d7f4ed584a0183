//! The options of the retention of readings.

use berth_recordings::Retention;

#[derive(clap::Args)]
pub struct Readings {
    /// The retention of readings of jobs' devices at steps of one second, in seconds.
    #[arg(long, env = "BERTH_READINGS_BY_SECOND_S", default_value_t = Retention::default().by_second_s, value_parser = clap::value_parser!(i64).range(60..=86_400))]
    readings_by_second_s: i64,
    /// The retention of means of ten seconds, in seconds.
    #[arg(long, env = "BERTH_READINGS_BY_TEN_S", default_value_t = Retention::default().by_ten_s, value_parser = clap::value_parser!(i64).range(60..=31_536_000))]
    readings_by_ten_s: i64,
    /// The retention of means of one minute, in days. After it a job has no charts.
    #[arg(long, env = "BERTH_READINGS_DAYS", default_value_t = Retention::default().by_minute_s / 86_400, value_parser = clap::value_parser!(i64).range(1..=3_650))]
    readings_days: i64,
}

impl Readings {
    /// The retention of readings.
    ///
    /// # Errors
    /// A finer step has a longer retention.
    pub fn keep(&self) -> Result<Retention, String> {
        let by_minute_s = self.readings_days * 86_400;
        let keep = Retention {
            by_second_s: self.readings_by_second_s,
            by_ten_s: self.readings_by_ten_s,
            by_minute_s,
        };
        let error = "the retention of readings at each step is at least the retention at the finer step: \
                     --readings-by-second-s, then --readings-by-ten-s, then --readings-days";
        if keep.is_valid() { Ok(keep) } else { Err(error.to_owned()) }
    }
}
