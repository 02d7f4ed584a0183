//! Access to terminals of running jobs.

/// Terminals that may be open in one job, and in all jobs of an organization.
pub const MOST_OF_JOB: i64 = 8;
pub const MOST_OF_ORG: i64 = 32;
/// Characters of an operator's reason.
pub const REASON_CHARS: usize = 500;

/// Why a terminal is not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    NotRunning,
    Rank,
    JobFull,
    OrgFull,
}

/// Permits one more terminal. `open`: those of the job, and of its organization.
pub const fn check(job_runs: bool, rank_runs: bool, open: (i64, i64)) -> Result<(), Refused> {
    if !job_runs {
        Err(Refused::NotRunning)
    } else if !rank_runs {
        Err(Refused::Rank)
    } else if open.0 >= MOST_OF_JOB {
        Err(Refused::JobFull)
    } else if open.1 >= MOST_OF_ORG {
        Err(Refused::OrgFull)
    } else {
        Ok(())
    }
}

/// An operator's reason for going into a tenant's job, as the tenant will read it.
pub fn reason(given: Option<&str>) -> Result<String, &'static str> {
    let given = given.unwrap_or_default().trim();
    if given.is_empty() {
        Err("You are no member of this organization: say why you go in. It reads that in its audit log.")
    } else if given.chars().count() > REASON_CHARS || given.chars().any(char::is_control) {
        Err("Use at most 500 printable characters.")
    } else {
        Ok(given.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_word() {
        assert_eq!(check(true, true, (MOST_OF_JOB - 1, MOST_OF_ORG - 1)), Ok(()));
        assert_eq!(check(false, false, (99, 99)), Err(Refused::NotRunning));
        assert_eq!(check(true, false, (0, 0)), Err(Refused::Rank));
        assert_eq!(check(true, true, (MOST_OF_JOB, 0)), Err(Refused::JobFull));
        assert_eq!(check(true, true, (0, MOST_OF_ORG)), Err(Refused::OrgFull));
    }

    #[test]
    fn a_reason_is_a_line_of_text() {
        assert_eq!(reason(Some("  asked by Ada ")), Ok("asked by Ada".to_owned()));
        for bad in [None, Some(""), Some("  "), Some("a\nb")] {
            assert!(reason(bad).is_err(), "{bad:?}");
        }
        assert!(reason(Some(&"x".repeat(501))).is_err());
    }
}
