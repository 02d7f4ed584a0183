//! What a job is told before it must make room, what it saves of its state, and which of its files are kept.
//!
//! Must not decide what the portal accepts: only what is no number is refused here.

use berth_types::jobs::{Checkpoint, CheckpointSignal};
use berth_types::problems::FieldError;
use leptos::prelude::*;

use super::super::parts::Call;
use super::super::words::signal_text;
use super::form::TextBlock;
use super::more::Figure;
use super::part::{Part, optional};
use crate::ui::Field;

/// The signals that a notice can be given by, in the order of the form.
pub const SIGNALS: [CheckpointSignal; 5] = [
    CheckpointSignal::Term,
    CheckpointSignal::Int,
    CheckpointSignal::Hup,
    CheckpointSignal::Usr1,
    CheckpointSignal::Usr2,
];

/// The signal that an option stands for; SIGTERM for anything unknown.
pub fn parse_signal(name: &str) -> CheckpointSignal {
    SIGNALS.into_iter().find(|signal| signal_text(*signal) == name).unwrap_or_default()
}

/// What is typed into this part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeepingDraft {
    /// Seconds of notice, as typed; empty for the usual ones.
    pub grace: String,
    /// The signal of that notice.
    pub signal: CheckpointSignal,
    /// A directory inside the job's own; empty for none.
    pub dir: String,
    /// Seconds from one checkpoint to the next, as typed; empty for none while it runs.
    pub every: String,
    /// How many of the newest are kept, as typed; empty for the usual number.
    pub keep: String,
    /// Patterns of files, one on each line.
    pub artifacts: String,
}

impl KeepingDraft {
    /// Notice and directory, where they are not what every job gets.
    pub fn checkpoint(&self, errors: &mut Vec<FieldError>) -> Option<Checkpoint> {
        let usual = Checkpoint::default();
        let dir = Some(self.dir.trim()).filter(|dir| !dir.is_empty()).map(str::to_owned);
        let grace = "Give whole seconds, or leave it empty for the usual 10.";
        let grace_s = optional(&self.grace, "/checkpoint/grace_s", grace, errors).unwrap_or(usual.grace_s);
        // Without a directory these two are not offered, so they are not meant.
        let (every_s, keep) = if dir.is_some() {
            let every = "Give whole seconds, or leave it empty to keep it only when an attempt ends.";
            let keep = "Give a whole number, or leave it empty for the usual 2.";
            (
                optional(&self.every, "/checkpoint/every_s", every, errors),
                optional(&self.keep, "/checkpoint/keep", keep, errors),
            )
        } else {
            (None, None)
        };
        let given = Checkpoint { signal: self.signal, grace_s, dir, every_s, keep };
        (given != usual).then_some(given)
    }

