//! Requests for other limits as a table: what was asked for, and what became of it.
//!
//! Must not decide anything; it shows what it is given.

use berth_types::quotas::{QuotaRequest, QuotaRequestState};
use leptos::prelude::*;

use super::kinds::described;
use crate::ui::*;

/// The requests; `whose` names the organization of each, for operators.
pub fn table(requests: &[QuotaRequest], currency: &str, whose: bool) -> AnyView {
    let rows: Vec<AnyView> = requests.iter().map(|request| row(request, currency, whose)).collect();
    let org = whose.then(|| view! { <th role="columnheader" scope="col">"Organization"</th> });
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">"Requests"</caption>
                <thead role="rowgroup">
                    <tr role="row">
                        <th role="columnheader" scope="col">"Asked for"</th>
                        <th role="columnheader" scope="col" class="table__state">"State"</th>
                        {org}
                        <th role="columnheader" scope="col">"For"</th>
                        <th role="columnheader" scope="col">"By"</th>
                        <th role="columnheader" scope="col">"Answer"</th>
                    </tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

fn row(request: &QuotaRequest, currency: &str, whose: bool) -> AnyView {
    let what = described(&request.limits, currency).join(", ");
    let name = request.org_name.clone();
    let org = whose.then(|| {
        let path = format!("/operator/limits/{}", request.org);
        view! { <td role="cell" data-label="Organization"><a href=path>{name}</a></td> }
    });
    let reason = request.reason.clone();
    let by = request.created_by.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{what}</th>
            <td role="cell" class="table__state" data-label="State"><RequestBadge state=request.state/></td>
            {org}
            <td role="cell" data-label="For">{reason}</td>
            <td role="cell" data-label="By">{by}<span class="table__sub"><When at=request.created_at/></span></td>
            <td role="cell" data-label="Answer">{answer(request)}</td>
        </tr>
    }
    .into_any()
}

fn answer(request: &QuotaRequest) -> AnyView {
    let note = request.note.clone();
    match (request.state, request.decided_at) {
        (QuotaRequestState::Pending, _) => {
            view! { <span class="quiet">"The operator has not answered yet."</span> }.into_any()
        }
        (_, Some(at)) => view! { {note}<span class="table__sub"><When at=at/></span> }.into_any(),
        (_, None) => note.into_any(),
    }
}
