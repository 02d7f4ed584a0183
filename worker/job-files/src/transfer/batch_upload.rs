//! Uploads of many files: small files together, several messages in parallel, and no file that the portal has
//! already. So the number of files costs little time on a slow route.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};

use berth_contract::{BATCH_BYTES, BATCH_FILES, FILE_CHUNK};
use berth_proto::{OutputFile, SmallFile, UploadBatchRequest};
use berth_system::sync::lock;
use futures::stream::{self, StreamExt, TryStreamExt};
use sha2::{Digest, Sha256};
use tonic::Code;

use super::blocking::{blocking, unreadable};
use super::client::Portal;
use super::tree::{self, TreeEntry};
use super::upload::{ANSWER_WITHIN, PARALLEL, UploadSource, status_text, upload, upload_from_start};

/// A file and its hash. `None`: the file was changed or is shorter.
pub type HashedFile = (TreeEntry, Option<Vec<u8>>);

/// The contents of running uploads, by hash and length.
type UploadedContents = Mutex<HashSet<(Vec<u8>, u64)>>;

/// Files below one directory, for one attempt.
pub struct UploadSet {
    pub root: Arc<OwnedFd>,
    /// The attempt, and the volume for files of a volume.
    pub output: OutputFile,
}

fn hash_of(root: &OwnedFd, entry: &TreeEntry) -> Result<Option<Vec<u8>>, String> {
    let Some(file) = tree::open_file(root, entry).map_err(|e| unreadable(&e))? else { return Ok(None) };
    let mut hash = Sha256::new();
    let (mut offset, mut buffer) = (0, vec![0; 1 << 20]);
    loop {
        let read = file.read_at(&mut buffer, offset).map_err(|e| unreadable(&e))?;
        let Some(data) = buffer.get(..read).filter(|d| !d.is_empty()) else { break };
        hash.update(data);
        offset += read as u64;
    }
    Ok((offset == entry.bytes).then(|| hash.finalize().to_vec()))
}

/// Opens a file and reads its beginning.
fn open_with_beginning(root: &OwnedFd, entry: &TreeEntry) -> Result<(File, Vec<u8>), String> {
    let changed = || format!("{} was replaced during its transfer", entry.path);
    let file = tree::open_file(root, entry).map_err(|e| unreadable(&e))?.ok_or_else(changed)?;
    let length = usize::try_from(entry.bytes).unwrap_or(FILE_CHUNK).min(FILE_CHUNK);
    let source = UploadSource::Open(file);
    let data = source.read_at(0, length).map_err(|e| unreadable(&e))?;
    if data.len() < length {
        return Err("a file became shorter during its transfer".to_owned());
    }
    let UploadSource::Open(file) = source else { return Err(changed()) };
    Ok((file, data))
}

/// Groups files in their order: as many as fit into a message, or one larger file.
fn group_files(files: Vec<(TreeEntry, Vec<u8>)>) -> Vec<Vec<(TreeEntry, Vec<u8>)>> {
    let (mut out, mut bytes): (Vec<Vec<_>>, u64) = (Vec::new(), 0);
    for file in files {
        bytes = bytes.saturating_add(file.0.bytes);
        match out.last_mut().filter(|last| bytes <= BATCH_BYTES as u64 && last.len() < BATCH_FILES) {
            Some(last) => last.push(file),
            None => {
                bytes = file.0.bytes;
                out.push(vec![file]);
            }
        }
    }
    out
}

/// Uploads files, and returns all of them with their hashes.
pub async fn upload_all(
    portal: &Portal,
    files: &UploadSet,
    entries: Vec<TreeEntry>,
) -> Result<Vec<HashedFile>, String> {
    let uploaded = UploadedContents::default();
    let chunks: Vec<Vec<TreeEntry>> = entries.chunks(BATCH_FILES).map(<[TreeEntry]>::to_vec).collect();
    let sending = chunks.into_iter().map(|chunk| files.upload_chunk(portal.clone(), chunk, &uploaded));
    let done: Vec<Vec<HashedFile>> = stream::iter(sending).buffered(PARALLEL).try_collect().await?;
    Ok(done.into_iter().flatten().collect())
}

