//! Checkpoints, preemption grace period and artifacts of a job.
//!
//! Checks only the format of numbers.

use berth_types::jobs::{Checkpoint, CheckpointSignal};
use berth_types::problems::FieldError;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::parts::Call;
use super::super::text::signal_text;
use super::section::{FormSection, optional};
use crate::ui::{Field, NumberField, SelectField, TextArea};

/// The signals at the start of the grace period, in the order of the form.
pub const SIGNALS: [CheckpointSignal; 5] = [
    CheckpointSignal::Term,
    CheckpointSignal::Int,
    CheckpointSignal::Hup,
    CheckpointSignal::Usr1,
    CheckpointSignal::Usr2,
];

/// Parses the name of a signal; SIGTERM for other text.
pub fn parse_signal(name: &str) -> CheckpointSignal {
    SIGNALS.into_iter().find(|signal| signal_text(*signal) == name).unwrap_or_default()
}

/// The input of this section.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CheckpointDraft {
    /// Seconds of the grace period; empty for the default.
    pub grace: String,
    /// The signal at the start of the grace period.
    pub signal: CheckpointSignal,
    /// The checkpoint directory below the job's directory; empty for none.
    pub dir: String,
    /// Seconds between two checkpoints; empty for none while the job runs.
    pub every: String,
    /// The number of kept checkpoints; empty for the default.
    pub keep: String,
    /// Glob patterns of artifacts, one per line.
    pub artifacts: String,
}

impl CheckpointDraft {
    /// Parses the checkpoint; nothing for the defaults.
    pub fn parse(&self, errors: &mut Vec<FieldError>) -> Option<Checkpoint> {
        let default = Checkpoint::default();
        let dir = Some(self.dir.trim()).filter(|dir| !dir.is_empty()).map(str::to_owned);
        let grace = "Enter whole seconds, or leave the field empty for the default of 10 s.";
        let grace_s = optional(&self.grace, "/checkpoint/grace_s", grace, errors).unwrap_or(default.grace_s);
        // Without a directory both fields are disabled.
        let (every_s, keep) = if dir.is_some() {
            let every = "Enter whole seconds, or leave the field empty for a checkpoint only at the end of an attempt.";
            let keep = "Enter a whole number, or leave the field empty for the default of 2.";
            (
                optional(&self.every, "/checkpoint/every_s", every, errors),
                optional(&self.keep, "/checkpoint/keep", keep, errors),
            )
        } else {
            (None, None)
        };
        let checkpoint = Checkpoint { signal: self.signal, grace_s, dir, every_s, keep };
        (checkpoint != default).then_some(checkpoint)
    }

