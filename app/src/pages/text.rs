//! Texts of figures and short phrases of the pages.
//!
//! Pure: without a clock and without components.

use berth_types::jobs::{CheckpointSignal, JobState, Topology};
use berth_types::money::money_text;
use berth_types::time::duration_text;

/// Returns a count with its noun: `1 job`, `3 jobs`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    let word = if count == 1 { one } else { many };
    format!("{} {word}", grouped(i64::try_from(count).unwrap_or(i64::MAX)))
}

/// Returns a size in binary units: `1.5 MiB`.
pub fn size_text(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB"];
    let mut tenths = u128::from(bytes) * 10;
    let mut unit = "bytes";
    for larger in units {
        if tenths < 10_240 {
            break;
        }
        tenths /= 1_024;
        unit = larger;
    }
    match unit {
        "bytes" => format!("{bytes} bytes"),
        unit => format!("{}.{} {unit}", tenths / 10, tenths % 10),
    }
}

/// Returns a number with separators: `1,284`.
pub fn grouped(number: i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut out = String::new();
    if number < 0 {
        out.push('−');
    }
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a count with separators: `1,284`.
pub fn number(count: u64) -> String {
    grouped(i64::try_from(count).unwrap_or(i64::MAX))
}

/// Returns `h100-80gb × 4`, or the slug alone for one device.
pub fn offering_text(slug: &str, count: u32) -> String {
    if count > 1 { format!("{slug} × {count}") } else { slug.to_owned() }
}

/// Returns MiB as GiB with at most one decimal: `80`, `9.5`.
pub fn gib(mib: i64) -> String {
    let tenths = mib.max(0).saturating_mul(10).saturating_add(512) / 1_024;
    if tenths % 10 == 0 { (tenths / 10).to_string() } else { format!("{}.{}", tenths / 10, tenths % 10) }
}

/// Returns the name of a state: `timed out` for `timed_out`.
pub fn state_text(state: JobState) -> String {
    state.name().replace('_', " ")
}

/// Returns a short name of a topology.
pub const fn topology_text(topology: Topology) -> &'static str {
    match topology {
        Topology::Any => "anywhere",
        Topology::SameNode => "one node",
        Topology::SameSwitch => "one switch",
        Topology::SameRack => "one rack",
        Topology::Nvlink => "NVLink",
    }
}

/// Returns the POSIX name of a signal.
pub const fn signal_text(signal: CheckpointSignal) -> &'static str {
    match signal {
        CheckpointSignal::Term => "SIGTERM",
        CheckpointSignal::Int => "SIGINT",
        CheckpointSignal::Hup => "SIGHUP",
        CheckpointSignal::Usr1 => "SIGUSR1",
        CheckpointSignal::Usr2 => "SIGUSR2",
    }
}

/// Returns the used retries: `1 of 3 used`.
pub fn retries_text(used: u32, maximum: u32) -> String {
    format!("{used} of {maximum} used")
}

/// Returns the runway in hours with at most one decimal; `None` without a current cost.
pub fn runway(available_micros: i64, burn_per_hour_micros: i64) -> Option<String> {
    if burn_per_hour_micros <= 0 {
        return None;
    }
    let tenths = available_micros.max(0).saturating_mul(10) / burn_per_hour_micros;
    Some(if tenths >= 10_000 { grouped(tenths / 10) } else { format!("{}.{}", tenths / 10, tenths % 10) })
}

/// Returns an amount with its sign: `+$5.00`, `−$0.02`, `$0.00`.
pub fn signed_money(micros: i64, currency: &str) -> String {
    let plus = if micros > 0 { "+" } else { "" };
    format!("{plus}{}", money_text(micros, currency))
}

fn symbol(currency: &str) -> String {
    money_text(0, currency).trim_end_matches("0.00").to_owned()
}

/// Returns an amount with all six decimals, for statements: `$11.573612`.
pub fn full_money(micros: i64, currency: &str) -> String {
    let sign = if micros < 0 { "−" } else { "" };
    let magnitude = micros.unsigned_abs();
    let units = grouped(i64::try_from(magnitude / 1_000_000).unwrap_or(i64::MAX));
    format!("{sign}{}{units}.{:06}", symbol(currency), magnitude % 1_000_000)
}

/// Returns an amount with four decimals, for live counters: `$11.5736`.
pub fn ticking_money(micros: i64, currency: &str) -> String {
    let magnitude = micros.max(0) / 100;
    format!("{}{}.{:04}", symbol(currency), grouped(magnitude / 10_000), magnitude % 10_000)
}

/// Returns a rate with all nine decimals: `$0.002677777`.
pub fn rate_text(nano_per_second: i64, currency: &str) -> String {
    let nano = nano_per_second.max(0);
    format!("{}{}.{:09}", symbol(currency), grouped(nano / 1_000_000_000), nano % 1_000_000_000)
}

/// Calculates the charge for `metered_ms` in micro-units, rounded down like the portal.
pub fn charge(nano_per_second: i64, metered_ms: i64) -> i64 {
    let product = i128::from(nano_per_second.max(0)) * i128::from(metered_ms.max(0));
    i64::try_from(product / 1_000_000).unwrap_or(i64::MAX)
}

