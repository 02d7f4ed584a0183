//! The intake of logs and readings from a worker. Decides nothing: it records them and publishes the updates.

use std::collections::HashMap;

use berth_proto as proto;
use berth_types::ids::JobId;
use berth_types::metrics::Sample;
use berth_types::time::Timestamp;

use super::sanitize::{board_values, gpu_reading};
use super::{Session, attempt_key};
use berth_foundation::Change;
use berth_foundation::live::{BoardReading, JobUpdate};
use berth_jobs::OpenRank;
use berth_recordings::{LogFile, Recorded, is_timely};

/// The time of a chunk of a log by the portal's clock: `age_ms` before `now`, but not before `assigned_at`. The clock
/// of the node has no effect on it.
fn written_at(now: Timestamp, age_ms: u64, assigned_at: Timestamp) -> Timestamp {
    let age_ms = i64::try_from(age_ms).unwrap_or(i64::MAX);
    now.plus_millis(-age_ms).max(assigned_at).min(now)
}

impl Session {
    /// The rank of this node in an attempt. Messages about other attempts are ignored.
    async fn rank_of(&mut self, job: JobId, number: u32) -> Result<Option<OpenRank>, String> {
        if let Some(rank) = self.own_ranks.get(&(job, number)) {
            return Ok(Some(*rank));
        }
        let rank =
            self.portal.logs.find_open_rank(self.node, job, number).await.map_err(|e| e.to_string())?;
        self.own_ranks.extend(rank.map(|rank| ((job, number), rank)));
        Ok(rank)
    }

    /// Appends the new bytes of a chunk. A gap ends the session: the next session begins at the right byte.
    pub(super) async fn keep_log(&mut self, log: proto::Log) -> Result<(), String> {
        let Some((job, number)) = attempt_key(log.attempt.as_ref()) else { return Ok(()) };
        let Some(OpenRank { rank, assigned_at }) = self.rank_of(job, number).await? else { return Ok(()) };
        let key = (job, number, rank);
        if !self.logs.contains_key(&key) {
            let path = self.portal.recordings.log(job, number, rank);
            let file = tokio::task::block_in_place(|| LogFile::open(&path));
            self.logs.insert(key, file.map_err(|e| e.to_string())?);
        }
        let Some(file) = self.logs.get_mut(&key) else { return Ok(()) };
        let known = file.length().checked_sub(log.offset).ok_or("a gap in a log")?;
        let Some(new) = usize::try_from(known).ok().and_then(|n| log.data.get(n..)).filter(|d| !d.is_empty())
        else {
            return Ok(());
        };
        let room = berth_contract::LOG_LIMIT.saturating_sub(file.length());
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        let Some(new) = new.get(..new.len().min(room)).filter(|d| !d.is_empty()) else { return Ok(()) };
        let at = written_at(self.portal.context.now(), log.age_ms, assigned_at);
        tokio::task::block_in_place(|| file.append(new, at))
            .map_err(|e| format!("a log cannot be written: {e}"))?;
        let length = file.length();
        self.portal.context.live.publish_job(job, JobUpdate::Log);
        if self.final_log_bytes.get(&(job, number)).is_some_and(|end| length >= *end)
            && self.portal.logs.close_log(self.node, job, number, length).await.map_err(|e| e.to_string())?
        {
            self.logs.remove(&key);
            self.final_log_bytes.remove(&(job, number));
            self.portal.context.live.publish_job(job, JobUpdate::Log);
            // After all other changes, so that one read of the desired state has them all.
            self.portal.context.publish(Change::Assignments(self.node));
        }
        Ok(())
    }

    pub(super) async fn keep_samples(&mut self, samples: proto::Samples) -> Result<(), String> {
        let at = Timestamp::from_micros(samples.at_micros);
        for board in &samples.boards {
            let own = self.boards.contains(&board.gpu_uuid);
            let Some(r) = board.reading.as_ref().filter(|_| own) else { continue };
            let values = board_values(r);
            let reading = BoardReading {
                power_watts: values.power_watts,
                temperature_celsius: values.temperature_celsius,
                utilization_percent: values.utilization_percent,
            };
            self.portal.health.add_reading(&board.gpu_uuid, values);
            self.portal.context.live.put_gpu_reading(&board.gpu_uuid, gpu_reading(r));
            self.portal.context.live.put_reading(board.gpu_uuid.clone(), reading);
        }
        self.portal.metrics.put_samples(self.node, samples.boards, samples.slices);
        let was_wrong = self.clock_is_wrong;
        self.clock_is_wrong = !is_timely(at, self.portal.context.now());
        if self.clock_is_wrong {
            if !was_wrong {
                tracing::warn!(node = %self.node, %at, "the clock of the node is wrong; readings of its jobs are dropped");
            }
            self.portal.telemetry.count_dropped_readings(samples.attempts.len());
            return Ok(());
        }
        let mut by_attempt: HashMap<(JobId, u32), Vec<Recorded>> = HashMap::new();
        for row in samples.attempts {
            let (Some(key), Some(r)) = (attempt_key(row.attempt.as_ref()), row.reading) else { continue };
            let sample = Sample {
                at,
                rank: row.rank,
                device: row.device,
                utilization_percent: r.utilization_percent,
                memory_used_mib: r.memory_used_mib,
                power_watts: r.power_watts,
                temperature_celsius: r.temperature_celsius,
            };
            let recorded = Recorded { sample, memory_total_mib: r.memory_total_mib };
            by_attempt.entry(key).or_default().push(recorded);
        }
        for ((job, number), mut rows) in by_attempt {
            let Some(OpenRank { rank, .. }) = self.rank_of(job, number).await? else { continue };
            rows.iter_mut().for_each(|row| row.sample.rank = rank);
            let samples: Vec<Sample> = rows.iter().map(|r| r.sample).collect();
            // Before the readings are recorded, so that the recordings still have only the earlier ones.
            if let Err(error) = self.portal.idle_watch.add_readings(job, number, &samples).await {
                tracing::warn!(%job, %error, "idle devices cannot be reported; the next readings try again");
            }
            if let Ok(text) = serde_json::to_string(&samples) {
                self.portal.context.live.publish_job(job, JobUpdate::Sample { at, text: text.into() });
            }
            let kept =
                tokio::task::block_in_place(|| self.portal.recordings.append_readings(job, number, &rows));
            if let Err(error) = kept {
                tracing::warn!(%job, %error, "readings cannot be stored");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_is_from_the_time_between_assignment_and_receipt() {
        let (now, assigned) = (1_000_000, 400_000);
        for (age_ms, at_ms) in [
            (0, now),
            (1, now - 1),
            (600_000, assigned),
            (600_001, assigned),
            (i64::MAX as u64, assigned),
            (u64::MAX, assigned),
        ] {
            let at = |ms: i64| Timestamp::from_micros(ms * 1_000);
            assert_eq!(written_at(at(now), age_ms, at(assigned)), at(at_ms), "{age_ms}");
            // The clock of the portal was set back after the assignment.
            assert_eq!(written_at(at(now), age_ms, at(now + 5)), at(now), "{age_ms}");
        }
    }
}