impl UploadSet {
    async fn upload_chunk(
        &self,
        mut portal: Portal,
        entries: Vec<TreeEntry>,
        uploaded: &UploadedContents,
    ) -> Result<Vec<HashedFile>, String> {
        let root = self.root.clone();
        let hashing = blocking(move || {
            let hashed = |entry: TreeEntry| hash_of(&root, &entry).map(|hash| (entry, hash));
            entries.into_iter().map(hashed).collect::<Result<Vec<HashedFile>, String>>()
        });
        let hashed = hashing.await?;
        let readable = hashed.iter().filter_map(|(entry, hash)| Some((entry.clone(), hash.clone()?)));
        let offered: Vec<(TreeEntry, Vec<u8>)> =
            readable.filter(|file| self.is_new(file, uploaded)).collect();
        let Some(done) = self.query(&mut portal, &offered).await? else {
            for file in offered {
                self.upload_one(&mut portal, file, true).await?;
            }
            return Ok(hashed);
        };
        let missing = offered.into_iter().zip(done).filter(|(_, done)| !done).map(|(file, _)| file);
        for group in group_files(missing.collect()) {
            match <[_; 1]>::try_from(group) {
                Ok([file]) if file.0.bytes > BATCH_BYTES as u64 => {
                    self.upload_one(&mut portal, file, false).await?;
                }
                Ok([file]) => self.upload_group(&mut portal, vec![file]).await?,
                Err(group) => self.upload_group(&mut portal, group).await?,
            }
        }
        Ok(hashed)
    }

    /// True if no other upload has this content: a volume has each content once. Artifacts are stored separately.
    fn is_new(&self, (entry, sha256): &(TreeEntry, Vec<u8>), uploaded: &UploadedContents) -> bool {
        let mut uploaded = lock(uploaded);
        self.output.volume.is_empty() || uploaded.insert((sha256.clone(), entry.bytes))
    }

    fn batch(&self, files: Vec<SmallFile>, check_only: bool) -> UploadBatchRequest {
        let (attempt, volume) = (self.output.attempt.clone(), self.output.volume.clone());
        UploadBatchRequest { attempt, volume, files, check_only }
    }

    /// Asks for each file whether the portal has it. `None`: the portal knows no batches.
    async fn query(
        &self,
        portal: &mut Portal,
        offered: &[(TreeEntry, Vec<u8>)],
    ) -> Result<Option<Vec<bool>>, String> {
        if offered.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let file = |(entry, sha256): &(TreeEntry, Vec<u8>)| SmallFile {
            path: entry.path.clone(),
            bytes: entry.bytes,
            sha256: sha256.clone(),
            data: Vec::new(),
        };
        send_batch(portal, self.batch(offered.iter().map(file).collect(), true)).await
    }

    async fn upload_group(
        &self,
        portal: &mut Portal,
        group: Vec<(TreeEntry, Vec<u8>)>,
    ) -> Result<(), String> {
        let root = self.root.clone();
        let reading = blocking(move || {
            let small = |(entry, sha256): (TreeEntry, Vec<u8>)| {
                let (_, data) = open_with_beginning(&root, &entry)?;
                Ok(SmallFile { path: entry.path, bytes: entry.bytes, sha256, data })
            };
            group.into_iter().map(small).collect::<Result<Vec<SmallFile>, String>>()
        });
        let done = send_batch(portal, self.batch(reading.await?, false)).await?;
        if done.is_some_and(|done| done.iter().all(|done| *done)) {
            return Ok(());
        }
        Err("the portal does not accept files".to_owned())
    }

    /// With `resume` the portal may have a part of the file.
    async fn upload_one(
        &self,
        portal: &mut Portal,
        (entry, sha256): (TreeEntry, Vec<u8>),
        resume: bool,
    ) -> Result<(), String> {
        let output = OutputFile {
            path: entry.path.clone(),
            bytes: entry.bytes,
            sha256,
            files: 1,
            ..self.output.clone()
        };
        let root = self.root.clone();
        let (file, first) = blocking(move || open_with_beginning(&root, &entry)).await?;
        if resume {
            return upload(portal, output, UploadSource::Open(file)).await;
        }
        upload_from_start(portal, output, UploadSource::Open(file), first).await
    }
}

