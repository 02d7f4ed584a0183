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
            <td role="cell" data-label="Answer">{answer(request, currency)}</td>
        </tr>
    }
    .into_any()
}

/// Returns the granted values if they differ from the requested ones, and the note: `Granted $1.50. Half for now.`
fn answer_text(request: &QuotaRequest, currency: &str) -> String {
    let credit = request.granted_micros.filter(|_| request.granted_micros != request.credit_micros);
    let limits = request.granted_limits.as_ref().filter(|limits| **limits != request.limits);
    let limits = limits.map(|limits| limits_text(limits, currency).join(", "));
    let limits = limits.map(|text| if text.is_empty() { "no limits".to_owned() } else { text });
    let values: Vec<String> = credit.map(|m| money_text(m, currency)).into_iter().chain(limits).collect();
    if values.is_empty() {
        return request.note.clone();
    }
    format!("Granted {}. {}", values.join(", "), request.note).trim_end().to_owned()
}

fn answer(request: &QuotaRequest, currency: &str) -> AnyView {
    let note = answer_text(request, currency);
    match (request.state, request.decided_at) {
        (QuotaRequestState::Pending, _) => view! { <span class="quiet">"No answer yet"</span> }.into_any(),
        (_, Some(at)) => view! { {note}<span class="table__sub"><When at=at/></span> }.into_any(),
        (_, None) => note.into_any(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_the_granted_values_that_differ() {
        let text = |limits: &str, micros: &str| {
            let id = "00000000000000000000000000";
            let request = format!(
                r#"{{"id":"qreq_{id}","org":"org_{id}","org_name":"Lab","limits":{{"running_jobs":50}},
                "credit_micros":3000000,"reason":"x","state":"granted","created_at":"2026-11-28T12:00:00Z",
                "created_by":"Ada","granted_limits":{limits},"granted_micros":{micros},"note":"Half."}}"#
            );
            answer_text(&serde_json::from_str(&request).unwrap(), "USD")
        };
        assert_eq!([text("null", "null"), text(r#"{"running_jobs":50}"#, "3000000")], ["Half.", "Half."]);
        assert_eq!(text(r#"{"running_jobs":7}"#, "1500000"), "Granted $1.50, Running jobs: 7. Half.");
        assert_eq!(text("{}", "3000000"), "Granted no limits. Half.");
    }
}
