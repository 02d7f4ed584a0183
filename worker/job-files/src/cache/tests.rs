use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};

use super::*;

fn key(content: &[u8]) -> CacheKey {
    CacheKey::new("org_1", &Sha256::digest(content)).unwrap()
}

fn open(dir: &Path) -> Arc<FileCache> {
    Arc::new(FileCache::open_on(dir, 30, None, |_| None).unwrap())
}

/// Stores a content under a key. `None`: the cache has no room.
fn store(cache: &Arc<FileCache>, key: &CacheKey, content: &[u8]) -> Option<PathBuf> {
    let part = CachePart::begin(cache, content.len() as u64, 0)?;
    part.file().write_all_at(content, 0).unwrap();
    Some(part.store(key, false).unwrap().path)
}

fn find(cache: &FileCache, content: &[u8]) -> Option<Vec<u8>> {
    let found = cache.find(&key(content), content.len() as u64)?;
    let mut read = Vec::new();
    (&*found.file).read_to_end(&mut read).unwrap();
    Some(read)
}

fn has(cache: &FileCache, content: &[u8]) -> bool {
    find(cache, content).inspect(|read| assert_eq!(read, content)).is_some()
}

/// Overwrites a file as root or its owner could, with another time of its change.
fn damage(path: &Path, content: &[u8]) {
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    fs::write(path, content).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(9)).unwrap();
}

fn files_below(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn the_limit_holds_and_the_least_recently_used_file_goes() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let contents: Vec<Vec<u8>> = (0..4).map(|n| vec![n; 10]).collect();
    for content in &contents[..3] {
        store(&cache, &key(content), content).unwrap();
    }
    assert!(has(&cache, &contents[0]));
    store(&cache, &key(&contents[3]), &contents[3]).unwrap();
    let there: Vec<bool> = contents.iter().map(|content| has(&cache, content)).collect();
    assert_eq!(there, [true, false, true, true]);
    let totals = cache.totals();
    assert_eq!((totals.files, totals.bytes, totals.evictions), (3, 30, 1));
    assert_eq!((totals.hits, totals.misses, totals.hit_bytes), (4, 1, 40));
    assert_eq!(files_below(&dir.path().join("files/org_1")), 3);
    assert!(store(&cache, &key(&[9; 31]), &[9; 31]).is_none(), "it is larger than the cache");
    assert_eq!(cache.totals().files, 3, "nothing was removed in vain");
}

#[test]
fn only_the_worker_reads_the_directory_and_nobody_writes_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cache");
    let cache = open(&root);
    let path = store(&cache, &key(b"x"), b"x").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&root), mode(path.parent().unwrap()), mode(&path)), (0o700, 0o700, 0o444));
}

#[test]
fn what_was_changed_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    for damaged in [&b"long"[..], b"xx"] {
        let path = store(&cache, &key(b"ab"), b"ab").unwrap();
        damage(&path, damaged);
        assert!(!has(&cache, b"ab") && !path.exists(), "{damaged:?}");
    }
    let path = store(&cache, &key(b"ab"), b"ab").unwrap();
    fs::remove_file(&path).unwrap();
    assert!(!has(&cache, b"ab"), "it is gone");
    assert_eq!(cache.totals().files, 0);
}

#[test]
fn an_unfinished_file_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    let part = CachePart::begin(&cache, 30, 0).unwrap();
    assert!(CachePart::begin(&cache, 1, 0).is_none(), "the first one has all the room");
    assert_eq!(files_below(&dir.path().join("parts")), 1);
    drop(part);
    assert_eq!(files_below(&dir.path().join("parts")), 0);
    assert!(CachePart::begin(&cache, 1, 0).is_some());
}

#[test]
fn the_next_daemon_has_the_whole_files_only() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    store(&cache, &key(b"good"), b"good").unwrap();
    let changed = store(&cache, &key(b"bad"), b"bad").unwrap();
    damage(&changed, b"xxx");
    fs::write(dir.path().join("files/org_1/odd"), "odd").unwrap();
    // As after a kill on the way.
    fs::write(dir.path().join("parts/0"), "part").unwrap();
    drop(cache);
    let cache = open(dir.path());
    assert_eq!(files_below(&dir.path().join("parts")), 0);
    assert_eq!(files_below(&dir.path().join("files/org_1")), 1);
    assert!(has(&cache, b"good") && !has(&cache, b"bad"));
    FileCache::remove(dir.path()).unwrap();
    FileCache::remove(dir.path()).unwrap();
    assert!(!dir.path().exists());
}

#[test]
fn after_another_start_of_the_host_a_content_is_compared_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = open(dir.path());
    for (whole, stored) in [(&b"whole"[..], &b"whole"[..]), (&b"torn."[..], &b"to\0\0\0"[..])] {
        let path = store(&cache, &key(whole), stored).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        let (stamp, _) = name.rsplit_once('.').unwrap();
        fs::rename(&path, path.with_file_name(format!("{stamp}.an-earlier-start"))).unwrap();
    }
    let cache = open(dir.path());
    assert_eq!(cache.totals().files, 2);
    assert!(has(&cache, b"whole") && !has(&cache, b"torn."));
    assert_eq!(cache.totals().files, 1);
}

#[test]
fn the_cache_gives_way_to_jobs() {
    static FREE_BYTES: AtomicU64 = AtomicU64::new(1_000);
    fn measure(_: &Path) -> Option<super::space::DiskSpace> {
        Some(super::space::DiskSpace { total_bytes: 2_000, free_bytes: FREE_BYTES.load(Ordering::SeqCst) })
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(FileCache::open_on(&dir.path().join("cache"), 100_000, None, measure).unwrap());
    let linked = store(&cache, &key(&[1; 900]), &[1; 900]).unwrap();
    fs::hard_link(&linked, dir.path().join("of-an-attempt")).unwrap();
    let free = store(&cache, &key(&[2; 900]), &[2; 900]).unwrap();
    assert!(cache.evictable_bytes() >= 900);
    assert!(CachePart::begin(&cache, 900, 50_000).is_none(), "it leaves no room for the copy of the attempt");
    assert!(linked.exists(), "its removal frees nothing");
    assert!(!free.exists() && cache.totals().evictions == 1);
    FREE_BYTES.store(99, Ordering::SeqCst);
    assert!(store(&cache, &key(b"x"), b"x").is_none(), "the free-space mark is a twentieth");
    assert!(!cache.make_room(0) && cache.evictable_bytes() == 0);
    assert!(has(&cache, &[1; 900]));
}

#[test]
fn a_vain_search_is_not_repeated_for_each_file_of_a_volume() {
    fn measure(_: &Path) -> Option<super::space::DiskSpace> {
        Some(super::space::DiskSpace { total_bytes: 2_000, free_bytes: 0 })
    }
    let dir = tempfile::tempdir().unwrap();
    let cache = Arc::new(FileCache::open_on(&dir.path().join("cache"), 100_000, None, |_| None).unwrap());
    let linked = store(&cache, &key(&[1; 900]), &[1; 900]).unwrap();
    let link = dir.path().join("of-an-attempt");
    fs::hard_link(&linked, &link).unwrap();
    drop(cache);
    // Its opening is the first vain search.
    let start = Instant::now();
    let cache = FileCache::open_on(&dir.path().join("cache"), 100_000, None, measure).unwrap();
    let opened = Instant::now();
    fs::remove_file(&link).unwrap();
    assert!(!cache.make_room_at(100, start) && linked.exists(), "nothing is searched within the pause");
    assert!(cache.make_room_at(100, opened + Duration::from_secs(1)) && !linked.exists());
}
