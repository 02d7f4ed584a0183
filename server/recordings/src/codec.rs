//! The encoding of readings: columns of whole numbers, each stored as its difference from the one before.
//!
//! A file is a sequence of independent frames. A frame has its length, a checksum, and some readings of one
//! device. The decoder skips damaged bytes up to the next complete frame. Pure: no files, no clock.

/// Number of quantities of a reading, in this order: utilization, memory, power, temperature.
pub const COLUMNS: usize = 4;
/// Stored steps of each unit: half percents, MiB, tenths of a watt, degrees.
const STEPS: [f64; COLUMNS] = [2.0, 1.0, 10.0, 1.0];
/// Greatest number of readings in one frame.
const MAX_ROWS: usize = 4_096;
/// Greatest length of a frame: five columns of the longest numbers, and the header.
const MAX_BYTES: usize = MAX_ROWS * (COLUMNS + 1) * 10 + 64;
/// Greatest number of steps of a value; a value beyond it counts as absent.
const MAX_STEPS: f64 = (1u64 << 40) as f64;

/// One reading. A value that the driver did not report is absent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// Start of the step, in seconds since the epoch.
    pub at_s: i64,
    pub values: [Option<f64>; COLUMNS],
}

/// Readings of one device at one resolution, oldest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Block {
    pub rank: u32,
    pub device: u32,
    /// Length of the step of one reading, in seconds.
    pub step_s: u32,
    /// Memory of the board or slice, stored in 1,024ths of a MiB.
    pub memory_total_mib: f64,
    pub rows: Vec<Row>,
}

/// Appends a block, as one or more frames.
pub fn encode(out: &mut Vec<u8>, block: &Block) {
    for rows in block.rows.chunks(MAX_ROWS) {
        let mut body = Vec::with_capacity(64 + rows.len() * 4);
        let total = whole(block.memory_total_mib * 1_024.0).unwrap_or(0).max(0).cast_unsigned();
        let head = [u64::from(block.step_s), u64::from(block.rank), u64::from(block.device), total];
        head.into_iter().chain([rows.len() as u64]).for_each(|n| write_varint(&mut body, n));
        let first = rows.first().map_or(0, |row| row.at_s);
        write_varint(&mut body, zigzag(first));
        let mut last = first;
        write_column(
            &mut body,
            rows.iter().map(|row| Some(row.at_s.wrapping_sub(std::mem::replace(&mut last, row.at_s)))),
        );
        for (column, steps) in STEPS.into_iter().enumerate() {
            let value = |row: &Row| row.values.get(column).copied().flatten();
            write_column(&mut body, rows.iter().map(|row| value(row).and_then(|v| whole(v * steps))));
        }
        out.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend(crc32fast::hash(&body).to_le_bytes());
        out.extend(body);
    }
}

/// Decodes all complete frames and skips damaged bytes between them.
pub fn decode(mut bytes: &[u8]) -> Vec<Block> {
    let mut out = Vec::new();
    while !bytes.is_empty() {
        match read_frame(bytes) {
            Some((block, rest)) => {
                out.push(block);
                bytes = rest;
            }
            None => bytes = bytes.get(1..).unwrap_or_default(),
        }
    }
    out
}

fn read_frame(bytes: &[u8]) -> Option<(Block, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let (sum, rest) = rest.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_le_bytes(*length)).ok().filter(|n| *n <= MAX_BYTES)?;
    let (body, rest) = rest.split_at_checked(length)?;
    if crc32fast::hash(body) != u32::from_le_bytes(*sum) {
        return None;
    }
    Some((read_block(Reader(body))?, rest))
}

fn read_block(mut body: Reader<'_>) -> Option<Block> {
    let step_s = u32::try_from(body.read_varint()?).ok()?;
    let rank = u32::try_from(body.read_varint()?).ok()?;
    let device = u32::try_from(body.read_varint()?).ok()?;
    let memory_total_mib = body.read_varint()? as f64 / 1_024.0;
    let count = usize::try_from(body.read_varint()?).ok().filter(|n| *n <= MAX_ROWS)?;
    let mut at_s = unzigzag(body.read_varint()?);
    let mut rows = Vec::with_capacity(count);
    for passed in read_column(&mut body, count)? {
        at_s = at_s.wrapping_add(passed?);
        rows.push(Row { at_s, values: [None; COLUMNS] });
    }
    for (column, steps) in STEPS.into_iter().enumerate() {
        for (row, value) in rows.iter_mut().zip(read_column(&mut body, count)?) {
            if let Some(place) = row.values.get_mut(column) {
                *place = value.map(|v| v as f64 / steps);
            }
        }
    }
    Some(Block { rank, device, step_s, memory_total_mib, rows })
}

