//! Removes secrets from a job's output on its way to the log: each byte of a value becomes an asterisk, so the length
//! and all offsets of the output stay. No value is stored, sent or named.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;

use aho_corasick::Anchored;
use aho_corasick::automaton::{Automaton, StateID};
use aho_corasick::nfa::noncontiguous::NFA;
use berth_contract::LOG_LIMIT;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The shortest value that is removed: shorter texts occur by chance. The portal has no shorter secrets.
const LEAST: usize = 8;
/// The bytes of one read.
const BUFFER: usize = 64 << 10;
/// The capacity of a pipe. After the end of the job, further bytes come from other writers.
const PIPE: usize = 1 << 20;

/// Removes values from a stream.
pub struct Redactor {
    automaton: NFA,
    /// For each state, the bytes at the end of the output that may be the start of a value. The automaton has no
    /// such number.
    open: HashMap<StateID, usize>,
    state: StateID,
    /// The end of the output that may be the start of a value.
    held: Vec<u8>,
}

impl Redactor {
    /// For these values, with and without white space around them. `None`: there is nothing to remove.
    ///
    /// # Errors
    /// The values are too long for an automaton.
    pub fn for_values(values: &[String]) -> io::Result<Option<Self>> {
        let mut texts: Vec<&str> = values.iter().flat_map(|value| [value.as_str(), value.trim()]).collect();
        texts.retain(|text| text.len() >= LEAST);
        texts.sort_unstable();
        texts.dedup();
        if texts.is_empty() { Ok(None) } else { Self::from_patterns(texts).map(Some) }
    }

    /// `patterns` has no empty one.
    fn from_patterns<P: AsRef<[u8]>>(mut patterns: Vec<P>) -> io::Result<Self> {
        // A shorter pattern has its number before a longer one needs it.
        patterns.sort_by_key(|pattern| pattern.as_ref().len());
        let automaton = NFA::builder().prefilter(false).build(&patterns).map_err(io::Error::other)?;
        let start = automaton.start_state(Anchored::No).map_err(io::Error::other)?;
        let step = |state, byte: &u8| automaton.next_state(Anchored::No, state, *byte);
        let mut open = HashMap::new();
        let mut ends = Vec::new();
        for pattern in &patterns {
            let mut state = start;
            for (at, byte) in pattern.as_ref().iter().enumerate() {
                if at > 0 {
                    open.insert(state, at);
                }
                state = step(state, byte);
            }
            ends.push(state);
        }
        // A whole value is no start of itself, but its end may be the start of a further value.
        for (pattern, end) in patterns.iter().zip(ends) {
            let rest = pattern.as_ref().iter().skip(1).fold(start, step);
            let border = open.get(&rest).copied().unwrap_or(0);
            open.entry(end).or_insert(border);
        }
        Ok(Self { automaton, open, state: start, held: Vec::new() })
    }

    /// Adds output, and returns the part that is final.
    pub fn feed(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.held);
        let before = out.len();
        out.extend_from_slice(chunk);
        let mut found: Vec<Range<usize>> = Vec::new();
        for (index, byte) in chunk.iter().enumerate() {
            self.state = self.automaton.next_state(Anchored::No, self.state, *byte);
            if self.automaton.is_match(self.state) {
                // The first value of a state is the longest; the others are its ends.
                let longest = self.automaton.pattern_len(self.automaton.match_pattern(self.state, 0));
                let end = before + index + 1;
                found.push(end.saturating_sub(longest)..end);
            }
        }
        // From the end, so that each byte is masked once, even where many values overlap.
        let mut masked_from = out.len();
        for range in found.into_iter().rev() {
            if let Some(bytes) = out.get_mut(range.start..range.end.min(masked_from)) {
                bytes.fill(b'*');
            }
            masked_from = masked_from.min(range.start);
        }
        let open = self.open.get(&self.state).copied().unwrap_or(0);
        self.held = out.split_off(out.len().saturating_sub(open));
        out
    }

    /// The rest, after the end of the output.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// The destination of a job's output: the log itself, or a pipe to a redactor.
pub enum JobOutput {
    Plain(File),
    Redacted {
        redactor: Box<Redactor>,
        from: PipeReader,
        to: PipeWriter,
        log: File,
        over: PipeReader,
        running: PipeWriter,
    },
}

impl JobOutput {
    /// Output into `log`, without these values.
    pub fn open(log: &File, values: &[String]) -> io::Result<Self> {
        let log = log.try_clone()?;
        let Some(redactor) = Redactor::for_values(values)? else { return Ok(Self::Plain(log)) };
        let (from, to) = io::pipe()?;
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (over, running) = io::pipe()?;
        Ok(Self::Redacted { redactor: Box::new(redactor), from, to, log, over, running })
    }

    /// The end that the job writes to.
    pub fn job_end(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(log) => log.as_fd(),
            Self::Redacted { to, .. } => to.as_fd(),
        }
    }

    /// Starts the redaction. The caller does this after the start of the job: from now on only the job has its end of
    /// the pipe.
    pub fn begin(self) -> Option<RedactionThread> {
        let Self::Redacted { mut redactor, from, to, mut log, over, running } = self else { return None };
        drop(to);
        let thread = std::thread::spawn(move || redact(from, &over, &mut redactor, &mut log));
        Some(RedactionThread { running, thread })
    }
}

/// The thread that redacts a job's output.
pub struct RedactionThread {
    /// Dropped at the end of the job.
    running: PipeWriter,
    thread: JoinHandle<()>,
}

