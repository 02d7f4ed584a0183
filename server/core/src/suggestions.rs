//! Candidates for changes of a submission with which it may start now. Only the engine can prove that it does.

use berth_types::jobs::{NewJob, SubmissionChange, Topology};
use berth_types::time::duration_text;

/// The largest number of other offerings to try.
const MAX_OFFERINGS: usize = 12;
/// The seconds between a suggestion and its submission for which a shorter time limit still fits.
const SLACK_S: u64 = 120;

/// The part of an offering on which suggestions depend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offered<'a> {
    pub slug: &'a str,
    pub model: &'a str,
    /// The MIG profile; `None` for a whole board.
    pub profile: Option<&'a str>,
    /// The memory of one device in MiB.
    pub memory_mib: i64,
    pub simulated: bool,
}

/// Returns the changes to try: `first`, then other offerings, then the price of preemptible jobs. Offerings of the
/// same board model come first, then those with the least difference of memory. Real boards and simulated ones do
/// not replace each other, a share stays a share of a whole board, several devices stay whole boards, and a
/// reservation has only its own devices.
pub fn candidates(
    job: &NewJob,
    own: Offered<'_>,
    all: &[Offered<'_>],
    first: Vec<SubmissionChange>,
) -> Vec<SubmissionChange> {
    let mut out = first;
    if job.reservation.is_some() {
        return out;
    }
    let fits = |other: &&Offered<'_>| {
        other.slug != own.slug
            && other.simulated == own.simulated
            && ((job.gpu_milli.is_none() && job.count <= 1) || other.profile.is_none())
    };
    let mut others: Vec<&Offered<'_>> = all.iter().filter(fits).collect();
    others.sort_by_key(|other| {
        (other.model != own.model, other.memory_mib.abs_diff(own.memory_mib), other.memory_mib, other.slug)
    });
    let change = |other: &Offered<'_>| SubmissionChange {
        offering: Some(other.slug.to_owned()),
        ..SubmissionChange::default()
    };
    out.extend(others.into_iter().take(MAX_OFFERINGS).map(change));
    if !job.preemptible {
        out.push(SubmissionChange { preemptible: Some(true), ..SubmissionChange::default() });
    }
    out
}

/// Returns a time limit for a run that has to end within `left_s` seconds from now. It leaves two minutes until
/// the submission. `None` if too little time is left.
pub fn shorter_limit_s(left_s: i64) -> Option<u64> {
    let limit_s = u64::try_from(left_s).ok()?.checked_sub(SLACK_S)?;
    let whole_minutes_s = limit_s / 60 * 60;
    (whole_minutes_s > 0).then_some(whole_minutes_s)
}

fn device_text(own: Offered<'_>, chosen: Offered<'_>) -> String {
    match (chosen.profile, chosen.model == own.model) {
        (Some(profile), true) => profile.to_owned(),
        (Some(profile), false) => format!("{profile} of {}", chosen.model),
        (None, _) => format!("whole {}", chosen.model),
    }
}

