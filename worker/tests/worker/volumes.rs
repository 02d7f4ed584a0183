//! Volumes in a real sandbox: one is only for reading, the other is not, and neither opens anything else.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use berth_isolation::sandbox::BindMount;

use crate::stage::{Script, Stage};

fn volume(stage: &Stage, name: &str, to: &str, writable: bool) -> BindMount {
    let from = stage.root.path().join("of-a-job").join(name);
    std::fs::create_dir_all(&from).unwrap();
    std::fs::write(from.join("there"), name).unwrap();
    BindMount { from, to: PathBuf::from(to), writable }
}

#[test]
fn a_volume_is_read_or_written_at_its_place_and_nothing_else_changes() {
    let Some(stage) = Stage::sandboxed() else { return };
    let data = volume(&stage, "data", "/data", false);
    let out = volume(&stage, "out", "/home/job/runs/out", true);
    let top = volume(&stage, "top", "/scratch-volume", true);
    let text = format!(
        "cat /data/there ~/runs/out/there /scratch-volume/there; echo\n\
         echo x > /data/new && echo WROTE-READ-ONLY\n\
         rm -f /data/there && echo REMOVED-READ-ONLY\n\
         echo new > ~/runs/out/new && echo new > /scratch-volume/new && echo wrote-own\n\
         for f in /x /usr/x /etc/x /home/x /var/x; do touch $f && echo WROTE-SYSTEM $f; done\n\
         ls {} && echo SAW-WORKER\n\
         test -x /usr/bin/env -a -e /etc/passwd -a -d /proc/self -a -c /dev/null && echo whole-system\n\
         ls / | grep -x data; touch ~/own /tmp/own && echo wrote-home",
        stage.root.path().display()
    );
    let volumes = vec![data.clone(), out.clone(), top.clone()];
    let (exit, log) = stage.run("reader", &Script { text: &text, volumes, ..Script::default() });
    assert_eq!(exit.code, 0, "{log}");
    for bad in ["WROTE-", "REMOVED-", "SAW-"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    for good in ["dataouttop", "wrote-own", "whole-system", "\ndata\n", "wrote-home"] {
        assert!(log.contains(good), "{good}: {log}");
    }
    assert_eq!(std::fs::read_to_string(data.from.join("there")).unwrap(), "data");
    assert!(!data.from.join("new").exists());
    for own in [out, top] {
        assert_eq!(std::fs::read_to_string(own.from.join("new")).unwrap(), "new\n");
    }
}

#[test]
fn a_job_reads_a_cached_file_through_its_link_and_changes_nothing() {
    let Some(stage) = Stage::sandboxed() else { return };
    let data = volume(&stage, "data", "/data", false);
    // As the cache stores a file.
    let cached = stage.root.path().join("cached");
    std::fs::write(&cached, "cached").unwrap();
    std::fs::set_permissions(&cached, std::fs::Permissions::from_mode(0o444)).unwrap();
    std::fs::hard_link(&cached, data.from.join("linked")).unwrap();
    let stamp = || {
        let found = cached.metadata().unwrap();
        (found.uid(), found.mode() & 0o7777, found.mtime(), found.mtime_nsec(), found.nlink())
    };
    let before = stamp();
    let text = format!(
        "cd /data && cat linked; echo\n\
         echo x > linked && echo CHANGED-IT\n\
         echo x >> linked && echo APPENDED\n\
         chmod 666 linked && echo CHANGED-MODE\n\
         touch -d @1 linked && echo CHANGED-TIME\n\
         ln linked ~/own && echo LINKED-IT\n\
         truncate -s 0 /proc/self/cwd/linked && echo TRUNCATED\n\
         cat {} && echo SAW-CACHE\n\
         cp linked ~/copy && chmod 600 ~/copy && echo x >> ~/copy && echo wrote-copy",
        cached.display()
    );
    let (exit, log) = stage.run("reader", &Script { text: &text, volumes: vec![data], ..Script::default() });
    assert_eq!(exit.code, 0, "{log}");
    for bad in ["CHANGED-", "APPENDED", "LINKED-", "TRUNCATED", "SAW-"] {
        assert!(!log.contains(bad), "{bad}: {log}");
    }
    assert!(log.contains("cached\n") && log.contains("wrote-copy"), "{log}");
    assert_eq!((stamp(), std::fs::read_to_string(&cached).unwrap().as_str()), (before, "cached"));
}

#[test]
fn what_is_written_to_a_volume_counts_as_the_jobs() {
    let stage = Stage::open();
    let out = volume(&stage, "out", "/out", true);
    let text = format!("head -c 3000000 /dev/zero > {}/large; sleep 60", out.from.display());
    let script = Script { text: &text, disk_mib: 1, volumes: vec![out], ..Script::default() };
    let (exit, log) = stage.run("large", &script);
    let (code, detail) = exit.failure.unwrap();
    assert_eq!(code, "disk.exceeded", "{log}");
    assert!(detail.contains("1 MiB"), "{detail}");
}