impl RedactionThread {
    /// Waits until all output of the job is in the log. The caller does this after the end of the job. Other holders
    /// of the pipe are not waited for.
    pub fn end(self) {
        drop(self.running);
        // The thread does not panic; after a panic the log would be incomplete.
        let _ = self.thread.join();
    }
}

fn redact(mut from: PipeReader, over: &PipeReader, redactor: &mut Redactor, log: &mut File) {
    let mut buffer = vec![0; BUFFER];
    let mut written = 0u64;
    let mut write = |bytes: &[u8]| {
        // A job with a log above its limit is stopped soon. Bytes that cannot be written, such as on a full disk, are
        // lost: the job must not wait for them.
        if written < 2 * LOG_LIMIT && log.write_all(bytes).is_ok() {
            written = written.saturating_add(bytes.len() as u64);
        }
    };
    // After the end of the job: the most bytes that can still come from it.
    let mut left: Option<usize> = None;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                write(&redactor.feed(buffer.get(..read).unwrap_or_default()));
                left = left.map(|left| left.saturating_sub(read));
                if left == Some(0) {
                    break;
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && left.is_none() => {
                let mut fds = [
                    PollFd::new(from.as_fd(), PollFlags::POLLIN),
                    PollFd::new(over.as_fd(), PollFlags::POLLIN),
                ];
                // An interrupted wait is no error: the loop reads again.
                let _ = poll(&mut fds, PollTimeout::NONE);
                let [_, over] = &fds;
                left = (over.any() == Some(true)).then_some(PIPE);
            }
            Err(_) => break,
        }
    }
    write(&redactor.finish());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The expected output, by a simple search.
    fn expected(text: &[u8], patterns: &[Vec<u8>]) -> Vec<u8> {
        let mut out = text.to_vec();
        for pattern in patterns.iter().filter(|p| !p.is_empty()) {
            for begin in 0..text.len() {
                if text[begin..].starts_with(pattern) {
                    out[begin..begin + pattern.len()].fill(b'*');
                }
            }
        }
        out
    }

    fn masked(text: &str, values: &[&str]) -> String {
        let values: Vec<String> = values.iter().map(|v| (*v).to_owned()).collect();
        let Some(mut redactor) = Redactor::for_values(&values).unwrap() else { return text.to_owned() };
        let mut out = redactor.feed(text.as_bytes());
        out.extend(redactor.finish());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_value_is_masked_wherever_it_stands() {
        assert_eq!(masked("token=hf_secret!", &["hf_secret"]), "token=*********!");
        assert_eq!(masked("hf_secrehf_secret", &["hf_secret"]), "hf_secre*********");
        assert_eq!(masked("abcdabcdabcd", &["abcdabcd"]), "************", "also where it overlaps itself");
        assert_eq!(masked("x=line one\ny=line one", &["line one\n"]), "x=*********y=********");
        assert_eq!(masked("short 1234567", &["1234567"]), "short 1234567");
        assert_eq!(masked("12345678 123456789", &["12345678", "123456789"]), "******** *********");
    }

    #[test]
    fn what_cannot_be_a_secret_is_not_held_back() {
        let mut redactor = Redactor::for_values(&["hf_secret".to_owned()]).unwrap().unwrap();
        assert_eq!(redactor.feed(b"ready> "), b"ready> ");
        assert_eq!(redactor.feed(b"see hf_sec"), b"see ");
        assert_eq!(redactor.feed(b"ond"), b"hf_second");
        assert_eq!(redactor.feed(b"hf_s"), b"");
        assert_eq!(redactor.finish(), b"hf_s", "it never became one");
        let values = ["abcdabcd", "abcdabcdabcd", "bcdabcdx"].map(str::to_owned);
        let mut redactor = Redactor::for_values(&values).unwrap().unwrap();
        assert_eq!(redactor.feed(b"is bcdabcdx"), b"is ********", "a whole value does not wait");
        assert_eq!(redactor.feed(b"abcdabcd"), b"", "a longer one may follow");
        assert_eq!(redactor.feed(b"!abcdabcdabcd"), b"********!****", "its end is the start of another");
        assert_eq!(redactor.feed(b"."), b"********.");
    }

    #[test]
    fn everything_written_is_there_when_the_job_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let output = JobOutput::open(&File::create(&path).unwrap(), &["hf_secret".to_owned()]).unwrap();
        let JobOutput::Redacted { to, .. } = &output else { panic!("nothing is masked") };
        let mut writer = to.try_clone().unwrap();
        let redaction = output.begin().unwrap();
        let line = b"a line with hf_secret in it\n";
        for _ in 0..20_000 {
            writer.write_all(line).unwrap();
        }
        writer.write_all(b"hf_sec").unwrap();
        // Another writer still has the pipe.
        redaction.end();
        let log = std::fs::read(&path).unwrap();
        assert_eq!(log.len(), 20_000 * line.len() + 6);
        assert!(log.chunks(line.len()).take(20_000).all(|l| l == b"a line with ********* in it\n"));
        drop(writer);
    }

    proptest! {
        #[test]
        fn any_chunks_give_the_same_bytes_masked(
            text in prop::collection::vec(0u8..3, 0..200),
            patterns in prop::collection::vec(prop::collection::vec(0u8..3, 1..9), 1..4),
            cuts in prop::collection::vec(1usize..20, 1..40),
        ) {
            let mut redactor = Redactor::from_patterns(patterns.clone()).unwrap();
            let (mut out, mut rest) = (Vec::new(), text.as_slice());
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                out.extend(redactor.feed(chunk));
                rest = after;
            }
            out.extend(redactor.finish());
            prop_assert_eq!(out, expected(&text, &patterns));
        }
    }
}