    /// Lists the patterns of artifacts, without empty lines.
    pub fn artifacts(&self) -> Vec<String> {
        self.artifacts.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

/// The signals of this section.
#[derive(Clone, Copy)]
pub struct CheckpointForm {
    grace: RwSignal<String>,
    signal: RwSignal<CheckpointSignal>,
    dir: RwSignal<String>,
    every: RwSignal<String>,
    keep: RwSignal<String>,
    artifacts: RwSignal<String>,
}

impl CheckpointForm {
    /// Returns a section with this input.
    pub fn new(draft: CheckpointDraft) -> Self {
        Self {
            grace: RwSignal::new(draft.grace),
            signal: RwSignal::new(draft.signal),
            dir: RwSignal::new(draft.dir),
            every: RwSignal::new(draft.every),
            keep: RwSignal::new(draft.keep),
            artifacts: RwSignal::new(draft.artifacts),
        }
    }

    /// Returns the present input, with a subscription to all fields.
    pub fn draft(self) -> CheckpointDraft {
        CheckpointDraft {
            grace: self.grace.get(),
            signal: self.signal.get(),
            dir: self.dir.get(),
            every: self.every.get(),
            keep: self.keep.get(),
            artifacts: self.artifacts.get(),
        }
    }
}

/// Joins the errors of patterns, numbered from 1.
fn pattern_errors(call: Call) -> Signal<Option<String>> {
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

/// The section of the form.
#[component]
pub fn CheckpointSection(
    /// The signals of the section.
    fields: CheckpointForm,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let filled = untrack(move || fields.draft()) != CheckpointDraft::default();
    let no_dir = Signal::derive(move || fields.dir.with(|dir| dir.trim().is_empty()));
    let option = move |signal: CheckpointSignal| {
        let name = signal_text(signal);
        view! { <option value=name selected={signal == fields.signal.get_untracked()}>{name}</option> }
    };
    view! {
        <FormSection
            title="Checkpoints and artifacts"
            call=call
            pointers=&["/checkpoint", "/artifacts"]
            filled=filled
        >
            <Field
                label="Checkpoint directory"
                name="checkpoint_dir"
                kind="text"
                value=fields.dir
                hint=Some("Path below the job directory, such as ckpt, also in $BERTH_CHECKPOINT_DIR. Its files are saved and restored for the next attempt on any node. Empty: no checkpoints.".to_owned())
                error=call.field("/checkpoint/dir")
            />
            <div class="field-row">
                <NumberField
                    label="Checkpoint interval"
                    id="checkpoint_every"
                    unit="s"
                    value=fields.every
                    hint="Empty: a checkpoint only at the end of an attempt; the failure of a node loses the work since its start."
                    error=call.field("/checkpoint/every_s")
                    disabled=no_dir
                />
                <NumberField
                    label="Checkpoints kept"
                    id="checkpoint_keep"
                    unit="newest"
                    value=fields.keep
                    hint="2 to 10. Empty: 2."
                    error=call.field("/checkpoint/keep")
                    disabled=no_dir
                />
            </div>
            <div class="field-row">
                <NumberField
                    label="Preemption grace period"
                    id="grace"
                    unit="s"
                    value=fields.grace
                    hint="Time from the signal to SIGKILL at a preemption or a drain, 1 to 600 s. Empty: 10 s."
                    error=call.field("/checkpoint/grace_s")
                />
                <SelectField
                    label="Signal"
                    id="signal"
                    hint="Sent at the start of the grace period, so that the job can save its state."
                    choose=Callback::new(move |name: String| fields.signal.set(parse_signal(&name)))
                >
                    {SIGNALS.into_iter().map(option).collect_view()}
                </SelectField>
            </div>
            <TextArea
                label="Artifacts"
                id="artifacts"
                value=fields.artifacts
                rows=2
                mono=true
                hint="Glob patterns of files to save at the end of an attempt, one per line, such as out/** or *.log. Download the files from the job page."
                error=pattern_errors(call)
            />
        </FormSection>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(draft: &CheckpointDraft) -> Result<Option<Checkpoint>, Vec<String>> {
        let mut errors = Vec::new();
        let checkpoint = draft.parse(&mut errors);
        if errors.is_empty() {
            Ok(checkpoint)
        } else {
            Err(errors.into_iter().map(|error| error.pointer).collect())
        }
    }

    #[test]
    fn defaults_are_left_out() {
        assert_eq!(read(&CheckpointDraft::default()), Ok(None));
        let patient = CheckpointDraft { grace: " 60 ".to_owned(), ..CheckpointDraft::default() };
        let wanted = Checkpoint { grace_s: 60, ..Checkpoint::default() };
        assert_eq!(read(&patient), Ok(Some(wanted)));
        let signalled = CheckpointDraft { signal: CheckpointSignal::Usr1, ..CheckpointDraft::default() };
        let wanted = Checkpoint { signal: CheckpointSignal::Usr1, grace_s: 10, ..Checkpoint::default() };
        assert_eq!(read(&signalled), Ok(Some(wanted)));
    }

    #[test]
    fn the_interval_counts_only_with_a_directory() {
        let typed = |dir: &str, every: &str, keep: &str| CheckpointDraft {
            dir: dir.to_owned(),
            every: every.to_owned(),
            keep: keep.to_owned(),
            ..CheckpointDraft::default()
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
        let draft =
            CheckpointDraft { artifacts: "out/**\n\n *.log \r\n".to_owned(), ..CheckpointDraft::default() };
        assert_eq!(draft.artifacts(), ["out/**", "*.log"]);
    }

    #[test]
    fn signals_survive_text_and_parsing() {
        for signal in SIGNALS {
            assert_eq!(parse_signal(signal_text(signal)), signal);
        }
        assert_eq!(parse_signal("9"), CheckpointSignal::Term);
    }
}