/// Adds a full stop to a phrase without one.
pub fn sentence(phrase: &str) -> String {
    let phrase = phrase.trim();
    if phrase.is_empty() || phrase.ends_with(['.', '!', '?', '…']) {
        phrase.to_owned()
    } else {
        format!("{phrase}.")
    }
}

/// Returns a time limit in seconds as text: `3 h`, `15 min 30 s`.
pub fn limit_text(seconds: u64) -> String {
    let text = duration_text(i64::try_from(seconds).unwrap_or(i64::MAX / 1_000).saturating_mul(1_000));
    [" 00 s", " 00 min", " 0 h"].iter().find_map(|none| text.strip_suffix(none)).unwrap_or(&text).to_owned()
}

/// Returns a price per hour with two or four decimals: `$0.30`, `$1.4950`.
pub fn price_text(micros: i64, currency: &str) -> String {
    if micros < 1_000 {
        return money_text(micros, currency);
    }
    let parts = micros.saturating_add(50) / 100;
    let text = format!("{}{}.{:04}", symbol(currency), grouped(parts / 10_000), parts % 10_000);
    text.strip_suffix("00").unwrap_or(&text).to_owned()
}

/// Returns an amount as input: `2.41`, `0.0067`.
pub fn typed_amount(micros: i64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    let short = text.trim_end_matches('0');
    // Prices have at least two decimals.
    let keep = short.len().max(text.len().saturating_sub(4));
    text.get(..keep).unwrap_or(&text).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::money::parse_amount_micros;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(1_284), "1,284");
        assert_eq!(grouped(-1_000_000), "−1,000,000");
        assert_eq!(counted(1, "job", "jobs"), "1 job");
        assert_eq!(counted(1_200, "job", "jobs"), "1,200 jobs");
    }

    #[test]
    fn memory_is_in_gib() {
        assert_eq!(gib(81_920), "80");
        assert_eq!(gib(9_728), "9.5");
        assert_eq!(gib(-4), "0");
    }

    #[test]
    fn runway_is_in_hours_and_absent_without_cost() {
        assert_eq!(runway(419_440_000, 11_490_000).as_deref(), Some("36.5"));
        assert_eq!(runway(-1, 11_490_000).as_deref(), Some("0.0"));
        assert_eq!(runway(2_000_000_000_000, 1_000_000).as_deref(), Some("2,000,000"));
        assert_eq!(runway(5, 0), None);
    }

    #[test]
    fn money_in_statements_keeps_every_digit() {
        assert_eq!(full_money(11_573_612, "USD"), "$11.573612");
        assert_eq!(full_money(-3, "EUR"), "−€0.000003");
        assert_eq!(ticking_money(1_234_567_899, "USD"), "$1,234.5678");
        assert_eq!(rate_text(2_677_777, "USD"), "$0.002677777");
        assert_eq!(signed_money(5_000_000, "USD"), "+$5.00");
        assert_eq!(signed_money(-5_000_000, "USD"), "−$5.00");
    }

    #[test]
    fn a_charge_rounds_down() {
        assert_eq!(charge(2_677_777, 3_600_000), 9_639_997);
        assert_eq!(charge(1, 999_999), 0);
        assert_eq!(charge(i64::MAX, i64::MAX), i64::MAX);
    }

    #[test]
    fn a_sentence_has_one_full_stop() {
        assert_eq!(sentence("Request 4 "), "Request 4.");
        assert_eq!(sentence("Wait."), "Wait.");
        assert_eq!(sentence(""), "");
    }

    #[test]
    fn an_offering_has_its_count() {
        assert_eq!(offering_text("a30-24gb", 1), "a30-24gb");
        assert_eq!(offering_text("a30-24gb", 4), "a30-24gb × 4");
        assert_eq!(state_text(JobState::TimedOut), "timed out");
        assert_eq!(limit_text(10_800), "3 h");
        assert_eq!(limit_text(900), "15 min");
        assert_eq!(limit_text(930), "15 min 30 s");
        assert_eq!(price_text(299_998, "USD"), "$0.30");
        assert_eq!(price_text(1_495_000, "USD"), "$1.4950");
    }

    #[test]
    fn amounts_survive_text_and_parsing() {
        for (micros, text) in [
            (2_410_000, "2.41"),
            (2_000_000, "2.00"),
            (6_700, "0.0067"),
            (500_000, "0.50"),
            (0, "0.00"),
            (1, "0.000001"),
        ] {
            assert_eq!(typed_amount(micros), text);
            assert_eq!(parse_amount_micros(text), Some(micros));
        }
    }

    #[test]
    fn retries_are_counted() {
        assert_eq!(retries_text(1, 3), "1 of 3 used");
        assert_eq!(retries_text(0, 1), "0 of 1 used");
    }

    #[test]
    fn sizes_have_binary_units() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1_023, "1023 bytes"),
            (1_024, "1.0 KiB"),
            (1_587_200, "1.5 MiB"),
            (u64::MAX, "16777215.9 TiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }
}
