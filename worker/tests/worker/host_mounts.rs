//! Host mounts in a real sandbox: the jobs of one organization share files, and see nothing else of the file system.

use std::path::PathBuf;

use berth_isolation::sandbox::BindMount;
use berth_job_files::inputs::host_mounts::HostMounts;
use berth_proto::Mount;

use crate::stage::{Script, Stage};

/// A host mount in the directory of a stage, which the sandbox hides.
fn scratch(stage: &Stage) -> HostMounts {
    let path = stage.root.path().join("scratch");
    std::fs::create_dir(&path).unwrap();
    HostMounts::open(&[("scratch".to_owned(), path)], (700_000, 10), &[]).unwrap()
}

/// The volume of an organization at `/shared`.
fn shared(stage: &Stage, mounts: &HostMounts, organization: u32, writable: bool) -> BindMount {
    let mount = Mount {
        volume: "vol_1".to_owned(),
        name: "shared".to_owned(),
        class: "scratch".to_owned(),
        group: organization,
        ..Mount::default()
    };
    let name = format!("org_{organization}");
    let from = mounts.make_directory(&name, &mount, stage.sandbox.has_users()).unwrap();
    BindMount { from, to: PathBuf::from("/shared"), writable }
}

/// The log of a job of an organization with one volume.
fn run(stage: &Stage, mounts: &HostMounts, job: (&str, u32), volume: BindMount, text: &str) -> String {
    let (name, organization) = job;
    let storage_group = mounts.group(organization).filter(|_| stage.sandbox.has_users());
    let script = Script { text, host_volumes: vec![volume], storage_group, ..Script::default() };
    let (exit, log) = stage.run(name, &script);
    assert_eq!(exit.code, 0, "{name}: {log}");
    log
}

#[test]
fn jobs_of_one_organization_share_files_and_no_other_job_sees_them() {
    let Some(stage) = Stage::sandboxed() else { return };
    let mounts = scratch(&stage);
    let root = stage.root.path().display().to_string();
    std::fs::create_dir(stage.root.path().join("of-others")).unwrap();
    std::fs::write(stage.root.path().join("of-others/secret"), "SAW-SECRET").unwrap();
    let text = format!(
        "echo one > /shared/a && mkdir /shared/d && echo one > /shared/d/b && echo wrote\n\
         ln -s {root}/of-others /shared/out && ln -s ../../org_2 /shared/up && ln -s /etc /shared/etc"
    );
    let log = run(&stage, &mounts, ("writer", 1), shared(&stage, &mounts, 1, true), &text);
    assert!(log.contains("wrote"), "{log}");

    let theirs = shared(&stage, &mounts, 2, true);
    std::fs::write(theirs.from.join("secret"), "SAW-SECRET").unwrap();
    let text = format!(
        "cat /shared/a && echo two >> /shared/a && echo two >> /shared/d/b && rm /shared/d/b && echo changed\n\
         ls {root} && echo SAW-HOST\n\
         cat /shared/out/secret /shared/up/vol_1/secret\n\
         touch /shared/etc/berth-test && echo WROTE-SYSTEM\n\
         true"
    );
    let log = run(&stage, &mounts, ("second", 1), shared(&stage, &mounts, 1, true), &text);
    assert!(log.contains("one") && log.contains("changed"), "{log}");
    assert!(!log.contains("SAW-") && !log.contains("WROTE-"), "{log}");
    let own = shared(&stage, &mounts, 1, false);
    assert_eq!(std::fs::read_to_string(own.from.join("a")).unwrap(), "one\ntwo\n");

    let text =
        "cat /shared/a && echo x > /shared/new && echo WROTE-READ-ONLY; rm /shared/a && echo REMOVED; true";
    let log = run(&stage, &mounts, ("reader", 1), own.clone(), text);
    assert!(log.contains("two") && !log.contains("WROTE-") && !log.contains("REMOVED"), "{log}");
    assert!(own.from.join("a").exists() && !own.from.join("new").exists());

    let log = run(&stage, &mounts, ("stranger", 2), theirs, "ls -A /shared; echo end");
    assert_eq!(log.trim(), "secret\nend", "its organization has a directory of its own");
    if stage.sandbox.has_users() {
        // Even with the directory in its sandbox, a job without the group opens nothing.
        let log = run(&stage, &mounts, ("intruder", 2), own, "cat /shared/a && echo SAW-FILES; true");
        assert!(!log.contains("SAW-") && !log.contains("two"), "{log}");
    }
}
