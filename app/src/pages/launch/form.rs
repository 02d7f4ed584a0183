//! Signals of the launch form. Without requests to the portal.

use berth_types::ids::ReservationId;
use berth_types::jobs::{Priority, SubmissionChange, Topology};
use leptos::prelude::*;

use super::advanced::AdvancedForm;
use super::again::limit_text;
use super::checkpoint::CheckpointForm;
use super::draft::Draft;
use super::rows::{DependencySignals, PairSignals, PortSignals, Rows, SecretSignals, VolumeSignals};
use super::units::LimitUnit;

/// All signals of the form.
#[derive(Clone, Copy)]
pub struct Form {
    /// The name of the job.
    pub name: RwSignal<String>,
    /// The slug of the chosen offering.
    pub offering: RwSignal<String>,
    /// The number of devices on each node.
    pub count: RwSignal<String>,
    /// True for a script, false for a command line.
    pub as_script: RwSignal<bool>,
    /// The command line.
    pub command: RwSignal<String>,
    /// The script.
    pub script: RwSignal<String>,
    /// The image.
    pub image: RwSignal<String>,
    /// The name of the registry secret.
    pub registry: RwSignal<String>,
    /// Files.
    pub files: Rows<PairSignals>,
    /// Environment variables.
    pub env: Rows<PairSignals>,
    /// The time limit.
    pub limit: RwSignal<String>,
    /// The number of nodes.
    pub nodes: RwSignal<String>,
    /// The unit of the time limit.
    pub unit: RwSignal<LimitUnit>,
    /// The priority.
    pub priority: RwSignal<Priority>,
    /// True for a preemptible job.
    pub preemptible: RwSignal<bool>,
    /// Jobs that must end first.
    pub after: Rows<DependencySignals>,
    /// Percent of a board; empty for the whole board.
    pub share: RwSignal<String>,
    /// The required topology of the devices.
    pub topology: RwSignal<Topology>,
    /// The number of retries.
    pub retries: RwSignal<String>,
    /// Checkpoints, grace period and artifacts.
    pub checkpoint: CheckpointForm,
    /// Advanced options.
    pub advanced: AdvancedForm,
    /// The reservation of the job.
    pub reservation: RwSignal<Option<ReservationId>>,
    /// Secrets.
    pub secrets: Rows<SecretSignals>,
    /// Volumes.
    pub volumes: Rows<VolumeSignals>,
    /// Labels.
    pub labels: Rows<PairSignals>,
    /// Port numbers.
    pub ports: Rows<PortSignals>,
    /// True to pass the full path to the program behind a port.
    pub ports_keep_path: RwSignal<bool>,
    /// True to stop the job when idle.
    pub idle: RwSignal<bool>,
    /// Percent of utilization below which the devices are idle.
    pub idle_percent: RwSignal<String>,
    /// Minutes of idle devices before the stop.
    pub idle_minutes: RwSignal<String>,
}

impl Form {
    /// Returns a form with this input.
    pub fn new(draft: Draft) -> Self {
        Self {
            name: RwSignal::new(draft.name),
            offering: RwSignal::new(draft.offering),
            count: RwSignal::new(draft.count),
            nodes: RwSignal::new(draft.nodes),
            as_script: RwSignal::new(draft.as_script),
            command: RwSignal::new(draft.command),
            script: RwSignal::new(draft.script),
            image: RwSignal::new(draft.image),
            registry: RwSignal::new(draft.registry),
            files: Rows::new(draft.files),
            env: Rows::new(draft.env),
            limit: RwSignal::new(draft.limit),
            unit: RwSignal::new(draft.unit),
            priority: RwSignal::new(draft.priority),
            preemptible: RwSignal::new(draft.preemptible),
            after: Rows::new(draft.after),
            share: RwSignal::new(draft.share),
            topology: RwSignal::new(draft.topology),
            retries: RwSignal::new(draft.retries),
            checkpoint: CheckpointForm::new(draft.checkpoint),
            advanced: AdvancedForm::new(draft.advanced),
            reservation: RwSignal::new(draft.reservation),
            secrets: Rows::new(draft.secrets),
            volumes: Rows::new(draft.volumes),
            labels: Rows::new(draft.labels),
            ports: Rows::new(draft.ports),
            ports_keep_path: RwSignal::new(draft.ports_keep_path),
            idle: RwSignal::new(draft.idle),
            idle_percent: RwSignal::new(draft.idle_percent),
            idle_minutes: RwSignal::new(draft.idle_minutes),
        }
    }

    /// Returns true if the section of placement and retries has input, with a subscription.
    pub fn has_placement(self) -> bool {
        let blank = Draft::new(String::new());
        self.idle.get()
            || self.topology.get() != blank.topology
            || self.retries.get() != blank.retries
            || self.share.get() != blank.share
    }

    /// Returns true if the section of secrets, volumes, ports and labels has rows, with a subscription.
    pub fn has_extras(self) -> bool {
        self.ports_keep_path.get()
            || [self.secrets.count(), self.volumes.count(), self.ports.count(), self.labels.count()]
                .iter()
                .any(|count| *count > 0)
    }

    /// Sets the fields of a suggested change.
    pub fn apply(self, change: &SubmissionChange) {
        if let Some(offering) = &change.offering {
            self.offering.set(offering.clone());
        }
        if let Some(count) = change.count {
            self.count.set(count.to_string());
        }
        if let Some(nodes) = change.nodes {
            self.nodes.set(nodes.to_string());
        }
        if let Some(seconds) = change.max_duration_s {
            let (limit, unit) = limit_text(seconds);
            self.limit.set(limit);
            self.unit.set(unit);
        }
        if let Some(topology) = change.topology {
            self.topology.set(topology);
        }
        if let Some(preemptible) = change.preemptible {
            self.preemptible.set(preemptible);
        }
    }

    /// Returns the present input, with a subscription to all fields.
    pub fn draft(self) -> Draft {
        Draft {
            name: self.name.get(),
            offering: self.offering.get(),
            count: self.count.get(),
            nodes: self.nodes.get(),
            as_script: self.as_script.get(),
            command: self.command.get(),
            script: self.script.get(),
            image: self.image.get(),
            registry: self.registry.get(),
            files: self.files.inputs(),
            env: self.env.inputs(),
            limit: self.limit.get(),
            unit: self.unit.get(),
            priority: self.priority.get(),
            preemptible: self.preemptible.get(),
            after: self.after.inputs(),
            share: self.share.get(),
            topology: self.topology.get(),
            retries: self.retries.get(),
            checkpoint: self.checkpoint.draft(),
            advanced: self.advanced.draft(),
            reservation: self.reservation.get(),
            secrets: self.secrets.inputs(),
            volumes: self.volumes.inputs(),
            labels: self.labels.inputs(),
            ports: self.ports.inputs(),
            ports_keep_path: self.ports_keep_path.get(),
            idle: self.idle.get(),
            idle_percent: self.idle_percent.get(),
            idle_minutes: self.idle_minutes.get(),
        }
    }
}
