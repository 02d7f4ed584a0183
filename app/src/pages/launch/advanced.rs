//! Advanced options of a job: network, RDMA, lease, CPU cores and host memory.
//!
//! Checks only the format of numbers.

use berth_types::jobs::Network;
use berth_types::problems::FieldError as Wrong;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::parts::{Call, FieldError};
use super::section::{FormSection, optional};
use crate::ui::NumberField;

/// The input of this section.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AdvancedDraft {
    /// The network access.
    pub network: Network,
    /// True for access to the RDMA devices of the nodes.
    pub rdma: bool,
    /// Seconds of the lease; empty for the default of the portal.
    pub lease: String,
    /// CPU cores on each node; empty for any number.
    pub cpus: String,
    /// MiB of host memory on each node; empty for any size.
    pub memory: String,
}

impl AdvancedDraft {
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
    network: RwSignal<Network>,
    rdma: RwSignal<bool>,
    lease: RwSignal<String>,
    pub cpus: RwSignal<String>,
    pub memory: RwSignal<String>,
}

impl AdvancedForm {
    /// Returns a section with this input.
    pub fn new(draft: AdvancedDraft) -> Self {
        Self {
            network: RwSignal::new(draft.network),
            rdma: RwSignal::new(draft.rdma),
            lease: RwSignal::new(draft.lease),
            cpus: RwSignal::new(draft.cpus),
            memory: RwSignal::new(draft.memory),
        }
    }

    /// Returns the present input, with a subscription to all fields.
    pub fn draft(self) -> AdvancedDraft {
        AdvancedDraft {
            network: self.network.get(),
            rdma: self.rdma.get(),
            lease: self.lease.get(),
            cpus: self.cpus.get(),
            memory: self.memory.get(),
        }
    }
}

/// Returns the label of a network access.
const fn network_label(network: Network) -> &'static str {
    match network {
        Network::Outbound => "All that the organization allows",
        Network::Internet => "Internet only",
        Network::None => "No network",
        Network::Host => "Host network (by grant)",
    }
}

/// The choice of the network access.
#[component]
fn NetworkSelect(
    /// The chosen access.
    value: RwSignal<Network>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    let option = move |network: Network| {
        view! {
            <option value=network.name() selected={network == value.get_untracked()}>
                {network_label(network)}
            </option>
        }
    };
    view! {
        <div class="field">
            <label class="field__label" for="network">"Network"</label>
            <select
                id="network"
                name="network"
                aria-describedby="network-hint network-error"
                aria-invalid=move || error.get().map(|_| "true")
                prop:value=move || value.get().name()
                on:change=move |ev| value.set(Network::parse(&event_target_value(&ev)).unwrap_or_default())
            >
                {Network::ALL.into_iter().map(option).collect_view()}
            </select>
            <p class="field__hint" id="network-hint">
                "The page Limits has the policy of your organization. Without a network a job reaches only its own processes: its data must be in its files, in its image or on the node."
            </p>
            <FieldError id="network-error" error=error/>
        </div>
    }
}

/// The section of the form.
#[component]
pub fn AdvancedSection(
    /// The signals of the section.
    fields: AdvancedForm,
    /// The submission.
    call: Call,
    /// True if the organization has the grant of RDMA.
    rdma_granted: bool,
) -> impl IntoView {
    let network = call.field("/network");
    let filled = untrack(move || fields.draft()) != AdvancedDraft::default();
    // A copied submission may have RDMA without the grant: the choice must be visible.
    let has_choice = rdma_granted || fields.rdma.get_untracked();
    let rdma = has_choice.then(|| view! { <RdmaChoice fields=fields call=call/> }.into_any());
    view! {
        <FormSection
            title="Advanced"
            call=call
            pointers=&["/network", "/rdma", "/lease_s", "/cpus", "/memory_mib"]
            filled=filled
        >
            <NetworkSelect value=fields.network error=network/>
            {rdma}
            <div class="field-row">
                <NumberField
                    label="CPU cores"
                    id="cpus"
                    unit="cores"
                    value=fields.cpus
                    hint="Free cores required on each node. Empty: any number."
                    error=call.field("/cpus")
                />
                <NumberField
                    label="Host memory"
                    id="memory_mib"
                    unit="MiB"
                    value=fields.memory
                    hint="Free memory required on each node, not GPU memory. Empty: any size."
                    error=call.field("/memory_mib")
                />
            </div>
            <NumberField
                label="Offline tolerance"
                id="lease"
                unit="s"
                value=fields.lease
                hint="Keep running without contact to the portal for this time, 60 to 86,400 s; then the job is stopped and counts as lost. A longer time delays a retry on another node. Empty: default of the portal."
                error=call.field("/lease_s")
            />
        </FormSection>
    }
}

/// The choice of RDMA.
#[component]
fn RdmaChoice(
    /// The signals of the section.
    fields: AdvancedForm,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let error = call.field("/rdma");
    view! {
        <div class="field field--wide">
            <label class="check">
                <input
                    type="checkbox"
                    name="rdma"
                    aria-describedby="rdma-error"
                    aria-invalid=move || error.get().map(|_| "true")
                    prop:checked=move || fields.rdma.get()
                    on:change=move |ev| fields.rdma.set(event_target_checked(&ev))
                />
                <span>
                    "RDMA"
                    <span class="check__hint">
                        "The job uses InfiniBand or RoCE adapters and needs all boards of each node. On several nodes and with RoCE it shares the network of its nodes."
                    </span>
                </span>
            </label>
            <FieldError id="rdma-error" error=error/>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_no_requirements() {
        let mut errors = Vec::new();
        let none = AdvancedDraft::default();
        assert_eq!((none.network, none.lease_s(&mut errors)), (Network::Outbound, None));
        assert_eq!((none.cpus(&mut errors), none.memory_mib(&mut errors)), (None, None));
        let text = str::to_owned;
        let all = AdvancedDraft {
            network: Network::None,
            rdma: false,
            lease: text("600"),
            cpus: text(" 8"),
            memory: text("65536"),
        };
        assert_eq!((all.network, all.lease_s(&mut errors)), (Network::None, Some(600)));
        assert_eq!((all.cpus(&mut errors), all.memory_mib(&mut errors)), (Some(8), Some(65_536)));
        assert!(errors.is_empty());
        let bad = AdvancedDraft {
            network: Network::Outbound,
            rdma: true,
            lease: text("long"),
            cpus: text("-1"),
            memory: text("1 GiB"),
        };
        let _ = (bad.lease_s(&mut errors), bad.cpus(&mut errors), bad.memory_mib(&mut errors));
        let pointers: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(pointers, ["/lease_s", "/cpus", "/memory_mib"]);
    }
}
