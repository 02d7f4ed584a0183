//! Texts of figures and short phrases of the pages.
//!
//! Pure: without a clock and without components.

use berth_types::jobs::{CheckpointSignal, Job, JobState, Network, Priority, Topology};
use berth_types::money::{money_text, per_hour_micros};
pub use berth_types::money::{price_text, rate_text, signed_money, ticking_money, typed_amount};
use berth_types::problems::Problem;
use berth_types::time::duration_text;

use crate::api::Answer;
pub use crate::ui::size_text;

/// Returns a count with its noun: `1 job`, `3 jobs`.
pub fn counted(count: usize, one: &str, many: &str) -> String {
    let word = if count == 1 { one } else { many };
    format!("{} {word}", grouped(i64::try_from(count).unwrap_or(i64::MAX)))
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

/// Returns the free devices of a board model: `2 boards free, or 14 slices of 1g.12gb`,
/// `no board free, 3 slices of 1g.12gb`. `slices` are those of the smallest profile on all boards, free boards
/// included.
pub fn free_devices_text(boards: u64, slices: Option<(u64, &str)>) -> String {
    let count =
        |count: u64, one: &str, many: &str| counted(usize::try_from(count).unwrap_or(usize::MAX), one, many);
    let whole = match boards {
        0 => "no board free".to_owned(),
        boards => format!("{} free", count(boards, "board", "boards")),
    };
    match slices.filter(|(slices, _)| *slices > 0) {
        None => whole,
        Some((slices, profile)) => {
            let or = if boards > 0 { "or " } else { "" };
            format!("{whole}, {or}{} of {profile}", count(slices, "slice", "slices"))
        }
    }
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

/// Returns the price of a job an hour: with all its digits for one device.
pub fn hourly_text(job: &Job) -> String {
    let hourly = per_hour_micros(job.nano_per_second).unwrap_or(i64::MAX);
    match (job.nodes, job.count) {
        (1, 1) => money_text(hourly, &job.currency),
        _ => price_text(hourly, &job.currency),
    }
}

/// Returns the name of a state: `timed out` for `timed_out`.
pub fn state_text(state: JobState) -> String {
    state.name().replace('_', " ")
}

/// Returns the name of a priority class.
pub const fn priority_text(priority: Priority) -> &'static str {
    match priority {
        Priority::Low => "low",
        Priority::Normal => "normal",
        Priority::High => "high",
    }
}

/// Returns the network access of a job; none for the default one.
pub const fn network_text(network: Network) -> Option<&'static str> {
    match network {
        Network::Outbound => None,
        Network::Internet => Some("internet only"),
        Network::None => Some("none"),
        Network::Host => Some("Host network"),
    }
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

/// Calculates the charge for `metered_ms` in micro-units, rounded down like the portal.
pub fn charge(nano_per_second: i64, metered_ms: i64) -> i64 {
    let product = i128::from(nano_per_second.max(0)) * i128::from(metered_ms.max(0));
    i64::try_from(product / 1_000_000).unwrap_or(i64::MAX)
}

/// Replaces the refusal of a changed form whose first request took effect: its text is for programs. `next` says how to
/// go on.
pub async fn explain_repeat<T>(answer: impl Future<Output = Answer<T>>, next: &str) -> Answer<T> {
    answer.await.map_err(|problem| {
        if problem.code != "idempotency.other_request" {
            return problem;
        }
        let lost = "The first request of this form took effect; only its answer was lost.";
        Problem { title: "Sent already".to_owned(), detail: format!("{lost} {next}"), ..problem }
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_form_is_told_about_its_first_request() {
        let told = |code: &str| {
            let refused: Answer<()> = Err(Problem::new(422, code, "Refused", "Use a new key."));
            let answer = explain_repeat(std::future::ready(refused), "Open the list.");
            futures::executor::block_on(answer).unwrap_err().detail
        };
        assert_eq!(told("request.invalid"), "Use a new key.");
        let text = "The first request of this form took effect; only its answer was lost. Open the list.";
        assert_eq!(told("idempotency.other_request"), text);
    }

    #[test]
    fn free_devices_have_one_phrase() {
        assert_eq!(free_devices_text(2, Some((14, "1g.12gb"))), "2 boards free, or 14 slices of 1g.12gb");
        assert_eq!(free_devices_text(0, Some((1, "1g.12gb"))), "no board free, 1 slice of 1g.12gb");
        assert_eq!(free_devices_text(1, Some((0, "1g.12gb"))), "1 board free");
        assert_eq!(free_devices_text(1_200, None), "1,200 boards free");
        assert_eq!(free_devices_text(0, None), "no board free");
    }

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
