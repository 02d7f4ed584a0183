//! Form of the grant of RDMA to an organization.

use berth_types::ids::OrgId;
use berth_types::rdma::RdmaGrant;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::super::parts::{Call, CallProblem};
use super::SaveLimits;
use crate::api;

/// Returns the effect of a saved grant.
const fn saved_text(granted: bool) -> &'static str {
    if granted {
        "Saved. Jobs of the organization may use RDMA."
    } else {
        "Saved. Running jobs continue; later attempts with RDMA fail."
    }
}

/// The form of the grant.
#[component]
pub fn RdmaGrantForm(
    /// The organization.
    org: OrgId,
    /// The present grant.
    grant: RdmaGrant,
) -> impl IntoView {
    let call = Call::idle();
    let granted = RwSignal::new(grant.granted);
    let status = RwSignal::new("");
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set("");
        let body = RdmaGrant { granted: granted.get_untracked() };
        call.run(api::nodes::set_rdma_grant(org, &body), move |saved: RdmaGrant| {
            granted.set(saved.granted);
            status.set(saved_text(saved.granted));
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"RDMA"</h2>
            <p class="prose">
                "Jobs on all boards of a node can then use its InfiniBand and RoCE adapters. On several nodes and with RoCE they share the network of the nodes and reach all that the nodes reach. Grant it only to organizations that you trust with your network."
            </p>
            <CallProblem call=call beside_fields=&[]/>
            <label class="check">
                <input
                    type="checkbox"
                    name="rdma"
                    checked=grant.granted
                    prop:checked=move || granted.get()
                    on:change=move |event| granted.set(event_target_checked(&event))
                />
                "Jobs may use RDMA"
            </label>
            <SaveLimits call=call status=status label="Save grant"/>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_grant_names_its_effect() {
        assert!(saved_text(true).contains("may use RDMA"));
        assert!(saved_text(false).contains("Running jobs continue"));
    }
}
