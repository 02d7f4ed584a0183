//! The rules for new terminals in running jobs.

/// Open terminals of one job, and of all jobs of an organization.
pub const MAX_PER_JOB: i64 = 8;
pub const MAX_PER_ORG: i64 = 32;
/// Characters of an operator's reason.
pub const MAX_REASON_CHARS: usize = 500;

/// The reason of a refused terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalRefusal {
    NotRunning,
    Rank,
    JobFull,
    OrgFull,
}

/// Permits one more terminal. `open` has the numbers of open terminals of the job and of its organization.
pub const fn check(job_runs: bool, rank_runs: bool, open: (i64, i64)) -> Result<(), TerminalRefusal> {
    if !job_runs {
        Err(TerminalRefusal::NotRunning)
    } else if !rank_runs {
        Err(TerminalRefusal::Rank)
    } else if open.0 >= MAX_PER_JOB {
        Err(TerminalRefusal::JobFull)
    } else if open.1 >= MAX_PER_ORG {
        Err(TerminalRefusal::OrgFull)
    } else {
        Ok(())
    }
}

/// Checks an operator's reason for the access to a tenant's job. The tenant reads the reason in the audit
/// log.
///
/// # Errors
/// The text for the operator about the missing or invalid reason.
pub fn check_reason(given: Option<&str>) -> Result<String, &'static str> {
    let given = given.unwrap_or_default().trim();
    if given.is_empty() {
        Err("Enter a reason: you are not a member of this organization. The reason appears in its audit log.")
    } else if given.chars().count() > MAX_REASON_CHARS || given.chars().any(char::is_control) {
        Err("Use at most 500 printable characters.")
    } else {
        Ok(given.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_has_its_refusal() {
        assert_eq!(check(true, true, (MAX_PER_JOB - 1, MAX_PER_ORG - 1)), Ok(()));
        assert_eq!(check(false, false, (99, 99)), Err(TerminalRefusal::NotRunning));
        assert_eq!(check(true, false, (0, 0)), Err(TerminalRefusal::Rank));
        assert_eq!(check(true, true, (MAX_PER_JOB, 0)), Err(TerminalRefusal::JobFull));
        assert_eq!(check(true, true, (0, MAX_PER_ORG)), Err(TerminalRefusal::OrgFull));
    }

    #[test]
    fn a_reason_is_a_line_of_text() {
        assert_eq!(check_reason(Some("  asked by Ada ")), Ok("asked by Ada".to_owned()));
        for bad in [None, Some(""), Some("  "), Some("a\nb")] {
            assert!(check_reason(bad).is_err(), "{bad:?}");
        }
        assert!(check_reason(Some(&"x".repeat(501))).is_err());
    }
}
