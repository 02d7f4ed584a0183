use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::Mutex;

use berth_contract::MESSAGE_LIMIT;
use berth_proto::portal_server::{Portal as Contract, PortalServer};
use berth_proto::{
    Certificate, FetchResponse, Frame, JoinRequest, PortalMessage, RenewRequest, UploadBatchRequest,
    UploadBatchResult, UploadChunk, UploadProgress, WorkerMessage,
};
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

use super::*;

/// A portal with one volume. The ids of files are their paths.
#[derive(Clone)]
struct FakePortal {
    files: Arc<Mutex<BTreeMap<String, (Vec<u8>, bool)>>>,
    fetched_bytes: Arc<Mutex<usize>>,
    /// The number of begun lists, and the number of those before the first byte of a file.
    lists: watch::Sender<usize>,
    lists_before_files: usize,
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

    async fn upload(&self, _: Request<UploadChunk>) -> Result<Response<UploadProgress>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn upload_batch(
        &self,
        _: Request<UploadBatchRequest>,
    ) -> Result<Response<UploadBatchResult>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn fetch(&self, request: Request<FetchRequest>) -> Result<Response<FetchResponse>, Status> {
        let request = request.into_inner();
        if request.file.is_empty() {
            if request.after.is_empty() {
                self.lists.send_modify(|lists| *lists += 1);
            }
            let files = self.files.lock().unwrap();
            let listed = |(path, (data, executable)): (&String, &(Vec<u8>, bool))| VolumeFile {
                path: path.clone(),
                file: path.clone(),
                bytes: data.len() as u64,
                sha256: Sha256::digest(data).to_vec(),
                executable: *executable,
            };
            let files = files.iter().filter(|(path, _)| **path > request.after).map(listed).collect();
            return Ok(Response::new(FetchResponse { data: Vec::new(), files }));
        }
        self.lists.subscribe().wait_for(|lists| *lists >= self.lists_before_files).await.unwrap();
        let offset = usize::try_from(request.offset).unwrap();
        let data = self.files.lock().unwrap()[&request.file].0[offset..].to_vec();
        *self.fetched_bytes.lock().unwrap() += data.len();
        Ok(Response::new(FetchResponse { data, files: Vec::new() }))
    }
}

/// A node with a cache, and a portal.
struct Node {
    portal: FakePortal,
    client: Portal,
    dir: tempfile::TempDir,
    cache: Arc<FileCache>,
}

impl Node {
    async fn open(lists_before_files: usize) -> Self {
        let files = [("a", "one", false), ("in/b", "three", false), ("run", "#!/bin/sh\n", true)];
        let files = files.map(|(path, text, x)| (path.to_owned(), (text.as_bytes().to_vec(), x)));
        let portal = FakePortal {
            files: Arc::new(Mutex::new(BTreeMap::from(files))),
            fetched_bytes: Arc::default(),
            lists: watch::Sender::new(0),
            lists_before_files,
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let service = PortalServer::new(portal.clone()).max_decoding_message_size(MESSAGE_LIMIT);
        let serving = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(serving.serve_with_incoming(TcpListenerStream::new(listener)));
        let channel = tonic::transport::Endpoint::from_shared(at).unwrap().connect().await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let cache = Arc::new(FileCache::open_on(&dir.path().join("cache"), 1 << 20, None, |_| None).unwrap());
        Self { portal, client: crate::transfer::client(channel), dir, cache }
    }

    /// Fetches the volume for an attempt, and returns its directory with the fetched and the cached bytes.
    async fn start(
        &self,
        name: &str,
        organization: &str,
        own_user: bool,
        writable: bool,
    ) -> (PathBuf, (u64, u64)) {
        let target = self.dir.path().join(name);
        let cache = AttemptCache::new(self.cache.clone(), organization, own_user);
        let report = |_: String| {};
        let mut progress = FetchProgress::new(String::new(), 0, &report, Instant::now());
        let mut client = self.client.clone();
        let how = (Some(&cache), writable);
        fetch_volume(&mut client, FetchRequest::default(), target.clone(), how, &mut progress).await.unwrap();
        for (path, (data, _)) in self.portal.files.lock().unwrap().iter() {
            assert_eq!(std::fs::read(target.join(path)).unwrap(), *data, "{name}: {path}");
        }
        (target, progress.totals())
    }

    fn fetched_bytes(&self) -> usize {
        *self.portal.fetched_bytes.lock().unwrap()
    }
}

fn inode(path: &Path) -> u64 {
    path.metadata().unwrap().ino()
}

#[tokio::test]
async fn a_second_start_fetches_nothing() {
    let node = Node::open(0).await;
    let (first, totals) = node.start("first", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((18, 0), 18));
    let (second, totals) = node.start("second", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((0, 18), 18));
    for path in ["a", "in/b", "run"] {
        assert_eq!(inode(&first.join(path)), inode(&second.join(path)), "{path}: it has no copy");
    }
    let mode = |path: &str| second.join(path).metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("a"), mode("run")), (0o444, 0o555));
    // A changed file is fetched, and no other one.
    node.portal.files.lock().unwrap().insert("a".to_owned(), (b"other".to_vec(), false));
    let (_, totals) = node.start("third", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((5, 15), 23));
    let found = node.cache.totals();
    assert_eq!((found.files, found.bytes, found.hits, found.hit_bytes, found.misses), (4, 23, 5, 33, 4));
}

