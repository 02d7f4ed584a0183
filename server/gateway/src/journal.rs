//! The journal: one file with the books as a whole in its first line, and a record in each line after it.
//!
//! A record is in the file before its effect, so a killed gateway loses nothing. It is on the disk before a message to
//! the portal says so ([`Journal::disk`]): a power cut loses the last requests, but contradicts no message. A last line
//! without its end is a record that had no effect.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

use crate::books::{Books, Record};

const FILE: &str = "journal.jsonl";
/// Bytes of records after which the books are written as a whole.
const LONG_BYTES: u64 = 32 << 20;

/// The open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: Arc<File>,
    /// Bytes since the books were written as a whole.
    bytes: u64,
    /// The last write failed: the file may end within a line, or has former books.
    is_broken: bool,
}

impl Journal {
    /// Opens the journal of a directory, with the books of the last start. They are written anew.
    ///
    /// # Errors
    /// The directory is not writable. A damaged journal is renamed and begins anew.
    pub fn open(dir: &Path, now_ms: u64) -> Result<(Self, Books), String> {
        let path = dir.join(FILE);
        let fault = |e: io::Error| format!("{}: {e}", path.display());
        let books = match std::fs::read(&path) {
            Ok(text) => read(&text).map(|mut books| {
                books.restart(now_ms);
                books
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Books::new(now_ms)),
            Err(error) => return Err(fault(error)),
        };
        let books = match books {
            Ok(books) => books,
            Err(line) => {
                let kept = path.with_extension("damaged");
                std::fs::rename(&path, &kept).map_err(fault)?;
                tracing::error!(
                    line,
                    kept = %kept.display(),
                    "the journal is damaged; lent amounts and use that the portal does not know are lost"
                );
                Books::new(now_ms)
            }
        };
        let file = write_whole(&path, &books).map_err(fault)?;
        Ok((Self { file, bytes: 0, is_broken: false, path }, books))
    }

    /// Appends records. Without room for them the file keeps its whole lines.
    pub fn append(&mut self, records: &[Record]) -> io::Result<()> {
        if self.is_broken {
            return Err(io::Error::other("the journal is not writable"));
        }
        let mut text = Vec::new();
        for record in records {
            push_line(&mut text, record)?;
        }
        let written = (&*self.file).write_all(&text);
        self.is_broken = written.is_err();
        self.bytes = self.bytes.saturating_add(text.len() as u64);
        written
    }

    /// True if [`Self::rewrite`] is due.
    pub const fn is_long(&self) -> bool {
        self.is_broken || self.bytes >= LONG_BYTES
    }

    /// Writes the books as a whole, in place of all records.
    pub fn rewrite(&mut self, books: &Books) -> io::Result<()> {
        // After a failure the file has former books, so records of these must not follow them.
        self.is_broken = true;
        self.file = write_whole(&self.path, books)?;
        (self.bytes, self.is_broken) = (0, false);
        Ok(())
    }

    /// The file, to wait for the disk without the lock of the books.
    pub fn disk(&self) -> Arc<File> {
        self.file.clone()
    }
}

/// The books of a journal, or the number of its first bad line.
fn read(text: &[u8]) -> Result<Books, usize> {
    let end = text.iter().rposition(|byte| *byte == b'\n');
    let whole = end.and_then(|at| text.get(..at)).unwrap_or_default();
    let mut lines = whole.split(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let mut books: Books = serde_json::from_slice(first).map_err(|_| 1_usize)?;
    for (line, number) in lines.zip(2_usize..) {
        books.apply(serde_json::from_slice::<Record>(line).map_err(|_| number)?);
    }
    Ok(books)
}

fn push_line(text: &mut Vec<u8>, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *text, value).map_err(io::Error::other)?;
    text.push(b'\n');
    Ok(())
}

/// Writes the books into a new file that takes the place of the old one, and waits for the disk.
fn write_whole(path: &Path, books: &Books) -> io::Result<Arc<File>> {
    let mut text = Vec::new();
    push_line(&mut text, books)?;
    put(path, &text)?;
    OpenOptions::new().append(true).open(path).map(Arc::new)
}

/// Writes a file as a whole, readable by its owner alone: a reader sees the old text or the new one.
pub fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    let part = path.with_extension("part");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&part)?;
    file.write_all(text)?;
    file.sync_all()?;
    std::fs::rename(&part, path)?;
    // The name is stored in the directory.
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use berth_types::ids::{RevisionId, ServiceId};
    use uuid::Uuid;

    use super::*;
    use crate::books::Used;

    fn used(tokens: u64) -> Record {
        Record::Used(Used {
            service: ServiceId::from_uuid(Uuid::from_u128(1)),
            revision: RevisionId::from_uuid(Uuid::from_u128(1)),
            key: None,
            is_error: false,
            prompt_tokens: tokens,
            completion_tokens: 0,
            token_nanos: 0,
            bucket: Some(0),
        })
    }

    /// The prompt tokens of the next report.
    fn tokens(mut books: Books) -> u64 {
        books.apply(books.next_report());
        books.outgoing().unwrap().uses.iter().map(|row| row.prompt_tokens).sum()
    }

    #[test]
    fn a_killed_gateway_comes_back_with_its_whole_records() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        let (mut journal, _) = Journal::open(dir.path(), 1).unwrap();
        journal.append(&[used(2), used(3)]).unwrap();
        journal.append(&[used(100)]).unwrap();
        let text = std::fs::read(&path).unwrap();
        let last = text[..text.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for cut in last..text.len() {
            std::fs::write(&path, &text[..cut]).unwrap();
            let (_, books) = Journal::open(dir.path(), 2).unwrap();
            assert_eq!(tokens(books), 5, "{cut}");
        }
        std::fs::write(&path, &text).unwrap();
        let (_, books) = Journal::open(dir.path(), 2).unwrap();
        assert_eq!(tokens(books), 105);
        assert_eq!(std::fs::read(&path).unwrap().iter().filter(|byte| **byte == b'\n').count(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_books_as_a_whole_take_the_place_of_their_records() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, mut books) = Journal::open(dir.path(), 1).unwrap();
        journal.append(&[used(4)]).unwrap();
        books.apply(used(4));
        journal.rewrite(&books).unwrap();
        journal.append(&[used(5)]).unwrap();
        let (_, books) = Journal::open(dir.path(), 2).unwrap();
        assert_eq!(tokens(books), 9);
    }

    #[test]
    fn books_that_could_not_be_written_are_due_again() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let (mut journal, books) = Journal::open(&data, 1).unwrap();
        std::fs::remove_dir_all(&data).unwrap();
        assert!(journal.rewrite(&books).is_err() && journal.is_long());
        assert!(journal.append(&[used(4)]).is_err(), "a record of other books");
        std::fs::create_dir(&data).unwrap();
        journal.rewrite(&books).unwrap();
        assert!(!journal.is_long());
        journal.append(&[used(5)]).unwrap();
        assert_eq!(tokens(Journal::open(&data, 2).unwrap().1), 5);
    }

    #[test]
    fn a_damaged_journal_is_kept_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        for damage in ["", "nonsense\n", "{\"life\":1}\n"] {
            std::fs::write(&path, damage).unwrap();
            let (_, books) = Journal::open(dir.path(), 7).unwrap();
            assert_eq!(books, Books::new(7));
            assert_eq!(std::fs::read_to_string(path.with_extension("damaged")).unwrap(), damage);
        }
    }
}
