//! Tests of the lock for one portal: on the data directory, and on Postgres.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use berth_server::arguments::Store;
use serde_json::{Value, json};
use sqlx::Connection;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::common::{StoreLocation, engines};
use crate::process::{request, serve};

/// A wait that a test does not reach.
const LONG: Duration = Duration::from_secs(60);

fn store(data: &Path, database: Option<&str>) -> Store {
    Store { data: data.to_owned(), database: database.map(str::to_owned), database_unverified: true }
}

#[tokio::test]
async fn two_portals_never_have_the_same_data() {
    for (engine, _db, location) in engines("one_portal").await {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        // On Postgres the portals have their own directories.
        let stores = match &location {
            StoreLocation::Sqlite(dir) => [store(dir.path(), None), store(dir.path(), None)],
            StoreLocation::Postgres(url) => dirs.each_ref().map(|dir| store(dir.path(), Some(url))),
        };
        let [one, other] = &stores;
        let first = one.lock(Duration::ZERO).await.unwrap();
        if let StoreLocation::Postgres(url) = &location {
            let third = store(&dirs[1].path().join("third"), Some(url));
            assert!(third.lock(Duration::ZERO).await.is_err() && !third.data.exists(), "{engine}");
        }
        for wait in [Duration::ZERO, Duration::from_millis(50)] {
            let refused = other.lock(wait).await.err().unwrap();
            assert!(refused.starts_with("another portal uses the data"), "{engine}: {refused}");
        }
        // The next portal waits for the end of the last one.
        let (next, ()) = tokio::join!(other.lock(LONG), async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            drop(first);
        });
        let next = next.unwrap();
        assert!(one.lock(Duration::ZERO).await.is_err(), "{engine}");
        drop(next);
        let began = Instant::now();
        drop(one.lock(LONG).await.unwrap());
        assert!(began.elapsed() < LONG / 2, "{engine}");
    }
}

#[tokio::test]
async fn a_portal_that_lost_its_database_to_another_one_knows_it() {
    for (engine, _db, location) in engines("lost_lock").await {
        let StoreLocation::Postgres(url) = location else { continue };
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [one, other] = dirs.each_ref().map(|dir| store(dir.path(), Some(&url)));
        let first = one.lock(Duration::ZERO).await.unwrap();
        let mut lost = tokio::spawn(first.keep(std::future::pending()));
        let mut admin = sqlx::PgConnection::connect(&url).await.unwrap();
        let mut end_session = async || {
            let sql = "SELECT COUNT(pg_terminate_backend(l.pid)) FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                       WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()";
            let ended: i64 = sqlx::query_scalar(sql).fetch_one(&mut admin).await.unwrap();
            assert_eq!(ended, 1, "{engine}");
        };
        let mut watcher = sqlx::PgConnection::connect(&url).await.unwrap();
        let mut holder = async || {
            let sql = "SELECT l.pid FROM pg_locks l JOIN pg_database d ON d.oid = l.database \
                       WHERE l.locktype = 'advisory' AND l.granted AND d.datname = current_database()";
            sqlx::query_scalar::<_, i32>(sql).fetch_optional(&mut watcher).await.unwrap()
        };
        let before = holder().await;
        // Without another portal it locks again.
        end_session().await;
        let deadline = Instant::now() + LONG;
        while holder().await.is_none_or(|pid| Some(pid) == before) {
            assert!(Instant::now() < deadline, "{engine}: it is never locked again");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(!lost.is_finished(), "{engine}");
        let (second, ()) = tokio::join!(other.lock(LONG), end_session());
        let second = second.unwrap();
        tokio::time::timeout(LONG, &mut lost).await.expect("the first portal ends").unwrap().unwrap_err();
        drop(second);
    }
}

#[test]
fn a_second_portal_and_the_commands_are_refused_beside_a_running_portal() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let program = || Command::new(env!("CARGO_BIN_EXE_berth-portal"));
    let served = serve(dir.path());
    let commands = [
        vec!["migrate"],
        vec!["secrets", "rewrap"],
        vec!["second-operator", "end"],
        vec!["factors", "remove", "ada@example.org"],
    ];
    for command in &commands {
        let out = program().args(command).args(["--data", data]).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(
            !out.status.success() && error.contains("another portal uses the data"),
            "{command:?}: {error}"
        );
    }
    drop(served);
    assert!(
        program().args(["migrate", "--data", data]).status().unwrap().success(),
        "its lock ended with it"
    );
    // A mistyped directory gets no new database.
    let other = dir.path().join("dtaa");
    for command in commands.iter().chain([&vec!["audit", "verify"]]) {
        let out = program().args(command).arg("--data").arg(&other).output().unwrap();
        let error = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && error.contains("berth.db does not exist"), "{command:?}: {error}");
        assert!(error.contains("--database") && !other.exists(), "{command:?}: {error}");
    }
}

#[tokio::test]
async fn a_portal_without_its_database_gets_no_new_one() {
    let dir = tempfile::tempdir().unwrap();
    drop(serve(dir.path()));
    // So a data directory of a portal on Postgres looks.
    for name in ["berth.db", "berth.db-wal", "berth.db-shm"] {
        // Only the first one is always there.
        let _ = std::fs::remove_file(dir.path().join(name));
    }
    let refused = store(dir.path(), None).lock(Duration::ZERO).await.err().unwrap();
    assert!(refused.contains("no berth.db") && refused.contains("--database"), "{refused}");
    let migrated = store(dir.path(), None).migrate().await.unwrap_err();
    assert!(migrated.contains("--database"), "{migrated}");
    assert!(!dir.path().join("berth.db").exists());
    // The operator can put keys into the directory of a new portal.
    let new = tempfile::tempdir().unwrap();
    for key in ["secrets.key", "audit.key"] {
        std::fs::copy(dir.path().join(key), new.path().join(key)).unwrap();
    }
    drop(serve(new.path()));
}