#[tokio::test]
async fn no_change_of_an_attempt_reaches_the_cache() {
    let node = Node::open(0).await;
    // Without a user of its own a job may have the rights of the worker.
    for (name, own_user, writable) in [("writer", true, true), ("same-user", false, false)] {
        let (dir, _) = node.start(name, "org_1", own_user, writable).await;
        std::fs::write(dir.join("a"), "two").unwrap();
        std::fs::write(dir.join("in/b"), "changed").unwrap();
        std::fs::set_permissions(dir.join("run"), std::fs::Permissions::from_mode(0o777)).unwrap();
    }
    let (reader, totals) = node.start("reader", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((0, 18), 18));
    assert_eq!(reader.join("run").metadata().unwrap().permissions().mode() & 0o777, 0o555);
}

#[tokio::test]
async fn a_damaged_file_is_fetched_again() {
    let node = Node::open(0).await;
    let (first, _) = node.start("first", "org_1", true, false).await;
    // Through the link, as only the worker's user can.
    std::fs::set_permissions(first.join("in/b"), std::fs::Permissions::from_mode(0o644)).unwrap();
    std::fs::write(first.join("in/b"), "damaged").unwrap();
    let (_, totals) = node.start("second", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((5, 13), 23));
}

#[tokio::test]
async fn two_starts_at_once_fetch_once() {
    let node = Node::open(2).await;
    let starts =
        tokio::join!(node.start("first", "org_1", true, false), node.start("second", "org_1", true, false),);
    let ((_, first), (_, second)) = starts;
    assert_eq!((node.fetched_bytes(), first.0 + second.0, first.1 + second.1), (18, 18, 18));
}

#[tokio::test]
async fn organizations_share_no_file() {
    let node = Node::open(0).await;
    let (first, _) = node.start("first", "org_1", true, false).await;
    let (second, totals) = node.start("second", "org_2", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((18, 0), 36));
    assert_ne!(inode(&first.join("a")), inode(&second.join("a")));
}

#[tokio::test]
async fn a_file_keeps_its_own_permissions() {
    let node = Node::open(0).await;
    node.start("first", "org_1", true, false).await;
    node.portal.files.lock().unwrap().insert("also".to_owned(), (b"one".to_vec(), true));
    let (second, totals) = node.start("second", "org_1", true, false).await;
    assert_eq!((totals, node.fetched_bytes()), ((0, 21), 18));
    let mode = |path: &str| second.join(path).metadata().unwrap().permissions().mode() & 0o111;
    assert_eq!((mode("a"), mode("also")), (0, 0o111));
}

#[test]
fn no_path_leads_out_of_a_volume() {
    let dir = tempfile::tempdir().unwrap();
    let root = tree::open_root(dir.path()).unwrap();
    let from = dir.path().join("cached");
    std::fs::write(&from, "cached").unwrap();
    let file = |path: &str| VolumeFile { path: path.to_owned(), executable: true, ..VolumeFile::default() };
    create_volume_file(&root, &file("a/b")).unwrap();
    link_volume_file(&root, "a/l", &from).unwrap();
    assert!(dir.path().join("a/b").exists() && dir.path().join("a/l").exists());
    for bad in ["../x", "/x", "a/../../x", "", "a//c", "a/./c", "a/b"] {
        assert!(create_volume_file(&root, &file(bad)).is_err(), "{bad:?}");
        assert!(link_volume_file(&root, bad, &from).is_err(), "{bad:?}");
    }
    symlink("/tmp", dir.path().join("l")).unwrap();
    assert!(create_volume_file(&root, &file("l/x")).is_err(), "nor through a link");
    assert!(link_volume_file(&root, "l/x", &from).is_err(), "nor through a link");
}
