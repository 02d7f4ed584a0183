//! Sandboxes that bubblewrap cannot complete.

use berth_isolation::sandbox::{BindMount, Sandbox};
use berth_proto::Secret;
use berth_test_programs::write_program;

use crate::stage::{Script, Stage};

#[test]
fn a_sandbox_that_cannot_be_set_up_is_a_failure_of_the_worker() {
    let Some(stage) = Stage::sandboxed() else { return };
    let from = stage.root.path().join("data");
    std::fs::create_dir(&from).unwrap();
    // The system is read-only inside, so this directory cannot be made.
    let volumes = vec![BindMount { from, to: "/usr/absent".into(), writable: true }];
    let (exit, log) = stage.run("incomplete", &Script { text: "echo RAN", volumes, ..Script::default() });
    assert!(log.contains("/usr/absent") && !log.contains("RAN"), "{log}");
    let (code, detail) = exit.failure.unwrap();
    assert_eq!((code.as_str(), exit.code, exit.metered_ms), ("worker.isolation", 1, 0), "{detail}");
    // A command has the same exit code, and gets none of the worker's files.
    let (exit, log) = stage.script("complete", "ls /proc/self/fd; exit 1");
    assert_eq!((exit.code, exit.failure), (1, None), "{log}");
    assert_eq!(log.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"], "3 is the list's own");
}

/// A bubblewrap that fails without a sandbox for its first `failures` starts, as it does while the host's mounts
/// change.
fn failing_bubblewrap(stage: &mut Stage, failures: u32) {
    let Sandbox::Bubblewrap { program, .. } = &mut stage.sandbox else { panic!("no sandbox") };
    let (script, count) = (stage.root.path().join("bwrap"), stage.root.path().join("starts"));
    let text = format!(
        "#!/bin/sh\necho start >> {count}\nif [ $(wc -l < {count}) -le {failures} ]; then\n\
         echo \"Can't bind mount\" >&2\nexit 1\nfi\nexec {program} \"$@\"\n",
        count = count.display(),
        program = program.display()
    );
    write_program(&script, &text).unwrap();
    *program = script;
}

#[test]
fn a_sandbox_that_failed_while_mounts_changed_is_set_up_again() {
    let secret = Secret { env: "TOKEN".to_owned(), value: "hush".to_owned(), ..Secret::default() };
    for (failures, secrets, runs) in [(1, vec![secret], true), (4, Vec::new(), true), (5, Vec::new(), false)]
    {
        let Some(mut stage) = Stage::sandboxed() else { return };
        failing_bubblewrap(&mut stage, failures);
        let (exit, log) = stage.run("again", &Script { text: "echo RAN", secrets, ..Script::default() });
        assert_eq!(log.matches("RAN").count(), usize::from(runs), "{failures}: {log}");
        assert_eq!(log.matches("Can't bind mount").count(), failures as usize, "{log}");
        let code = exit.failure.map(|(code, _)| code);
        assert_eq!(
            (exit.code, code.as_deref()),
            if runs { (0, None) } else { (1, Some("worker.isolation")) }
        );
    }
}
