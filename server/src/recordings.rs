//! Logs and readings of jobs, as files under the data directory.
//!
//! A log is the bytes themselves, so an offset in it is an offset in the file. A reading is eight
//! little-endian doubles; NaN stands for what the driver does not report. Blocking: call it off the
//! async threads.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use berth_types::ids::JobId;
use berth_types::metrics::{Sample, Series};
use berth_types::time::Timestamp;

const FIELDS: usize = 8;
const RECORD: usize = FIELDS * 8;
/// Points of a series when no step is asked for.
const POINTS: u64 = 600;
/// No series is longer, whatever step is asked for.
const MOST_POINTS: u64 = 10_000;

#[derive(Debug, Clone)]
pub struct Recordings {
    root: PathBuf,
}

/// A reading with the memory that it is out of.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    pub sample: Sample,
    pub memory_total_mib: f64,
}

impl Recordings {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    pub fn log(&self, job: JobId, attempt: u32, rank: u32) -> PathBuf {
        self.root.join("logs").join(job.to_string()).join(format!("{attempt}-{rank}.log"))
    }

    fn readings(&self, job: JobId, attempt: u32) -> PathBuf {
        self.root.join("readings").join(job.to_string()).join(format!("{attempt}.f64"))
    }

    /// Bytes of a log that are here.
    pub fn log_length(&self, job: JobId, attempt: u32, rank: u32) -> u64 {
        std::fs::metadata(self.log(job, attempt, rank)).map_or(0, |m| m.len())
    }

    /// At most `limit` bytes of a log from `offset`.
    pub fn read_log(
        &self,
        job: JobId,
        attempt: u32,
        rank: u32,
        offset: u64,
        limit: usize,
    ) -> io::Result<Vec<u8>> {
        let file = match File::open(self.log(job, attempt, rank)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut buffer = vec![0; limit];
        let read = file.read_at(&mut buffer, offset)?;
        buffer.truncate(read);
        Ok(buffer)
    }

    /// Adds one reading of each device.
    pub fn append_readings(&self, job: JobId, attempt: u32, rows: &[Recorded]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(rows.len() * RECORD);
        for row in rows {
            let s = &row.sample;
            let fields: [f64; FIELDS] = [
                s.at.micros() as f64 / 1e6,
                f64::from(s.rank),
                f64::from(s.device),
                s.utilization_percent.unwrap_or(f64::NAN),
                s.memory_used_mib.unwrap_or(f64::NAN),
                s.power_watts.unwrap_or(f64::NAN),
                s.temperature_celsius.unwrap_or(f64::NAN),
                row.memory_total_mib,
            ];
            bytes.extend(fields.iter().flat_map(|f| f.to_le_bytes()));
        }
        open_append(&self.readings(job, attempt))?.write_all(&bytes)
    }

    /// The readings from `from` to `to`, averaged over steps of `step_s` seconds (0: as fits), and
    /// the step that was taken.
    pub fn series(
        &self,
        job: JobId,
        attempt: u32,
        from: Option<Timestamp>,
        to: Option<Timestamp>,
        step_s: u64,
    ) -> io::Result<(u64, Vec<Series>)> {
        let file = match File::open(self.readings(job, attempt)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((step_s.max(1), Vec::new())),
            other => other?,
        };
        let seconds = |t: Option<Timestamp>| t.map(|t| t.micros() as f64 / 1e6);
        let (mut from, mut to) = (seconds(from).unwrap_or(f64::MIN), seconds(to).unwrap_or(f64::MAX));
        let count = file.metadata()?.len() / RECORD as u64;
        if count > 0 {
            from = from.max(time_of(&file, 0)?);
            to = to.min(time_of(&file, count - 1)?);
        }
        let span = (to - from).max(0.0) as u64;
        let step = if step_s > 0 { step_s.max(span / MOST_POINTS) } else { span / POINTS }.max(1);
        // Times only grow within a file, so what is asked for is one stretch of it.
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = low.midpoint(high);
            if time_of(&file, middle)? < from { low = middle + 1 } else { high = middle }
        }
        let mut reader = BufReader::with_capacity(1 << 18, file);
        reader.seek(SeekFrom::Start(low * RECORD as u64))?;
        let mut collected = Collected::new(step);
        let mut record = [0; RECORD];
        for _ in low..count {
            reader.read_exact(&mut record)?;
            let row = fields(&record);
            if row[0] > to {
                break;
            }
            collected.add(row);
        }
        Ok((step, collected.finish()))
    }
}

/// Opens a file for writing at any place, making its directory.
pub fn open_write(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::options().write(true).create(true).truncate(false).open(path)
}

/// Opens a file for appending, making its directory.
pub fn open_append(path: &Path) -> io::Result<File> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    File::options().append(true).create(true).open(path)
}

