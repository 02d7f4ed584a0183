//! What hardly any job needs: no network, a lease of its own, processors and memory.
//!
//! Must not decide what the portal accepts: only what is no number is refused here.

use berth_types::jobs::Network;
use berth_types::problems::FieldError as Wrong;
use leptos::prelude::*;

use super::super::parts::{Call, FieldError};
use super::more::Figure;
use super::part::{Part, optional};

/// What is typed into this part.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AdvancedDraft {
    /// It reaches nothing but its own processes.
    pub alone: bool,
    /// Seconds of lease, as typed; empty for the portal's own choice.
    pub lease: String,
    /// Processors, as typed; empty for whatever is there.
    pub cpus: String,
    /// MiB of memory, as typed; empty for whatever is there.
    pub memory: String,
}

impl AdvancedDraft {
    /// What it reaches.
    pub fn network(&self) -> Network {
        if self.alone { Network::None } else { Network::Outbound }
    }

    /// Seconds of lease.
    pub fn lease_s(&self, errors: &mut Vec<Wrong>) -> Option<u32> {
        let detail = "Give whole seconds, or leave it empty for the portal's own choice.";
        optional(&self.lease, "/lease_s", detail, errors)
    }

    /// Processors that must be free.
    pub fn cpus(&self, errors: &mut Vec<Wrong>) -> Option<u32> {
        optional(&self.cpus, "/cpus", "Give a whole number of processors, or leave it empty.", errors)
    }

    /// MiB of memory that must be free.
    pub fn memory_mib(&self, errors: &mut Vec<Wrong>) -> Option<u64> {
        optional(&self.memory, "/memory_mib", "Give whole MiB, or leave it empty.", errors)
    }
}

/// The fields of this part.
#[derive(Clone, Copy)]
pub struct AdvancedForm {
    alone: RwSignal<bool>,
    lease: RwSignal<String>,
    cpus: RwSignal<String>,
    memory: RwSignal<String>,
}

impl AdvancedForm {
    /// Nothing is typed yet.
    pub fn empty() -> Self {
        let text = || RwSignal::new(String::new());
        Self { alone: RwSignal::new(false), lease: text(), cpus: text(), memory: text() }
    }

    /// What is typed now; whoever calls this in a reactive place follows every field.
    pub fn draft(self) -> AdvancedDraft {
        AdvancedDraft {
            alone: self.alone.get(),
            lease: self.lease.get(),
            cpus: self.cpus.get(),
            memory: self.memory.get(),
        }
    }
}

/// The part of the form.
#[component]
pub fn AdvancedPart(
    /// The fields.
    fields: AdvancedForm,
    /// The submission.
    call: Call,
) -> impl IntoView {
    let network = call.field("/network");
    view! {
        <Part title="Advanced" call=call pointers=&["/network", "/lease_s", "/cpus", "/memory_mib"]>
            <div class="field field--wide">
                <label class="check">
                    <input
                        type="checkbox"
                        name="network"
                        aria-describedby="network-error"
                        aria-invalid=move || network.get().map(|_| "true")
                        prop:checked=move || fields.alone.get()
                        on:change=move |ev| fields.alone.set(event_target_checked(&ev))
                    />
                    <span>
                        "No network"
                        <span class="check__hint">
                            "It reaches nothing but its own processes. What it needs must be among its files, in its image or on its node."
                        </span>
                    </span>
                </label>
                <FieldError id="network-error" error=network/>
            </div>
            <div class="field-row">
                <Figure
                    label="Processors"
                    name="cpus"
                    unit="cores"
                    value=fields.cpus
                    hint="That must be free on each of its nodes. Empty: any number."
                    error=call.field("/cpus")
                />
                <Figure
                    label="Memory"
                    name="memory_mib"
                    unit="MiB"
                    value=fields.memory
                    hint="Of the node, not of the board, that must be free. Empty: any."
                    error=call.field("/memory_mib")
                />
            </div>
            <Figure
                label="Goes on without the portal"
                name="lease"
                unit="s"
                value=fields.lease
                hint="So long it runs on a node that is cut off before it is ended there and counts as lost, 60 s to a day. The longer, the later it is tried elsewhere. Empty: the portal's own choice."
                error=call.field("/lease_s")
            />
        </Part>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_empty_is_not_asked_for() {
        let mut errors = Vec::new();
        let none = AdvancedDraft::default();
        assert_eq!((none.network(), none.lease_s(&mut errors)), (Network::Outbound, None));
        assert_eq!((none.cpus(&mut errors), none.memory_mib(&mut errors)), (None, None));
        let text = str::to_owned;
        let all = AdvancedDraft { alone: true, lease: text("600"), cpus: text(" 8"), memory: text("65536") };
        assert_eq!((all.network(), all.lease_s(&mut errors)), (Network::None, Some(600)));
        assert_eq!((all.cpus(&mut errors), all.memory_mib(&mut errors)), (Some(8), Some(65_536)));
        assert!(errors.is_empty());
        let bad =
            AdvancedDraft { alone: false, lease: text("long"), cpus: text("-1"), memory: text("1 GiB") };
        let _ = (bad.lease_s(&mut errors), bad.cpus(&mut errors), bad.memory_mib(&mut errors));
        let told: Vec<&str> = errors.iter().map(|error| error.pointer.as_str()).collect();
        assert_eq!(told, ["/lease_s", "/cpus", "/memory_mib"]);
    }
}
