//! Times as microseconds in UTC, with RFC 3339 as the wire format.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
#[serde(into = "String", try_from = "String")]
pub struct Timestamp(i64);

/// The error for a text that is no RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected an RFC 3339 time such as 2026-03-01T09:00:00Z")]
pub struct TimeError;

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Timestamp {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "type": "string",
            "format": "date-time",
            "description": "RFC 3339, in UTC where Berth writes it.",
            "examples": ["2027-09-01T08:00:00Z"],
        })
    }
}

impl Timestamp {
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }
    pub const fn micros(self) -> i64 {
        self.0
    }
    pub const fn millis(self) -> i64 {
        self.0.div_euclid(1_000)
    }
    /// Returns the time later by `seconds`, limited to the range of the type.
    #[must_use]
    pub const fn plus_seconds(self, seconds: i64) -> Self {
        Self(self.0.saturating_add(seconds.saturating_mul(1_000_000)))
    }
    #[must_use]
    pub const fn plus_millis(self, millis: i64) -> Self {
        Self(self.0.saturating_add(millis.saturating_mul(1_000)))
    }
    /// Returns the milliseconds from `earlier` to this time; negative if `earlier` is later.
    pub const fn millis_since(self, earlier: Self) -> i64 {
        self.0.saturating_sub(earlier.0).div_euclid(1_000)
    }
    /// Returns the time in RFC 3339 with milliseconds, such as `2026-11-20T14:20:05.120Z`: 24 characters in the
    /// years 0 to 9999.
    pub fn rfc3339_millis(self) -> String {
        self.civil().map_or_else(String::new, |t| {
            let (month, millis) = (u8::from(t.month()), t.millisecond());
            let (date, clock) = (format!("{:04}-{month:02}-{:02}", t.year(), t.day()), self.clock());
            format!("{date}T{clock}.{millis:03}Z")
        })
    }
    fn civil(self) -> Option<OffsetDateTime> {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1_000).ok()
    }
    /// Returns the time of day in UTC, such as `14:20:05`.
    pub fn clock(self) -> String {
        self.civil()
            .map_or_else(String::new, |t| format!("{:02}:{:02}:{:02}", t.hour(), t.minute(), t.second()))
    }
    /// Returns date and minute, such as `2026-11-20 14:20 UTC`.
    pub fn minute(self) -> String {
        self.civil().map_or_else(String::new, |t| {
            let month = u8::from(t.month());
            format!("{:04}-{month:02}-{:02} {:02}:{:02} UTC", t.year(), t.day(), t.hour(), t.minute())
        })
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.civil().and_then(|time| time.format(&Rfc3339).ok()) {
            Some(time) => f.write_str(&time),
            None => write!(f, "{}us", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let nanos = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| TimeError)?.unix_timestamp_nanos();
        i64::try_from(nanos.div_euclid(1_000)).map(Self).map_err(|_| TimeError)
    }
}

impl TryFrom<String> for Timestamp {
    type Error = TimeError;
    fn try_from(text: String) -> Result<Self, TimeError> {
        text.parse()
    }
}

impl From<Timestamp> for String {
    fn from(time: Timestamp) -> String {
        time.to_string()
    }
}

/// Formats a length of time for people, such as `1 h 12 min`, `4 min 05 s`, `2.4 s` or `0 s`.
pub fn duration_text(millis: i64) -> String {
    let millis = millis.max(0);
    let seconds = millis / 1_000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    if days > 0 {
        format!("{days} d {hours} h")
    } else if hours > 0 {
        format!("{hours} h {minutes:02} min")
    } else if minutes > 0 {
        format!("{minutes} min {:02} s", seconds % 60)
    } else if seconds >= 10 || millis % 1_000 == 0 {
        format!("{seconds} s")
    } else if millis < 100 {
        format!("{millis} ms")
    } else {
        format!("{}.{} s", seconds, millis % 1_000 / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_3339_there_and_back() {
        let time = Timestamp::from_micros(1_795_214_589_123_456);
        assert_eq!(time.to_string().parse(), Ok(time));
        assert_eq!(
            "2026-11-20T22:43:09+01:00".parse::<Timestamp>().unwrap().to_string(),
            "2026-11-20T21:43:09Z"
        );
        assert_eq!("yesterday".parse::<Timestamp>(), Err(TimeError));
        assert!(!Timestamp::from_micros(i64::MIN).to_string().is_empty());
    }

    #[test]
    fn milliseconds_have_three_digits() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (1_795_214_589_123_456, "2026-11-20T22:43:09.123Z"),
            (1_795_214_589_020_000, "2026-11-20T22:43:09.020Z"),
            (-1, "1969-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(Timestamp::from_micros(micros).rfc3339_millis(), text);
        }
    }

    #[test]
    fn durations_read_well() {
        let cases = [
            (0, "0 s"),
            (35, "35 ms"),
            (900, "0.9 s"),
            (12_400, "12 s"),
            (245_000, "4 min 05 s"),
            (4_320_000, "1 h 12 min"),
            (90_000_000, "1 d 1 h"),
            (-5, "0 s"),
        ];
        for (millis, text) in cases {
            assert_eq!(duration_text(millis), text);
        }
    }
}