/// When a record was taken, in seconds.
fn time_of(file: &File, index: u64) -> io::Result<f64> {
    let mut at = [0; 8];
    file.read_exact_at(&mut at, index * RECORD as u64)?;
    Ok(f64::from_le_bytes(at))
}

fn fields(record: &[u8]) -> [f64; FIELDS] {
    let mut out = [f64::NAN; FIELDS];
    for (to, from) in out.iter_mut().zip(record.chunks_exact(8)) {
        *to = from.try_into().map_or(f64::NAN, f64::from_le_bytes);
    }
    out
}

#[derive(Default, Clone, Copy)]
struct Mean {
    sum: f64,
    count: u32,
}

impl Mean {
    fn add(&mut self, value: f64) {
        if !value.is_nan() {
            self.sum += value;
            self.count += 1;
        }
    }
    fn take(&mut self) -> Option<f64> {
        let Self { sum, count } = std::mem::take(self);
        (count > 0).then(|| sum / f64::from(count))
    }
}

/// The series of a file, record by record.
struct Collected {
    step: f64,
    open: Vec<(Series, f64, [Mean; 4])>,
}

impl Collected {
    fn new(step_s: u64) -> Self {
        Self { step: step_s as f64, open: Vec::new() }
    }

    fn add(&mut self, [at, rank, device, utilization, memory, power, temperature, total]: [f64; FIELDS]) {
        let (rank, device) = (rank as u32, device as u32);
        let slot = (at / self.step).floor() * self.step;
        let same = |(s, ..): &(Series, f64, [Mean; 4])| s.rank == rank && s.device == device;
        let index = self.open.iter().position(same).unwrap_or_else(|| {
            let new = Series {
                rank,
                device,
                memory_total_mib: total,
                at_s: vec![],
                utilization_percent: vec![],
                memory_used_mib: vec![],
                power_watts: vec![],
                temperature_celsius: vec![],
            };
            self.open.push((new, slot, Default::default()));
            self.open.len() - 1
        });
        let Some((s, open, means)) = self.open.get_mut(index) else { return };
        if slot > *open {
            flush(s, *open, means);
            *open = slot;
        }
        for (mean, value) in means.iter_mut().zip([utilization, memory, power, temperature]) {
            mean.add(value);
        }
    }

    fn finish(self) -> Vec<Series> {
        let close = |(mut s, at, mut means): (Series, f64, [Mean; 4])| {
            flush(&mut s, at, &mut means);
            s
        };
        self.open.into_iter().map(close).collect()
    }
}

fn flush(s: &mut Series, at_s: f64, [utilization, memory, power, temperature]: &mut [Mean; 4]) {
    s.at_s.push(at_s);
    s.utilization_percent.push(utilization.take());
    s.memory_used_mib.push(memory.take());
    s.power_watts.push(power.take());
    s.temperature_celsius.push(temperature.take());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(second: i64, device: u32, utilization: Option<f64>) -> Recorded {
        let sample = Sample {
            at: Timestamp::from_micros(second * 1_000_000),
            rank: 0,
            device,
            utilization_percent: utilization,
            memory_used_mib: Some(second as f64),
            power_watts: None,
            temperature_celsius: None,
        };
        Recorded { sample, memory_total_mib: 100.0 }
    }

    #[test]
    fn readings_come_back_averaged_and_absent_stays_absent() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        assert_eq!(r.series(job, 1, None, None, 0).unwrap(), (1, vec![]));
        for second in 100..104 {
            let busy = (second != 101).then_some((second - 100) as f64 * 10.0);
            r.append_readings(job, 1, &[recorded(second, 0, busy), recorded(second, 1, None)]).unwrap();
        }
        let (step, series) = r.series(job, 1, None, None, 2).unwrap();
        assert_eq!((step, series.len()), (2, 2));
        assert_eq!(series[0].at_s, [100.0, 102.0]);
        assert_eq!(series[0].utilization_percent, [Some(0.0), Some(25.0)]);
        assert_eq!(series[0].memory_used_mib, [Some(100.5), Some(102.5)]);
        assert_eq!(series[1].utilization_percent, [None, None]);
        let late = Some(Timestamp::from_micros(102_500_000));
        assert_eq!(r.series(job, 1, late, None, 1).unwrap().1[0].at_s, [103.0]);
    }

    #[test]
    fn a_log_is_read_from_any_byte() {
        let dir = tempfile::tempdir().unwrap();
        let r = Recordings::new(dir.path());
        let job = JobId::from_uuid(uuid::Uuid::from_u128(1));
        assert_eq!(r.read_log(job, 1, 0, 5, 9).unwrap(), b"");
        open_append(&r.log(job, 1, 0)).unwrap().write_all(b"0123456789").unwrap();
        assert_eq!((r.log_length(job, 1, 0), r.read_log(job, 1, 0, 7, 9).unwrap()), (10, b"789".to_vec()));
        assert_eq!(r.read_log(job, 1, 0, 70, 9).unwrap(), b"");
    }
}