/// Returns the text of a change with which the submission starts now. `chosen` is the offering of the change.
pub fn label(change: &SubmissionChange, own: Offered<'_>, chosen: Offered<'_>) -> String {
    let mut parts = Vec::new();
    if change.offering.is_some() {
        parts.push(device_text(own, chosen));
    }
    if let Some(count) = change.count {
        parts.push(if count == 1 {
            "1 device per node".to_owned()
        } else {
            format!("{count} devices per node")
        });
    }
    if let Some(nodes) = change.nodes {
        parts.push(if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") });
    }
    match change.topology {
        None => {}
        Some(Topology::Any) => parts.push("any topology".to_owned()),
        Some(other) => parts.push(format!("topology {}", other.name().replace('_', " "))),
    }
    if let Some(seconds) = change.max_duration_s {
        let millis = i64::try_from(seconds).unwrap_or(i64::MAX / 1_000).saturating_mul(1_000);
        parts.push(format!("time limit of {}", duration_text(millis)));
    }
    match change.preemptible {
        None => {}
        Some(true) => parts.push("preemptible".to_owned()),
        Some(false) => parts.push("not preemptible".to_owned()),
    }
    format!("{}, free now", parts.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn offered(
        slug: &'static str,
        model: &'static str,
        profile: Option<&'static str>,
        gib: i64,
    ) -> Offered<'static> {
        Offered { slug, model, profile, memory_mib: gib * 1_024, simulated: false }
    }

    const WHOLE: Offered<'static> = offered("a30-24gb", "A30-24GB", None, 24);
    const HALF: Offered<'static> = offered("a30-24gb.2g.12gb", "A30-24GB", Some("2g.12gb"), 12);
    const QUARTER: Offered<'static> = offered("a30-24gb.1g.6gb", "A30-24GB", Some("1g.6gb"), 6);
    const LARGE: Offered<'static> = offered("h100-80gb", "H100-80GB", None, 80);

    fn slugs(job: &NewJob, all: &[Offered<'_>]) -> Vec<String> {
        candidates(job, WHOLE, all, Vec::new()).into_iter().filter_map(|change| change.offering).collect()
    }

    #[test]
    fn the_nearest_offerings_come_first() {
        let simulated = Offered { slug: "fake", simulated: true, ..HALF };
        let all = [LARGE, QUARTER, simulated, WHOLE, HALF];
        let job = NewJob::default();
        assert_eq!(slugs(&job, &all), ["a30-24gb.2g.12gb", "a30-24gb.1g.6gb", "h100-80gb"]);
        let share = NewJob { gpu_milli: Some(500), ..job };
        assert_eq!(slugs(&share, &all), ["h100-80gb"]);
        let several = NewJob { count: 2, ..NewJob::default() };
        assert_eq!(slugs(&several, &all), ["h100-80gb"], "a process uses one slice only");
        let many: Vec<String> = (0..40).map(|n| format!("slice-{n:02}")).collect();
        let many: Vec<Offered<'_>> = many.iter().map(|slug| Offered { slug, ..HALF }).collect();
        assert_eq!(slugs(&NewJob::default(), &many).len(), MAX_OFFERINGS);
    }

    #[test]
    fn a_job_of_a_reservation_keeps_its_devices() {
        let reservation = Some("res_00000000000000000000000001".parse().unwrap());
        let first = vec![SubmissionChange { count: Some(1), ..SubmissionChange::default() }];
        let inside = NewJob { reservation, ..NewJob::default() };
        assert_eq!(candidates(&inside, WHOLE, &[WHOLE, HALF], first.clone()), first);
        let outside = candidates(&NewJob::default(), WHOLE, &[WHOLE, HALF], first.clone());
        let preemptible = outside.last().and_then(|change| change.preemptible);
        assert_eq!((outside.len(), outside.first(), preemptible), (3, first.first(), Some(true)));
        let job = NewJob { preemptible: true, ..NewJob::default() };
        assert_eq!(candidates(&job, WHOLE, &[WHOLE], Vec::new()), []);
    }

    #[test]
    fn a_shorter_limit_leaves_time_for_the_submission() {
        assert_eq!(shorter_limit_s(3_600), Some(3_480));
        assert_eq!(shorter_limit_s(200), Some(60));
        for left_s in [-1, 0, 119, 120, 179] {
            assert_eq!(shorter_limit_s(left_s), None, "{left_s}");
        }
    }

    #[test]
    fn labels_name_each_change() {
        let change = |offering: &str| SubmissionChange {
            offering: Some(offering.to_owned()),
            ..SubmissionChange::default()
        };
        assert_eq!(label(&change(HALF.slug), WHOLE, HALF), "2g.12gb, free now");
        assert_eq!(label(&change(HALF.slug), LARGE, HALF), "2g.12gb of A30-24GB, free now");
        assert_eq!(label(&change(WHOLE.slug), HALF, WHOLE), "whole A30-24GB, free now");
        let several = SubmissionChange {
            count: Some(1),
            nodes: Some(2),
            topology: Some(Topology::Any),
            max_duration_s: Some(5_400),
            preemptible: Some(true),
            ..SubmissionChange::default()
        };
        assert_eq!(
            label(&several, WHOLE, WHOLE),
            "1 device per node and 2 nodes and any topology and time limit of 1 h 30 min and preemptible, free now"
        );
    }
}