/// Sends a batch and returns whether the portal has each of its files. `None`: the portal knows no batches.
async fn send_batch(portal: &mut Portal, batch: UploadBatchRequest) -> Result<Option<Vec<bool>>, String> {
    let count = batch.files.len();
    let answer = tokio::time::timeout(ANSWER_WITHIN, portal.upload_batch(batch)).await;
    match answer.map_err(|_| "the portal does not answer")? {
        Ok(kept) => {
            let done = kept.into_inner().done;
            if done.len() == count {
                Ok(Some(done))
            } else {
                Err("the answer of the portal is invalid".to_owned())
            }
        }
        Err(status) if status.code() == Code::Unimplemented => Ok(None),
        Err(status) => Err(status_text(&status)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use berth_contract::MESSAGE_LIMIT;
    use berth_proto::portal_server::{Portal as Contract, PortalServer};
    use berth_proto::{
        Certificate, FetchRequest, FetchResponse, Frame, JoinRequest, PortalMessage, RenewRequest,
        UploadBatchResult, UploadChunk, UploadProgress, WorkerMessage,
    };
    use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
    use tonic::{Request, Response, Status, Streaming};

    use super::super::tree::TreeEntryKind;
    use super::*;

    fn entry(path: String, bytes: u64) -> TreeEntry {
        TreeEntry { path, kind: TreeEntryKind::File, bytes, mode: 0o600, modified_s: 0, stamp: (0, 0, 0) }
    }

    #[test]
    fn files_go_together_as_they_fit() {
        let sizes = |bytes: &[u64]| {
            let files = bytes.iter().map(|bytes| (entry("x".to_owned(), *bytes), Vec::new())).collect();
            let sizes = |group: &Vec<(TreeEntry, Vec<u8>)>| group.iter().map(|(e, _)| e.bytes).collect();
            group_files(files).iter().map(sizes).collect::<Vec<Vec<u64>>>()
        };
        let most = BATCH_BYTES as u64;
        assert_eq!(sizes(&[]), Vec::<Vec<u64>>::new());
        assert_eq!(sizes(&[1, most - 1, 1]), [vec![1, most - 1], vec![1]]);
        assert_eq!(sizes(&[1, u64::MAX, 0, most]), [vec![1], vec![u64::MAX], vec![0, most]]);
        assert_eq!(sizes(&vec![0; BATCH_FILES + 1]).len(), 2);
    }

    #[test]
    fn a_file_is_hashed_as_it_was_listed_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "text").unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let listed = tree::list(&root, None).unwrap().entries.remove(0);
        assert_eq!(hash_of(&root, &listed).unwrap().unwrap(), Sha256::digest(b"text").to_vec());
        assert_eq!(open_with_beginning(&root, &listed).unwrap().1, b"text");
        std::fs::write(dir.path().join("a"), "another").unwrap();
        assert_eq!(hash_of(&root, &listed).unwrap(), None);
        assert!(open_with_beginning(&root, &listed).is_err());
    }

    /// A portal that only takes files, and rejects some batches.
    #[derive(Clone, Default)]
    struct FakePortal {
        knows_batches: bool,
        /// The received files by path, and the sizes of batches with data.
        files: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
        batches: Arc<Mutex<Vec<usize>>>,
        fails: Arc<Mutex<usize>>,
    }

    type Streamed<T> = ReceiverStream<Result<T, Status>>;

    #[tonic::async_trait]
    impl Contract for FakePortal {
        type SessionStream = Streamed<PortalMessage>;
        type TunnelStream = Streamed<Frame>;

        async fn join(&self, _: Request<JoinRequest>) -> Result<Response<Certificate>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn renew(&self, _: Request<RenewRequest>) -> Result<Response<Certificate>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn session(
            &self,
            _: Request<Streaming<WorkerMessage>>,
        ) -> Result<Response<Streamed<PortalMessage>>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn tunnel(&self, _: Request<Streaming<Frame>>) -> Result<Response<Streamed<Frame>>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn fetch(&self, _: Request<FetchRequest>) -> Result<Response<FetchResponse>, Status> {
            Err(Status::unimplemented(""))
        }

        async fn upload(&self, request: Request<UploadChunk>) -> Result<Response<UploadProgress>, Status> {
            let chunk = request.into_inner();
            let file = chunk.file.unwrap();
            let mut files = self.files.lock().unwrap();
            let there = files.entry(file.path).or_default();
            if chunk.offset == there.len() as u64 {
                there.extend(chunk.data);
            }
            let bytes = there.len() as u64;
            Ok(Response::new(UploadProgress { received_bytes: bytes, done: bytes == file.bytes }))
        }

        async fn upload_batch(
            &self,
            request: Request<UploadBatchRequest>,
        ) -> Result<Response<UploadBatchResult>, Status> {
            if !self.knows_batches {
                return Err(Status::unimplemented("an earlier build"));
            }
            let UploadBatchRequest { files: offered, check_only, .. } = request.into_inner();
            let mut files = self.files.lock().unwrap();
            if check_only {
                let whole = |f: &SmallFile| files.get(&f.path).is_some_and(|d| d.len() as u64 == f.bytes);
                return Ok(Response::new(UploadBatchResult { done: offered.iter().map(whole).collect() }));
            }
            let mut fails = self.fails.lock().unwrap();
            if *fails > 0 {
                *fails -= 1;
                return Err(Status::unavailable("cut off"));
            }
            self.batches.lock().unwrap().push(offered.len());
            let done = vec![true; offered.len()];
            for file in offered {
                assert!(files.insert(file.path, file.data).is_none(), "it was here already");
            }
            Ok(Response::new(UploadBatchResult { done }))
        }
    }

    /// Uploads files of three sizes until the portal has all, and returns the number of tries.
    async fn tries_until_uploaded(fake: &FakePortal) -> usize {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let service = PortalServer::new(fake.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let serving = tonic::transport::Server::builder().add_service(service);
        let serving = tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = tonic::transport::Endpoint::from_shared(at).unwrap().connect().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let large = FILE_CHUNK + BATCH_BYTES;
        for n in 0..BATCH_FILES + 20 {
            std::fs::write(dir.path().join(format!("{n:04}")), format!("{n}")).unwrap();
        }
        std::fs::write(dir.path().join("empty"), "").unwrap();
        std::fs::write(dir.path().join("large"), vec![7; large]).unwrap();
        std::fs::write(dir.path().join("middle"), vec![8; BATCH_BYTES - 1]).unwrap();
        let root = tree::open_root(dir.path()).unwrap();
        let entries = tree::list(&root, None).unwrap().entries;
        let files = UploadSet { root: Arc::new(root), output: OutputFile::default() };
        let portal = super::super::client::client(channel);
        let mut tries = 1;
        while upload_all(&portal, &files, entries.clone()).await.is_err() {
            tries += 1;
            assert!(tries < 10);
        }
        serving.abort();
        let there = fake.files.lock().unwrap();
        assert_eq!(there.len(), BATCH_FILES + 23);
        assert_eq!((there["0519"].as_slice(), there["empty"].len()), (b"519".as_slice(), 0));
        assert_eq!((there["large"].len(), there["middle"].len()), (large, BATCH_BYTES - 1));
        tries
    }

    #[tokio::test]
    async fn what_was_cut_off_goes_on_and_nothing_is_sent_twice() {
        let fake = FakePortal { knows_batches: true, ..FakePortal::default() };
        *fake.fails.lock().unwrap() = 3;
        assert!(tries_until_uploaded(&fake).await > 1);
        let mut batches = fake.batches.lock().unwrap().clone();
        batches.sort_unstable();
        assert_eq!(batches.iter().sum::<usize>(), BATCH_FILES + 22, "{batches:?}");
        assert!(batches.len() <= 4, "they go together: {batches:?}");
    }

    #[tokio::test]
    async fn a_portal_of_an_earlier_build_gets_them_one_by_one() {
        let fake = FakePortal::default();
        assert_eq!(tries_until_uploaded(&fake).await, 1);
    }
}