/// The answer of a Postgres that starts: FATAL, 57P03.
async fn refuse_start(stream: &mut TcpStream) {
    let mut first = [0; 8];
    stream.read_exact(&mut first).await.unwrap();
    // A client asks for TLS before its first message.
    if first[3] == 8 {
        stream.write_all(b"N").await.unwrap();
    }
    let fields = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
    let length = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    stream.write_all(&[b"E", length.as_slice(), fields.as_slice()].concat()).await.unwrap();
    stream.shutdown().await.unwrap();
    // A close with unread bytes would lose the answer.
    let _ = stream.read_to_end(&mut Vec::new()).await;
}

#[tokio::test]
async fn a_portal_waits_for_a_postgres_that_starts() {
    for (engine, _db, location) in engines("starting").await {
        let StoreLocation::Postgres(url) = location else { continue };
        let server = url.split_once('@').unwrap().1.split_once('/').unwrap().0.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let early = url.replace(&server, &listener.local_addr().unwrap().to_string());
        let data = tempfile::tempdir().unwrap();
        let early = store(data.path(), Some(&early));
        let (locked, refusals) = tokio::join!(early.lock(LONG), async {
            for _ in 0..2 {
                refuse_start(&mut listener.accept().await.unwrap().0).await;
            }
            let mut stream = listener.accept().await.unwrap().0;
            let mut real = TcpStream::connect(&server).await.unwrap();
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut stream, &mut real).await });
            2
        });
        assert!(locked.is_ok() && refusals == 2, "{engine}: {:?}", locked.err());
    }
}

#[tokio::test]
async fn a_refusal_of_postgres_says_the_next_step() {
    for (engine, _db, location) in engines("no_database").await {
        let StoreLocation::Postgres(url) = location else { continue };
        let absent = format!("{}/berth_absent", url.rsplit_once('/').unwrap().0);
        let data = tempfile::tempdir().unwrap();
        let refused = store(data.path(), Some(&absent)).lock(Duration::ZERO).await.err().unwrap();
        assert!(
            refused.contains("does not exist") && refused.contains("CREATE DATABASE"),
            "{engine}: {refused}"
        );
        assert!(!refused.contains("at line"), "{engine}: {refused}");
    }
}

#[tokio::test]
async fn the_lock_follows_no_link() {
    let dir = tempfile::tempdir().unwrap();
    let (data, other) = (dir.path().join("data"), dir.path().join("other"));
    std::fs::create_dir(&data).unwrap();
    std::os::unix::fs::symlink(&other, data.join("portal.lock")).unwrap();
    let refused = store(&data, None).lock(Duration::ZERO).await.err().unwrap();
    assert!(refused.contains("cannot be locked") && !other.exists(), "{refused}");
}

#[test]
fn a_backup_of_a_running_portal_is_a_portal() {
    let dir = tempfile::tempdir().unwrap();
    let (data, copy) = (dir.path().join("data"), dir.path().join("copy"));
    let program = |args: &[&str], data: &Path| {
        let out =
            Command::new(env!("CARGO_BIN_EXE_berth-portal")).args(args).arg("--data").arg(data).output();
        let out = out.unwrap();
        (out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    };
    let backup = |to: &Path| program(&["backup", "--to", to.to_str().unwrap()], &data);
    assert!(backup(&copy).1.contains("No such file"), "nothing is made without data");
    assert!(!copy.exists() && !data.exists());

    let served = serve(&data);
    let address = &served.address;
    let person = json!({"name": "Ada", "email": "ada@example.org", "password": "lantern drizzle capstan quay", "organization": "Kelda"});
    let post = |address: &str, path: &str, body: &Value| {
        request(address, "POST", path, &[], &body.to_string()).unwrap()
    };
    let (status, answer) = post(address, "/sign-up", &person);
    assert!(status < 300, "{status} {answer}");
    // A link refuses the copy and leaves nothing of it; the directory of the file system for lost files is no part of it.
    std::fs::create_dir(data.join("lost+found")).unwrap();
    std::os::unix::fs::symlink(dir.path(), data.join("link")).unwrap();
    assert!(backup(&copy).1.contains("links are not copied"));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "the data alone");
    std::fs::remove_file(data.join("link")).unwrap();
    std::fs::create_dir(copy.with_extension("part")).unwrap();
    assert!(backup(&copy).1.contains("copy.part exists"));
    std::fs::remove_dir(copy.with_extension("part")).unwrap();
    let (ok, text) = backup(&copy);
    assert!(ok && text.starts_with("Copied ") && !copy.join("lost+found").exists(), "{text}");
    for (refused, reason) in [(&copy, "exists already"), (&data.join("inside"), "in the data directory")] {
        let (ok, text) = backup(refused);
        assert!(!ok && text.contains(reason), "{text}");
    }
    assert!(!data.join("inside").exists() && !data.join("inside.part").exists());
    drop(served);

    // The copy has the keys, the database with the account, and nothing of the running portal.
    for name in ["secrets.key", "audit.key", "ca", "berth.db"] {
        assert!(copy.join(name).exists(), "{name}");
    }
    assert!(!copy.join("portal.lock").exists() && !copy.join("berth.db-wal").exists());
    let (ok, text) = program(&["audit", "verify"], &copy);
    assert!(ok && text.contains("The audit log is intact"), "{text}");
    let restored = serve(&copy);
    let known = json!({"email": person["email"], "password": person["password"]});
    let (status, answer) = post(&restored.address, "/sessions", &known);
    assert!(status < 300, "{status} {answer}");
}
