//! Tests of the reasons and expected starts of waiting jobs.

use super::*;

#[test]
fn a_start_that_was_due_a_moment_ago_comes_with_the_next_pass() {
    let mut e = engine(1, 1);
    submit(&mut e, waits(1, boards(1, 1)));
    for moment in 0..3 {
        let now = at(10).plus_seconds(moment);
        let why = e.why(job_id(1), now).unwrap();
        assert_eq!((why.fits, why.earliest, why.blockers), (true, Some(now), Vec::new()));
    }
}
