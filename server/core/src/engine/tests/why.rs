//! The reasons and starts that waiting jobs are told.

use super::*;

#[test]
fn what_was_foreseen_a_moment_ago_still_starts_with_the_next_pass() {
    let mut e = engine(1, 1);
    submit(&mut e, waits(1, boards(1, 1)));
    for moment in 0..3 {
        let now = at(10).plus_seconds(moment);
        let why = e.why(job_id(1), now).unwrap();
        assert_eq!((why.fits, why.earliest, why.blockers), (true, Some(now), Vec::new()));
    }
}
