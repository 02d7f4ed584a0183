//! Takes secrets out of a job's output while it passes: every byte of one becomes an asterisk, so that the output
//! keeps its length and every place in it its number. Must not keep, send or name a value.

use std::fs::File;
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;

use berth_proto::LOG_LIMIT;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// What is shorter occurs by chance. The portal keeps nothing that is.
const LEAST: usize = 8;
/// Bytes that are read at once.
const BUFFER: usize = 64 << 10;
/// What a pipe holds at most. More than that is not the job's when the job is gone.
const PIPE: usize = 1 << 20;

/// One text to be found, also where it overlaps itself.
struct Pattern {
    bytes: Vec<u8>,
    /// For each length of a beginning of it, the length of the longest shorter one that also ends it.
    borders: Vec<usize>,
    /// Bytes of it that the output ends with.
    at: usize,
}

impl Pattern {
    fn new(bytes: Vec<u8>) -> Self {
        let mut borders = vec![0, 0];
        let mut at = 0;
        for byte in bytes.iter().skip(1) {
            while at > 0 && bytes.get(at) != Some(byte) {
                at = borders.get(at).copied().unwrap_or(0);
            }
            at += usize::from(bytes.get(at) == Some(byte));
            borders.push(at);
        }
        Self { bytes, borders, at: 0 }
    }

    fn fall_back(&mut self) {
        self.at = self.borders.get(self.at).copied().unwrap_or(0);
    }

    /// Takes in a byte; says whether the output ends with the whole text now.
    fn step(&mut self, byte: u8) -> bool {
        while self.at > 0 && self.bytes.get(self.at) != Some(&byte) {
            self.fall_back();
        }
        self.at += usize::from(self.bytes.get(self.at) == Some(&byte));
        let whole = self.at == self.bytes.len();
        if whole {
            self.fall_back();
        }
        whole
    }
}

/// Everything that is to be taken out.
pub struct Mask {
    patterns: Vec<Pattern>,
    /// The end of the output, as long as more of it could show that it begins a secret.
    held: Vec<u8>,
}

impl Mask {
    /// For these values, with and without white space around them; `None` when there is nothing to look for.
    pub fn of(values: &[String]) -> Option<Self> {
        let mut texts: Vec<&str> = values.iter().flat_map(|value| [value.as_str(), value.trim()]).collect();
        texts.retain(|text| text.len() >= LEAST);
        texts.sort_unstable();
        texts.dedup();
        let patterns: Vec<Vec<u8>> = texts.into_iter().map(|text| text.as_bytes().to_vec()).collect();
        (!patterns.is_empty()).then(|| Self::with(patterns))
    }

    fn with(patterns: Vec<Vec<u8>>) -> Self {
        let patterns = patterns.into_iter().filter(|bytes| !bytes.is_empty()).map(Pattern::new).collect();
        Self { patterns, held: Vec::new() }
    }

    /// Takes in more output; gives back what is known to be clean by now.
    pub fn feed(&mut self, chunk: &[u8]) -> Vec<u8> {
        let mut out = std::mem::take(&mut self.held);
        let before = out.len();
        out.extend_from_slice(chunk);
        for pattern in &mut self.patterns {
            let mut done = 0;
            for (index, byte) in chunk.iter().enumerate() {
                if pattern.step(*byte) {
                    let end = before + index + 1;
                    let begin = end.saturating_sub(pattern.bytes.len()).max(done);
                    if let Some(found) = out.get_mut(begin..end) {
                        found.fill(b'*');
                    }
                    done = end;
                }
            }
        }
        let open = self.patterns.iter().map(|pattern| pattern.at).max().unwrap_or(0);
        self.held = out.split_off(out.len().saturating_sub(open));
        out
    }

    /// What was held back, when no more output comes.
    pub fn finish(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }
}

/// Where a job's output goes: straight into its log, or through a mask.
pub enum Output {
    Plain(File),
    Masked { mask: Mask, from: PipeReader, to: PipeWriter, log: File, over: PipeReader, running: PipeWriter },
}