    /// The patterns; lines without anything in them do not count.
    pub fn artifacts(&self) -> Vec<String> {
        self.artifacts.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

/// The fields of this part.
#[derive(Clone, Copy)]
pub struct KeepingForm {
    grace: RwSignal<String>,
    signal: RwSignal<CheckpointSignal>,
    dir: RwSignal<String>,
    every: RwSignal<String>,
    keep: RwSignal<String>,
    artifacts: RwSignal<String>,
}

impl KeepingForm {
    /// Nothing is typed yet.
    pub fn empty() -> Self {
        let text = || RwSignal::new(String::new());
        Self {
            grace: text(),
            signal: RwSignal::new(CheckpointSignal::default()),
            dir: text(),
            every: text(),
            keep: text(),
            artifacts: text(),
        }
    }

    /// What is typed now; whoever calls this in a reactive place follows every field.
    pub fn draft(self) -> KeepingDraft {
        KeepingDraft {
            grace: self.grace.get(),
            signal: self.signal.get(),
            dir: self.dir.get(),
            every: self.every.get(),
            keep: self.keep.get(),
            artifacts: self.artifacts.get(),
        }
    }
}

/// What is wrong with the patterns: the portal counts them from 0, people from 1.
fn wrong_patterns(call: Call) -> Signal<Option<String>> {
    Signal::derive(move || {
        let problem = call.problem.get()?;
        let details: Vec<String> = problem
            .errors
            .iter()
            .filter_map(|error| {
                let rest = error.pointer.strip_prefix("/artifacts")?;
                Some(match rest.strip_prefix('/').and_then(|at| at.parse::<u32>().ok()) {
                    Some(at) => format!("Pattern {}: {}", at.saturating_add(1), error.detail),
                    None => error.detail.clone(),
                })
            })
            .collect();
        (!details.is_empty()).then(|| details.join(" "))
    })
}

/// The part of the form.
#[component]
pub fn KeepingPart(
    /// The fields.
    fields: KeepingForm,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let no_dir = Signal::derive(move || fields.dir.with(|dir| dir.trim().is_empty()));
    let option = move |signal: CheckpointSignal| {
        let name = signal_text(signal);
        view! { <option value=name selected={signal == CheckpointSignal::default()}>{name}</option> }
    };
    view! {
        <Part title="Checkpoints and results" call=call pointers=&["/checkpoint", "/artifacts"]>
            <Field
                label="Checkpoint directory"
                name="checkpoint_dir"
                kind="text"
                value=fields.dir
                hint=Some("Inside the job's own, such as ckpt; its name is in $BERTH_CHECKPOINT_DIR. What it saves there is kept, and its next attempt starts with it, on whatever node. Empty: nothing is.".to_owned())
                error=call.field("/checkpoint/dir")
                autocomplete=Some("off")
            />
            <div class="field-row">
                <Figure
                    label="Kept every"
                    name="checkpoint_every"
                    unit="s"
                    value=fields.every
                    hint="While it runs. Empty: only when an attempt ends, so what a node that fails had is lost."
                    error=call.field("/checkpoint/every_s")
                    disabled=no_dir
                />
                <Figure
                    label="Newest kept"
                    name="checkpoint_keep"
                    unit="of them"
                    value=fields.keep
                    hint="Empty: 2."
                    error=call.field("/checkpoint/keep")
                    disabled=no_dir
                />
            </div>
            <div class="field-row">
                <Figure
                    label="Notice before it makes room"
                    name="grace"
                    unit="s"
                    value=fields.grace
                    hint="For a more important job, or when its node is emptied. Empty: the usual 10 s. Then it is killed."
                    error=call.field("/checkpoint/grace_s")
                />
                <div class="field">
                    <label class="field__label" for="signal">"Signal"</label>
                    <select
                        id="signal"
                        name="signal"
                        aria-describedby="signal-hint"
                        on:change=move |ev| fields.signal.set(parse_signal(&event_target_value(&ev)))
                    >
                        {SIGNALS.into_iter().map(option).collect_view()}
                    </select>
                    <p class="field__hint" id="signal-hint">
                        "Sent at the start of the notice, so that it can save its state."
                    </p>
                </div>
            </div>
            <TextBlock
                label="Results"
                name="artifacts"
                value=fields.artifacts
                rows=2
                hint="Patterns of files that are kept when an attempt ends, one on each line, such as out/** or *.log. They can be downloaded from the job's page."
                error=wrong_patterns(call)
            />
        </Part>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(draft: &KeepingDraft) -> Result<Option<Checkpoint>, Vec<String>> {
        let mut errors = Vec::new();
        let checkpoint = draft.checkpoint(&mut errors);
        if errors.is_empty() {
            Ok(checkpoint)
        } else {
            Err(errors.into_iter().map(|error| error.pointer).collect())
        }
    }

    #[test]
    fn a_notice_is_asked_for_only_when_it_is_not_the_usual_one() {
        assert_eq!(read(&KeepingDraft::default()), Ok(None));
        let patient = KeepingDraft { grace: " 60 ".to_owned(), ..KeepingDraft::default() };
        let wanted = Checkpoint { grace_s: 60, ..Checkpoint::default() };
        assert_eq!(read(&patient), Ok(Some(wanted)));
        let told = KeepingDraft { signal: CheckpointSignal::Usr1, ..KeepingDraft::default() };
        let wanted = Checkpoint { signal: CheckpointSignal::Usr1, grace_s: 10, ..Checkpoint::default() };
        assert_eq!(read(&told), Ok(Some(wanted)));
    }

    #[test]
    fn how_often_is_meant_only_with_a_directory() {
        let typed = |dir: &str, every: &str, keep: &str| KeepingDraft {
            dir: dir.to_owned(),
            every: every.to_owned(),
            keep: keep.to_owned(),
            ..KeepingDraft::default()
        };
        assert_eq!(read(&typed(" ", "60", "few")), Ok(None));
        let dir = Some("ckpt".to_owned());
        let wanted = Checkpoint { dir, every_s: Some(60), keep: Some(3), ..Checkpoint::default() };
        assert_eq!(read(&typed(" ckpt", "60", "3")), Ok(Some(wanted)));
        let bad: Result<Option<Checkpoint>, Vec<String>> =
            Err(vec!["/checkpoint/every_s".to_owned(), "/checkpoint/keep".to_owned()]);
        assert_eq!(read(&typed("ckpt", "often", "few")), bad);
    }

    #[test]
    fn a_pattern_is_a_line() {
        let draft = KeepingDraft { artifacts: "out/**\n\n *.log \r\n".to_owned(), ..KeepingDraft::default() };
        assert_eq!(draft.artifacts(), ["out/**", "*.log"]);
    }

    #[test]
    fn signals_are_read_back() {
        for signal in SIGNALS {
            assert_eq!(parse_signal(signal_text(signal)), signal);
        }
        assert_eq!(parse_signal("9"), CheckpointSignal::Term);
    }
}
