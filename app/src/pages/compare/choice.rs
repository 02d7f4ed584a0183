//! The jobs of a comparison, with their address. Pure.

use berth_types::ids::JobId;

/// The least number of jobs of a comparison.
pub const MIN_JOBS: usize = 2;
/// The greatest number of jobs of a comparison.
pub const MAX_JOBS: usize = 6;

/// The jobs of an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The jobs in the order of the address, each once, at most [`MAX_JOBS`].
    pub jobs: Vec<JobId>,
    /// The number of further jobs in the address.
    pub left_out: usize,
}

impl Choice {
    /// Parses the values of `job` in an address; invalid values are ignored.
    pub fn parse(values: &[String]) -> Self {
        let mut choice = Self::default();
        for job in values.iter().filter_map(|value| value.parse::<JobId>().ok()) {
            if choice.jobs.contains(&job) {
                continue;
            }
            if choice.jobs.len() < MAX_JOBS {
                choice.jobs.push(job);
            } else {
                choice.left_out = choice.left_out.saturating_add(1);
            }
        }
        choice
    }
}

/// Returns the page of the comparison of jobs, below the address of the organization.
pub fn compare_page(jobs: &[JobId]) -> String {
    let query: Vec<String> = jobs.iter().map(|job| format!("job={job}")).collect();
    format!("/jobs/compare?{}", query.join("&"))
}

/// Adds or removes a job. A further job beyond [`MAX_JOBS`] is ignored.
pub fn choose(jobs: &mut Vec<JobId>, job: JobId, chosen: bool) {
    let known = jobs.contains(&job);
    if chosen && !known && jobs.len() < MAX_JOBS {
        jobs.push(job);
    } else if !chosen {
        jobs.retain(|one| *one != job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(number: u32) -> JobId {
        format!("job_{number:0>26}").parse().unwrap()
    }

    #[test]
    fn an_address_has_each_job_once_and_at_most_six() {
        let parse = |numbers: &[u32]| {
            Choice::parse(&numbers.iter().map(|number| job(*number).to_string()).collect::<Vec<_>>())
        };
        assert_eq!(parse(&[]), Choice::default());
        assert_eq!(parse(&[3, 1, 3]), Choice { jobs: vec![job(3), job(1)], left_out: 0 });
        let many = parse(&[1, 2, 3, 4, 5, 6, 7, 1, 8]);
        assert_eq!((many.jobs, many.left_out), ((1..=6).map(job).collect::<Vec<_>>(), 2));
        let invalid = ["", "job_1", "org_00000000000000000000000001"].map(str::to_owned);
        assert_eq!(Choice::parse(&invalid), Choice::default());
        assert_eq!(compare_page(&[job(3), job(1)]), format!("/jobs/compare?job={}&job={}", job(3), job(1)));
    }

    #[test]
    fn a_job_is_chosen_once() {
        let mut jobs = Vec::new();
        for (number, chosen) in [(1, true), (2, true), (1, true), (2, false), (9, false)] {
            choose(&mut jobs, job(number), chosen);
        }
        assert_eq!(jobs, [job(1)]);
        for number in 1..=8 {
            choose(&mut jobs, job(number), true);
        }
        assert_eq!(jobs, (1..=6).map(job).collect::<Vec<_>>());
    }
}
