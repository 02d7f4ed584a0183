//! A day of requests: from a trace, or generated with a known shape.

use std::fs::File;
use std::io::{BufRead, BufReader};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

pub const DAY_MS: i64 = 86_400_000;
const MINUTE_MS: i64 = 60_000;
/// Times of a replica for each token of the prompt and of the answer.
const PROMPT_TOKEN_MS: f64 = 0.2;
const TOKEN_MS: f64 = 30.0;
/// The most tokens of a prompt or an answer; an answer has at most ten minutes.
const MAX_TOKENS: f64 = 20_000.0;
/// The largest trace.
const MAX_BYTES: u64 = 1 << 30;
/// The most requests of a day.
const MAX_REQUESTS: f64 = 2e7;
/// The greatest rate of the generated day, in requests a second.
const MAX_RATE: f64 = 3.0;
/// Bursts of the generated day.
const BURSTS: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Request {
    pub at_ms: i64,
    /// The time for which a replica answers it.
    pub serve_ms: i64,
}

impl Request {
    fn new(at_s: f64, prompt: f64, answer: f64) -> Self {
        let serve_ms = PROMPT_TOKEN_MS * prompt.min(MAX_TOKENS) + TOKEN_MS * answer.min(MAX_TOKENS);
        Self { at_ms: (at_s * 1e3) as i64, serve_ms: (serve_ms as i64).max(1) }
    }
}

