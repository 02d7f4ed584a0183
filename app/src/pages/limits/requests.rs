//! Table of requests for other limits and for credit.

use berth_types::money::money_text;
use berth_types::quotas::{QuotaRequest, QuotaRequestState};
use leptos::prelude::*;

use super::kinds::limits_text;
use crate::ui::*;

/// Returns the table; `with_org` adds the column of organizations, for operators.
pub fn table(requests: &[QuotaRequest], currency: &str, with_org: bool) -> AnyView {
    let rows: Vec<AnyView> = requests.iter().map(|request| row(request, currency, with_org)).collect();
    let mut heads = vec![("Request", ""), STATE];
    if with_org {
        heads.push(("Organization", ""));
    }
    heads.extend([("Reason", ""), ("Requested by", ""), ("Answer", "")]);
    table_of("Requests", &heads, rows)
}

/// Returns the requested limits and credit: `Credit: $5.00`.
pub fn requested_text(request: &QuotaRequest, currency: &str) -> String {
    let credit = request.credit_micros.map(|micros| format!("Credit: {}", money_text(micros, currency)));
    let parts: Vec<String> = limits_text(&request.limits, currency).into_iter().chain(credit).collect();
    parts.join(", ")
}

fn row(request: &QuotaRequest, currency: &str, with_org: bool) -> AnyView {
    let requested = requested_text(request, currency);
    let name = request.org_name.clone();
    let org = with_org.then(|| {
        let path = format!("/operator/limits/{}", request.org);
        view! { <td role="cell" data-label="Organization"><a href=path>{name}</a></td> }
    });
    let reason = request.reason.clone();
    let by = request.created_by.clone();
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">{requested}</th>
            <td role="cell" class="table__state" data-label="State"><RequestBadge state=request.state/></td>
            {org}
            <td role="cell" data-label="Reason">{reason}</td>
            <td role="cell" data-label="Requested by">{by}<span class="table__sub"><When at=request.created_at/></span></td>
            <td role="cell" data-label="Answer">{answer(request)}</td>
        </tr>
    }
    .into_any()
}

fn answer(request: &QuotaRequest) -> AnyView {
    let note = request.note.clone();
    match (request.state, request.decided_at) {
        (QuotaRequestState::Pending, _) => view! { <span class="quiet">"No answer yet"</span> }.into_any(),
        (_, Some(at)) => view! { {note}<span class="table__sub"><When at=at/></span> }.into_any(),
        (_, None) => note.into_any(),
    }
}