/// The nearest whole number; `None` for a value beyond [`MAX_STEPS`] or not a number.
fn whole(value: f64) -> Option<i64> {
    (value.abs() <= MAX_STEPS).then(|| value.round() as i64)
}

const fn zigzag(n: i64) -> u64 {
    ((n << 1) ^ (n >> 63)).cast_unsigned()
}

const fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -((n & 1).cast_signed())
}

/// Writes a number with seven bits in each byte, the lowest first.
fn write_varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn read_varint(&mut self) -> Option<u64> {
        let mut n = 0;
        for shift in (0..64u32).step_by(7) {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            n |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(n);
            }
        }
        None
    }
}

/// The last value again, once.
const AGAIN: u64 = 0;
/// The last value again, several times: the number of times less two follows.
const RUN: u64 = 1;
/// This code and greater ones: the zigzag difference from the last present value, plus 2. A difference of
/// zero occurs after an absent value only; so after a value this code means "absent".
const CHANGE: u64 = 2;

fn write_column(out: &mut Vec<u8>, values: impl Iterator<Item = Option<i64>>) {
    let (mut last, mut base, mut run) = (Some(0), 0i64, 0u64);
    let end_run = |out: &mut Vec<u8>, run: &mut u64| {
        match std::mem::take(run) {
            0 => {}
            1 => write_varint(out, AGAIN),
            more => {
                write_varint(out, RUN);
                write_varint(out, more - 2);
            }
        };
    };
    for value in values {
        if value == last {
            run += 1;
            continue;
        }
        end_run(out, &mut run);
        last = value;
        match value {
            None => write_varint(out, CHANGE),
            Some(value) => {
                write_varint(out, zigzag(value.wrapping_sub(base)).saturating_add(CHANGE));
                base = value;
            }
        }
    }
    end_run(out, &mut run);
}