impl Output {
    /// Into `log`, without these values.
    pub fn of(log: &File, values: &[String]) -> io::Result<Self> {
        let log = log.try_clone()?;
        let Some(mask) = Mask::of(values) else { return Ok(Self::Plain(log)) };
        let (from, to) = io::pipe()?;
        fcntl(&from, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        let (over, running) = io::pipe()?;
        Ok(Self::Masked { mask, from, to, log, over, running })
    }

    /// What the job writes to.
    pub fn of_job(&self) -> BorrowedFd<'_> {
        match self {
            Self::Plain(log) => log.as_fd(),
            Self::Masked { to, .. } => to.as_fd(),
        }
    }

    /// To be called when the job has begun: from here on it alone has its end of the pipe.
    pub fn begin(self) -> Option<Masking> {
        let Self::Masked { mut mask, from, to, mut log, over, running } = self else { return None };
        drop(to);
        let thread = std::thread::spawn(move || pass(from, &over, &mut mask, &mut log));
        Some(Masking { running, thread })
    }
}

/// The thread that masks a job's output on its way to the log.
pub struct Masking {
    /// Dropped when the job is gone.
    running: PipeWriter,
    thread: JoinHandle<()>,
}

impl Masking {
    /// To be called when the job is gone; everything that it wrote is in the log then. Whoever it gave its
    /// output to, outside of its own processes, is not waited for.
    pub fn end(self) {
        drop(self.running);
        // It has no way to panic; if it did, the log is as far as it came.
        let _ = self.thread.join();
    }
}

fn pass(mut from: PipeReader, over: &PipeReader, mask: &mut Mask, log: &mut File) {
    let mut buffer = vec![0; BUFFER];
    let mut kept = 0u64;
    let mut keep = |bytes: &[u8]| {
        // A log that grows past its end is stopped for it; until then not everything can be kept. What cannot be
        // written now, as on a full disk, is lost: the job must not wait for it.
        if kept < 2 * LOG_LIMIT && log.write_all(bytes).is_ok() {
            kept = kept.saturating_add(bytes.len() as u64);
        }
    };
    // Set when the job is gone: the most that can still be on its way.
    let mut left: Option<usize> = None;
    loop {
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => {
                keep(&mask.feed(buffer.get(..read).unwrap_or_default()));
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
                // An interrupted wait is as good as one that ended: the loop looks again.
                let _ = poll(&mut fds, PollTimeout::NONE);
                let [_, over] = &fds;
                left = (over.any() == Some(true)).then_some(PIPE);
            }
            Err(_) => break,
        }
    }
    keep(&mask.finish());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What must come out, found the slow way.
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
        let Some(mut mask) = Mask::of(&values) else { return text.to_owned() };
        let mut out = mask.feed(text.as_bytes());
        out.extend(mask.finish());
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
        let mut mask = Mask::of(&["hf_secret".to_owned()]).unwrap();
        assert_eq!(mask.feed(b"ready> "), b"ready> ");
        assert_eq!(mask.feed(b"see hf_sec"), b"see ");
        assert_eq!(mask.feed(b"ond"), b"hf_second");
        assert_eq!(mask.feed(b"hf_s"), b"");
        assert_eq!(mask.finish(), b"hf_s", "it never became one");
    }

    #[test]
    fn everything_written_is_there_when_the_job_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let output = Output::of(&File::create(&path).unwrap(), &["hf_secret".to_owned()]).unwrap();
        let Output::Masked { to, .. } = &output else { panic!("nothing is masked") };
        let mut writer = to.try_clone().unwrap();
        let masking = output.begin().unwrap();
        let line = b"a line with hf_secret in it\n";
        for _ in 0..20_000 {
            writer.write_all(line).unwrap();
        }
        writer.write_all(b"hf_sec").unwrap();
        // Somebody else still has the pipe, and keeps it.
        masking.end();
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
            let mut mask = Mask::with(patterns.clone());
            let (mut out, mut rest) = (Vec::new(), text.as_slice());
            let mut cuts = cuts.iter().cycle();
            while !rest.is_empty() {
                let (chunk, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                out.extend(mask.feed(chunk));
                rest = after;
            }
            out.extend(mask.finish());
            prop_assert_eq!(out, expected(&text, &patterns));
        }
    }
}