/// A number in (0, 1].
pub fn unit(random: &mut ChaCha20Rng) -> f64 {
    ((random.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
}

pub fn exponential(random: &mut ChaCha20Rng, mean: f64) -> f64 {
    -mean * unit(random).ln()
}

/// Reads a day of a trace; the first day has the number 1. The trace has the columns `Timestamp` (in seconds from the
/// begin of the first day), `Request tokens` and `Response tokens`. Requests without an answer do not count.
///
/// # Errors
/// A text that names the file and the fault.
pub fn read(path: &str, day: u32) -> Result<Vec<Request>, String> {
    let open = || {
        let file = File::open(path).map_err(|e| e.to_string())?;
        if file.metadata().map_err(|e| e.to_string())?.len() > MAX_BYTES {
            return Err(format!("the file has more than {MAX_BYTES} bytes"));
        }
        parse(BufReader::new(file), day)
    };
    open().map_err(|e| format!("{path}: {e}"))
}

fn parse(text: impl BufRead, day: u32) -> Result<Vec<Request>, String> {
    let mut lines = text.lines();
    let header = lines.next().ok_or("the file is empty")?.map_err(|e| e.to_string())?;
    let columns: Vec<&str> = header.split(',').map(str::trim).collect();
    let find = |name: &str| {
        columns.iter().position(|c| *c == name).ok_or_else(|| format!("there is no column {name}"))
    };
    let (at, prompt, answer) = (find("Timestamp")?, find("Request tokens")?, find("Response tokens")?);
    let from_s = f64::from(day.checked_sub(1).ok_or("the first day has the number 1")?) * 86_400.0;
    let mut out = Vec::new();
    for (row, line) in (2u64..).zip(lines) {
        let line = line.map_err(|e| format!("line {row}: {e}"))?;
        if line.trim().is_empty() {
            continue;
        }
        let number = |column: usize| {
            let text = line.split(',').nth(column).unwrap_or_default().trim();
            let parsed = text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0);
            parsed.ok_or_else(|| format!("line {row}: {text:?} is not a number"))
        };
        let (at_s, prompt, answer) = (number(at)? - from_s, number(prompt)?, number(answer)?);
        if (0.0..86_400.0).contains(&at_s) && answer > 0.0 {
            out.push(Request::new(at_s, prompt, answer));
        }
    }
    if out.is_empty() { Err(format!("day {day} has no request")) } else { Ok(out) }
}

/// Generates a day with peaks at 11:00 and 20:00 (the second is higher by a third), a tenth of the second at night, and
/// [`BURSTS`] bursts of 2 to 10 minutes with 1.8 times the rate. Prompts have 600 tokens on average, answers 250, both
/// with exponential lengths.
pub fn generated(seed: u64) -> Vec<Request> {
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let burst = |_| {
        let from = unit(&mut random) * 86_400.0;
        (from, from + 480.0f64.mul_add(unit(&mut random), 120.0))
    };
    let bursts: Vec<(f64, f64)> = (0..BURSTS).map(burst).collect();
    let (mut out, mut at_s) = (Vec::new(), 0.0);
    loop {
        at_s += exponential(&mut random, 1.0 / MAX_RATE);
        if at_s >= 86_400.0 {
            return out;
        }
        if unit(&mut random) * MAX_RATE <= rate(at_s, &bursts) {
            let prompt = exponential(&mut random, 600.0);
            out.push(Request::new(at_s, prompt, exponential(&mut random, 250.0)));
        }
    }
}

/// Requests a second of the generated day.
fn rate(at_s: f64, bursts: &[(f64, f64)]) -> f64 {
    let peak = |hour: f64, width: f64, height: f64| {
        let distance = (at_s / 3_600.0 - hour) / width;
        height * (-distance * distance / 2.0).exp()
    };
    let calm = 0.13 + peak(11.0, 2.5, 0.97) + peak(20.0, 2.0, 1.3);
    let in_burst = bursts.iter().any(|(from, until)| (*from..*until).contains(&at_s));
    if in_burst { calm * 1.8 } else { calm }
}

/// The mean number of answers in progress in the busiest minute if no request waits.
pub fn busiest_minute(requests: &[Request]) -> f64 {
    let mut minutes = vec![0i64; 1_440];
    for request in requests {
        let (mut from, until) = (request.at_ms, request.at_ms + request.serve_ms);
        while from < until {
            let minute = from / MINUTE_MS;
            let next = until.min((minute + 1) * MINUTE_MS);
            if let Some(sum) = usize::try_from(minute).ok().and_then(|minute| minutes.get_mut(minute)) {
                *sum += next - from;
            }
            from = next;
        }
    }
    minutes.into_iter().max().unwrap_or(0) as f64 / MINUTE_MS as f64
}

/// Copies the requests, or leaves some out, so that the busiest minute has about `busy` answers in progress. A copy comes
/// at a random time within the next minute, so the bursts of minutes stay.
///
/// # Errors
/// The day would have too many requests.
pub fn scaled(requests: &[Request], busy: f64, seed: u64) -> Result<Vec<Request>, String> {
    let copies = busy / busiest_minute(requests).max(f64::MIN_POSITIVE);
    if copies * requests.len() as f64 > MAX_REQUESTS {
        return Err(format!("the scaled day would have more than {MAX_REQUESTS} requests"));
    }
    let mut random = ChaCha20Rng::seed_from_u64(seed);
    let mut out = Vec::new();
    for request in requests {
        let count = (copies + unit(&mut random)) as u64;
        for _ in 0..count {
            let at_ms = request.at_ms + (unit(&mut random) * MINUTE_MS as f64) as i64;
            out.push(Request { at_ms, ..*request });
        }
    }
    out.retain(|request| request.at_ms < DAY_MS);
    out.sort_unstable();
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n";

    #[test]
    fn a_day_of_a_trace_is_read_without_failed_requests() {
        let rows = "5,ChatGPT,472,18,490,Conversation log\n86399.5,GPT-4,10,0,10,API log\n\n\
                    86400,GPT-4,100,2,102,API log\n86401.25,GPT-4,0,1000000,1000000,API log\n";
        let day = |number| parse(format!("{HEADER}{rows}").as_bytes(), number);
        assert_eq!(day(1), Ok(vec![Request { at_ms: 5_000, serve_ms: 634 }]));
        let second = [Request { at_ms: 0, serve_ms: 80 }, Request { at_ms: 1_250, serve_ms: 600_000 }];
        assert_eq!(day(2), Ok(second.to_vec()));
        assert_eq!(day(3), Err("day 3 has no request".to_owned()));
        assert_eq!(day(0), Err("the first day has the number 1".to_owned()));
    }

    #[test]
    fn a_fault_of_a_trace_is_named() {
        let fault = |text: &str| parse(text.as_bytes(), 1).expect_err("it is refused");
        assert_eq!(fault(""), "the file is empty");
        assert_eq!(fault("Timestamp,Request tokens\n"), "there is no column Response tokens");
        assert_eq!(fault(&format!("{HEADER}5,GPT-4,1,-2,3,log\n")), "line 2: \"-2\" is not a number");
        assert_eq!(fault(&format!("{HEADER}5,GPT-4,1\n")), "line 2: \"\" is not a number");
    }

    #[test]
    fn a_scaled_day_has_the_wanted_busiest_minute() {
        let day = generated(1);
        assert_eq!(day, generated(1));
        for busy in [40.0, 400.0] {
            let scaled = scaled(&day, busy, 1).expect("a day");
            assert!(scaled.is_sorted() && scaled.iter().all(|r| (0..DAY_MS).contains(&r.at_ms)));
            let ratio = busiest_minute(&scaled) / busy;
            assert!((0.6..1.4).contains(&ratio), "{busy}: {ratio}");
        }
        let two = [Request { at_ms: 0, serve_ms: 30_000 }, Request { at_ms: 30_000, serve_ms: 60_000 }];
        assert!((busiest_minute(&two) - 1.0).abs() < 1e-9);
        assert!(scaled(&two, 1e9, 1).is_err());
    }
}
