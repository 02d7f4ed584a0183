//! A test of idle devices of a job on several nodes.

use crate::common::{TestPortal, engines};
use crate::idle_portal::{IdlePortal, node};
use crate::operations::{job, schedule_all, submit};
use berth_foundation::Settings;
use berth_jobs::reports::{AttemptPhase, AttemptReport};
use berth_recordings::Recorded;
use berth_server::portal::Portal;
use berth_types::ids::{JobId, NodeId};
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;
use serde_json::json;

/// Stores readings of one device of each of these ranks every ten seconds, like the sessions of their workers.
async fn append_readings(
    portal: &Portal,
    job: JobId,
    from: Timestamp,
    seconds: std::ops::Range<i64>,
    ranks: &[(u32, f64)],
) {
    for second in seconds.step_by(10) {
        for (rank, percent) in ranks {
            let sample = Sample {
                at: from.plus_seconds(second),
                rank: *rank,
                device: 0,
                utilization_percent: Some(*percent),
                memory_used_mib: None,
                power_watts: None,
                temperature_celsius: None,
            };
            portal.idle_watch.add_readings(job, 1, &[sample]).await.unwrap();
            let recorded = Recorded { sample, memory_total_mib: 81_920.0 };
            portal.recordings.append_readings(job, 1, &[recorded]).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_gang_goes_on_while_the_readings_of_one_node_are_missing() {
    for (engine, db, _location) in engines("idle_ranks").await {
        let setup = IdlePortal::on(db.clone()).await;
        let rule = json!({"below_percent": 20, "for_s": 600});
        let spec = json!({"nodes": 2, "stop_when_idle": rule, "max_duration_s": 36_000});
        let gang = submit(&setup, spec).await;
        let id: JobId = gang.parse().unwrap();
        schedule_all(&setup).await;
        for n in 1..=2 {
            let runs = AttemptReport::new(id, 1, AttemptPhase::Running);
            setup.t.portal.attempts.apply_status(node(n), runs).await.unwrap();
        }
        let placed = job(&setup, &gang).await;
        assert_eq!(placed["state"], "running", "{engine}: {placed}");
        let first: NodeId = placed["devices"][0]["node"].as_str().unwrap().parse().unwrap();
        let minute = setup.t.portal.context.now().micros() / 60_000_000 * 60_000_000;
        let begin = Timestamp::from_micros(minute);
        append_readings(&setup.t.portal, id, begin, 0..1_200, &[(0, 90.0), (1, 5.0)]).await;
        assert_eq!(job(&setup, &gang).await["state"], "running", "{engine}: busy on average");
        append_readings(&setup.t.portal, id, begin, 1_200..2_400, &[(1, 5.0)]).await;
        assert_eq!(job(&setup, &gang).await["state"], "running", "{engine}: a node without readings");

        // Another portal has the readings from the recordings, with their ranks.
        let data = setup.t.data.path().to_owned();
        let next = TestPortal::with(db.clone(), |settings| Settings { data, ..settings });
        next.clock.advance_s(2_500);
        append_readings(&next.portal, id, begin, 2_400..2_500, &[(1, 5.0)]).await;
        assert_eq!(job(&setup, &gang).await["state"], "running", "{engine}: after a restart");

        // A rank that has ended needs no readings.
        let ended = AttemptReport {
            exit_code: Some(0),
            log_bytes: Some(0),
            ..AttemptReport::new(id, 1, AttemptPhase::Clean)
        };
        next.portal.attempts.apply_status(first, ended).await.unwrap();
        assert_eq!(job(&setup, &gang).await["state"], "running", "{engine}: the other rank runs");
        next.clock.advance_s(60);
        append_readings(&next.portal, id, begin, 2_500..3_000, &[(1, 5.0)]).await;
        assert_eq!(job(&setup, &gang).await["state"], "running", "{engine}: not for long enough");
        append_readings(&next.portal, id, begin, 3_000..3_300, &[(1, 5.0)]).await;
        let idle = job(&setup, &gang).await;
        assert_eq!(idle["state"], "stopping", "{engine}: {idle}");
    }
}
