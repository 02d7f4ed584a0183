//! The domains of single sign-on with their records in DNS, for owners.

use berth_types::ids::OrgId;
use berth_types::sso::{CheckDomain, SsoDomain, SsoSettings};
use leptos::prelude::*;

use crate::api;
use crate::pages::parts::{Call, CallProblem, ready};
use crate::ui::*;

/// The domains, each with its state, its record and a button that checks the record.
#[component]
pub(super) fn DomainList(
    /// The organization.
    org: OrgId,
    /// The domains with their confirmation.
    known: RwSignal<Vec<SsoDomain>>,
) -> impl IntoView {
    let (call, ready) = (Call::idle(), ready());
    let status = RwSignal::new(String::new());
    let check = Callback::new(move |domain: String| {
        let input = CheckDomain { domain: domain.clone() };
        call.run(api::sso::check_domain(org, &input), move |fresh: SsoSettings| {
            let fresh = fresh.provider.map(|provider| provider.domains).unwrap_or_default();
            let found = fresh.iter().find(|one| one.domain == domain);
            status.set(found.map(|one| format!("{domain}: {}", outcome(one))).unwrap_or_default());
            known.set(fresh);
        });
    });
    let names =
        move || known.with(|known| known.iter().map(|one| one.domain.clone()).collect::<Vec<String>>());
    let rows = view! {
        <For
            each=names
            key=|domain: &String| domain.clone()
            children=move |domain: String| row(domain, known, call, ready, check)
        />
    }
    .into_any();
    view! {
        <div hidden=move || known.with(|known| known.is_empty())>
            <p class="page__lead">
                "Publish the TXT record of a domain in DNS to confirm it. The portal checks it every few minutes at first, for seven days. Confirmed domains keep their record. The operator of this portal can also confirm a domain."
            </p>
            <CallProblem call=call beside_fields=&[]/>
            {table_of(
                "Domains of single sign-on",
                &[("Domain", ""), ("State", ""), ("TXT record", ""), ACTIONS],
                vec![rows],
            )}
            <p class="quiet said" role="status">{move || status.get()}</p>
        </div>
    }
}

/// The outcome of a check in one or two sentences.
fn outcome(one: &SsoDomain) -> String {
    match &one.problem {
        Some(problem) => problem.clone(),
        None if one.confirmed_at.is_some() => "confirmed.".to_owned(),
        None => "not confirmed.".to_owned(),
    }
}

fn row(
    domain: String,
    known: RwSignal<Vec<SsoDomain>>,
    call: Call,
    ready: ReadSignal<bool>,
    check: Callback<String>,
) -> AnyView {
    let name = domain.clone();
    let one = Memo::new(move |_| known.with(|known| known.iter().find(|one| one.domain == name).cloned()));
    // The record of a domain confirms it, unless an operator did.
    let by_record = move || {
        one.with(|one| {
            one.as_ref().is_some_and(|one| one.record.is_some() && (one.by_dns || one.confirmed_at.is_none()))
        })
    };
    let (head, record_of, label) = (domain.clone(), domain.clone(), format!("Check now: {domain}"));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{head}</span></th>
            <td role="cell" class="table__lead" data-label="State">
                <For
                    each=move || one.get()
                    key=|one: &SsoDomain| (one.confirmed_at, one.missing_since, one.checked_at)
                    children=|one: SsoDomain| state(&one)
                />
            </td>
            <td role="cell" class="table__lead" data-label="TXT record">
                <For
                    each=move || one.get().filter(|_| by_record()).and_then(|one| one.record)
                    key=|record: &String| record.clone()
                    children=move |value: String| record(&record_of, value)
                />
            </td>
            <td role="cell" class="table__actions">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-label=label
                    hidden=move || !by_record()
                    disabled=move || !ready.get()
                    aria-disabled=move || call.pending.get().then_some("true")
                    on:click=move |_| {
                        if !call.pending.get_untracked() {
                            check.run(domain.clone());
                        }
                    }
                >
                    "Check now"
                </button>
            </td>
        </tr>
    }
    .into_any()
}

/// The state of a domain, with the failure of the last check.
fn state(one: &SsoDomain) -> AnyView {
    let by = if one.by_dns { "" } else { " by the operator" };
    let confirmation = match (one.confirmed_at, one.missing_since) {
        (Some(_), Some(since)) => view! {
            "confirmed, but its record has been missing since " <When at=since/>
            "; the confirmation ends seven days after that"
        }
        .into_any(),
        (Some(at), None) => view! { "confirmed" {by} " on " <When at=at/> }.into_any(),
        (None, _) => view! { "not confirmed; nobody signs in with it yet" }.into_any(),
    };
    let last = one.checked_at.map(|at| {
        let problem = one.problem.clone().unwrap_or_else(|| "The record is there.".to_owned());
        view! { <div class="quiet small">"Checked on " <When at=at/> ". " {problem}</div> }
    });
    view! { {confirmation} {last} }.into_any()
}

/// The name and the value of the record.
fn record(domain: &str, value: String) -> AnyView {
    let label = format!("Value of the TXT record of {domain}");
    let name = format!("_berth.{domain}");
    view! {
        <span class="mono break">{name}</span>
        <CopyBlock text=value label=label/>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use berth_types::time::Timestamp;

    use super::*;

    #[test]
    fn the_outcome_is_the_failure_or_the_confirmation() {
        let open = SsoDomain {
            domain: "corp.example".to_owned(),
            record: Some("berth-verification=0a".to_owned()),
            by_dns: false,
            confirmed_at: None,
            missing_since: None,
            checked_at: None,
            problem: Some("No record.".to_owned()),
        };
        assert_eq!(outcome(&open), "No record.");
        let confirmed = SsoDomain { confirmed_at: Some(Timestamp::from_micros(1)), problem: None, ..open };
        assert_eq!(outcome(&confirmed), "confirmed.");
    }
}
