//! Advanced options of a job: network, lease, CPU cores and host memory.
//!
//! Checks only the format of numbers.

use berth_types::jobs::Network;
use berth_types::problems::FieldError as Wrong;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::parts::{Call, FieldError};
use super::inputs::UnitField;
use super::section::{FormSection, optional};

/// The input of this section.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AdvancedDraft {
    /// True for a job without a network.
    pub no_network: bool,
    /// Seconds of the lease; empty for the default of the portal.
    pub lease: String,
    /// CPU cores on each node; empty for any number.
    pub cpus: String,
    /// MiB of host memory on each node; empty for any size.
    pub memory: String,
}

impl AdvancedDraft {
    /// Returns the network.
    pub fn network(&self) -> Network {
        if self.no_network { Network::None } else { Network::Outbound }
    }

    /// Parses the seconds of the lease.
    pub fn lease_s(&self, errors: &mut Vec<Wrong>) -> Option<u32> {
        let detail = "Enter whole seconds, or leave the field empty for the default of the portal.";
        optional(&self.lease, "/lease_s", detail, errors)
    }

    /// Parses the CPU cores.
    pub fn cpus(&self, errors: &mut Vec<Wrong>) -> Option<u32> {
        optional(&self.cpus, "/cpus", "Enter a whole number of CPU cores, or leave the field empty.", errors)
    }

    /// Parses the MiB of host memory.
    pub fn memory_mib(&self, errors: &mut Vec<Wrong>) -> Option<u64> {
        optional(&self.memory, "/memory_mib", "Enter whole MiB, or leave the field empty.", errors)
    }
}

/// The signals of this section.
#[derive(Clone, Copy)]
pub struct AdvancedForm {
    no_network: RwSignal<bool>,
    lease: RwSignal<String>,
    cpus: RwSignal<String>,
    memory: RwSignal<String>,
}

impl AdvancedForm {
    /// Returns a section with this input.
    pub fn new(draft: AdvancedDraft) -> Self {
        Self {
            no_network: RwSignal::new(draft.no_network),
            lease: RwSignal::new(draft.lease),
            cpus: RwSignal::new(draft.cpus),
            memory: RwSignal::new(draft.memory),
        }
    }

    /// Returns the present input, with a subscription to all fields.
    pub fn draft(self) -> AdvancedDraft {
        AdvancedDraft {
            no_network: self.no_network.get(),
            lease: self.lease.get(),
            cpus: self.cpus.get(),
            memory: self.memory.get(),
        }
    }
}

/// The section of the form.
#[component]
pub fn AdvancedSection(
    /// The signals of the section.
    fields: AdvancedForm,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let network = call.field("/network");
    let filled = untrack(move || fields.draft()) != AdvancedDraft::default();
    view! {
        <FormSection
            title="Advanced"
            call=call
            pointers=&["/network", "/lease_s", "/cpus", "/memory_mib"]
            filled=filled
        >
            <div class="field field--wide">
                <label class="check">
                    <input
                        type="checkbox"
                        name="network"
                        aria-describedby="network-error"
                        aria-invalid=move || network.get().map(|_| "true")
                        prop:checked=move || fields.no_network.get()
                        on:change=move |ev| fields.no_network.set(event_target_checked(&ev))
                    />
                    <span>
                        "No network"
                        <span class="check__hint">
                            "The job reaches only its own processes. Its data must be in its files, in its image or on the node."
                        </span>
                    </span>
                </label>
                <FieldError id="network-error" error=network/>
            </div>
            <div class="field-row">
                <UnitField
                    label="CPU cores"
                    name="cpus"
                    unit="cores"
                    value=fields.cpus
                    hint="Free cores required on each node. Empty: any number."
                    error=call.field("/cpus")
                />
                <UnitField
                    label="Host memory"
                    name="memory_mib"
                    unit="MiB"
                    value=fields.memory
                    hint="Free memory required on each node, not GPU memory. Empty: any size."
                    error=call.field("/memory_mib")
                />
            </div>
            <UnitField
                label="Offline tolerance"
                name="lease"
                unit="s"
                value=fields.lease
                hint="Keep running without contact to the portal for this time, 60 to 86,400 s; then the job is stopped and counts as lost. A longer time delays a retry on another node. Empty: default of the portal."
                error=call.field("/lease_s")
            />
        </FormSection>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_no_requirements() {
        let mut errors = Vec::new();
        let none = AdvancedDraft::default();
        assert_eq!((none.network(), none.lease_s(&mut errors)), (Network::Outbound, None));
        assert_eq!((none.cpus(&mut errors), none.memory_mib(&mut errors)), (None, None));
        let text = str::to_owned;
        let all =
            AdvancedDraft { no_network: true, lease: text("600"), cpus: text(" 8"), memory: text("65536") };
        assert_eq!((all.network(), all.lease_s(&mut errors)), (Network::None, Some(600)));
        assert_eq!((all.cpus(&mut errors), all.memory_mib(&mut errors)), (Some(8), Some(65_536)));
        assert!(errors.is_empty());
        let bad =
            AdvancedDraft { no_network: false, lease: text("long"), cpus: text("-1"), memory: text("1 GiB") };
        let _ = (bad.lease_s(&mut errors), bad.cpus(&mut errors), bad.memory_mib(&mut errors));
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/lease_s", "/cpus", "/memory_mib"]);
    }
}