fn read_column(body: &mut Reader<'_>, count: usize) -> Option<Vec<Option<i64>>> {
    let mut out = Vec::with_capacity(count);
    let (mut last, mut base) = (Some(0), 0i64);
    while out.len() < count {
        let times = match body.read_varint()? {
            AGAIN => 1,
            RUN => body.read_varint()?.checked_add(2)?,
            CHANGE if last.is_some() => {
                last = None;
                1
            }
            change => {
                base = base.wrapping_add(unzigzag(change - CHANGE));
                last = Some(base);
                1
            }
        };
        let left = count - out.len();
        let times = usize::try_from(times).ok().filter(|n| *n <= left)?;
        out.extend(std::iter::repeat_n(last, times));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn value(most: f64) -> impl Strategy<Value = Option<f64>> {
        prop_oneof![3 => (0.0..most).prop_map(Some), 1 => Just(None), 2 => Just(Some(0.0))]
    }

    fn row() -> impl Strategy<Value = Row> {
        let values = (value(100.0), value(300_000.0), value(1_500.0), value(120.0));
        // Clocks of hosts also go back.
        (1_700_000_000i64..1_700_000_400, values)
            .prop_map(|(at_s, (a, b, c, d))| Row { at_s, values: [a, b, c, d] })
    }

    fn block() -> impl Strategy<Value = Block> {
        let head = (0u32..4, 0u32..9, prop_oneof![Just(1u32), Just(10), Just(60)]);
        (head, prop::collection::vec(row(), 1..200)).prop_map(|((rank, device, step_s), rows)| Block {
            rank,
            device,
            step_s,
            memory_total_mib: 9_984.25,
            rows,
        })
    }

    fn near(was: &Block, is: &Block) -> bool {
        let close = |(a, b): (&Row, &Row)| {
            a.at_s == b.at_s
                && a.values.iter().zip(b.values).zip(STEPS).all(|((a, b), steps)| match (a, b) {
                    (None, None) => true,
                    (Some(a), Some(b)) => (a - b).abs() <= 0.5 / steps + 1e-9,
                    _ => false,
                })
        };
        (was.rank, was.device, was.step_s) == (is.rank, is.device, is.step_s)
            && was.memory_total_mib == is.memory_total_mib
            && was.rows.len() == is.rows.len()
            && was.rows.iter().zip(&is.rows).all(close)
    }

    proptest! {
        #[test]
        fn what_is_kept_comes_back_within_a_step(blocks in prop::collection::vec(block(), 0..5)) {
            let mut bytes = Vec::new();
            blocks.iter().for_each(|b| encode(&mut bytes, b));
            let back = decode(&bytes);
            prop_assert_eq!(back.len(), blocks.len());
            prop_assert!(blocks.iter().zip(&back).all(|(a, b)| near(a, b)));
            // A second encoding gives the same bytes: values are rounded once.
            let mut again = Vec::new();
            back.iter().for_each(|b| encode(&mut again, b));
            prop_assert_eq!(again, bytes);
        }

        #[test]
        fn a_cut_costs_the_last_block_at_most(
            blocks in prop::collection::vec(block(), 1..5),
            at in any::<prop::sample::Index>(),
        ) {
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            for b in &blocks {
                encode(&mut bytes, b);
                ends.push(bytes.len());
            }
            let cut = at.index(bytes.len() + 1);
            let whole = ends.iter().filter(|end| **end <= cut).count();
            prop_assert_eq!(decode(&bytes[..cut]).len(), whole);
        }

        #[test]
        fn nothing_that_is_read_brings_it_down(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            decode(&bytes);
            // Also behind a checksum that is right.
            super::read_block(Reader(&bytes));
        }
    }

    #[test]
    fn damage_costs_only_the_frame_that_it_is_in() {
        let block = |device: u32| {
            let rows =
                (0..60).map(|n| Row { at_s: n, values: [Some((n % 9) as f64), None, None, Some(50.0)] });
            Block { rank: 0, device, step_s: 1, memory_total_mib: 1.0, rows: rows.collect() }
        };
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        for device in 0..3 {
            encode(&mut bytes, &block(device));
            ends.push(bytes.len());
        }
        let whole = bytes.clone();
        bytes[ends[0] + 20] ^= 0x10;
        assert_eq!(decode(&bytes), [block(0), block(2)]);
        // A file with a truncated frame, continued after a restart.
        let torn = [&whole[..ends[1] - 7], &whole[ends[1]..]].concat();
        assert_eq!(decode(&torn), [block(0), block(2)]);
        assert!(decode(&[0; 100]).is_empty());
    }

    #[test]
    fn what_does_not_change_costs_nothing() {
        let rows = (0..4_000)
            .map(|n| Row { at_s: 1_700_000_000 + n, values: [Some(97.5), None, Some(350.1), Some(61.0)] });
        let block = Block { rank: 0, device: 0, step_s: 1, memory_total_mib: 81_559.0, rows: rows.collect() };
        let mut bytes = Vec::new();
        encode(&mut bytes, &block);
        assert!(bytes.len() < 60, "{}", bytes.len());
        assert_eq!(decode(&bytes), [block]);
    }

    /// Noise of at most 1 to either side, the same in every run.
    fn noise(n: u64) -> f64 {
        let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }

    #[test]
    fn a_training_run_takes_less_than_two_bytes_a_value() {
        let row = |n: u64| {
            // Steps of a run: busy but for a checkpoint every ten minutes; clocks of hosts miss a second at
            // times.
            let pause = n % 600 < 12;
            let busy = if pause { 4.0 + 3.0 * noise(n) } else { 94.0 + 5.0 * noise(n) };
            let memory = 61_204.0 + 512.0 * ((n / 300) % 3) as f64;
            let power = if pause { 130.0 + 8.0 * noise(n ^ 7) } else { 640.0 + 30.0 * noise(n ^ 7) };
            let temperature = (if pause { 52.0 } else { 64.0 + 1.4 * noise(n / 4) }).round();
            let at_s = 1_800_000_000 + n.cast_signed() + i64::from(n > 2_000);
            Row { at_s, values: [Some(busy), Some(memory), Some(power), Some(temperature)] }
        };
        let rows: Vec<Row> = (0..4_000).map(row).collect();
        let block = Block { rank: 0, device: 0, step_s: 1, memory_total_mib: 81_559.0, rows };
        let mut bytes = Vec::new();
        encode(&mut bytes, &block);
        let each = bytes.len() as f64 / (4_000 * COLUMNS) as f64;
        assert!(each <= 2.0, "{each} bytes a value");
        assert!(near(&block, &decode(&bytes)[0]));
    }

    #[test]
    fn a_long_block_is_several_frames() {
        let rows: Vec<Row> =
            (0..10_000).map(|n| Row { at_s: n, values: [Some((n % 7) as f64), None, None, None] }).collect();
        let block = Block { rank: 1, device: 2, step_s: 10, memory_total_mib: 1.0, rows: rows.clone() };
        let mut bytes = Vec::new();
        encode(&mut bytes, &block);
        let back: Vec<Row> = decode(&bytes).into_iter().flat_map(|b| b.rows).collect();
        assert_eq!(back, rows);
    }

    #[test]
    fn what_is_no_number_is_absent() {
        for odd in [f64::NAN, f64::INFINITY, -1e300] {
            let rows = vec![Row { at_s: 5, values: [Some(odd), Some(1.0), None, Some(odd)] }];
            let block = Block { rank: 0, device: 0, step_s: 1, memory_total_mib: odd, rows };
            let mut bytes = Vec::new();
            encode(&mut bytes, &block);
            assert_eq!(decode(&bytes)[0].rows[0].values, [None, Some(1.0), None, None]);
        }
    }
}
