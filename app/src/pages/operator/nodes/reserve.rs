//! The card of the reserve for bursts on nodes for inference.

use berth_types::node_pools::InferencePool;
use berth_types::operators::OperatorRight;
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::org_data::answer_view;
use super::super::super::parts::Call;
use super::super::may;
use crate::api;
use crate::api::Answer;
use crate::ui::*;

const FIELDS: &[&str] = &["/reserve_boards"];

/// The section of the reserve for bursts.
#[component]
pub fn BurstReserve(
    /// The settings of the pool for inference.
    data: Resource<Answer<InferencePool>>,
) -> impl IntoView {
    answer_view(data, |pool| view! { <ReserveForm pool=pool/> }.into_any())
}

#[component]
fn ReserveForm(pool: InferencePool) -> impl IntoView {
    let blocked = !may(OperatorRight::ManageFleet);
    let call = Call::idle();
    let status = RwSignal::new("");
    let boards = RwSignal::new(pool.reserve_boards.to_string());
    let submit = move |()| {
        status.set("");
        // The portal refuses -1 with the permitted numbers.
        let reserve_boards = boards.with_untracked(|boards| boards.trim().parse().unwrap_or(-1));
        let input = InferencePool { reserve_boards };
        call.run(api::nodes::set_inference_pool(&input), move |saved: InferencePool| {
            boards.set(saved.reserve_boards.to_string());
            status.set("Saved.");
        });
    };
    view! {
        <fieldset class="guard" disabled=blocked>
            <CardForm
                title="Reserve for bursts"
                lead="On the nodes for inference, preemptible jobs leave this number of boards of each model free. The nodes that are dedicated to an organization keep the same number for it. When replicas use these boards, the portal stops preemptible jobs until as many boards are free again."
                call=call
                beside_fields=FIELDS
                verb="Save reserve"
                quiet=true
                status=status
                submit=Callback::new(submit)
            >
                <Field
                    label="Boards of each model"
                    name="reserve-boards"
                    kind="number"
                    value=boards
                    hint=Some("0 is no reserve.".to_owned())
                    error=call.field("/reserve_boards")
                />
            </CardForm>
        </fieldset>
    }
}
