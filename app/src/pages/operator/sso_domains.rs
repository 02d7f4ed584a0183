//! The domains of single sign-on, which an operator confirms for organizations.

use berth_types::operators::OperatorRight;
use berth_types::sso::{ClaimedDomain, ClaimedDomains, ConfirmDomain};
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem};
use super::may;
use crate::api;
use crate::ui::*;

/// Returns the filter as a plain form, which also works without scripts.
fn filter_form(text: String) -> AnyView {
    let clear = (!text.is_empty())
        .then(|| view! { <a class="btn btn--quiet" href="/operator/settings">"Clear filters"</a> });
    view! {
        <form class="filters" method="get" action="/operator/settings" aria-label="Filter of domains">
            <label class="filters__field" for="sso-domain">
                "Domain or organization"
                <input class="input" id="sso-domain" name="domain" autocomplete="off" maxlength="100" value=text/>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

/// The table of the domains with a text in the domain or in the name of the organization.
#[component]
pub fn SsoDomains(domains: ClaimedDomains, text: String) -> impl IntoView {
    let is_filtered = !text.is_empty();
    let domains = RwSignal::new(domains.domains);
    let (call, ready) = (Call::idle(), ready());
    let status = RwSignal::new(String::new());
    let set = Callback::new(move |(one, confirmed): (ClaimedDomain, bool)| {
        let input = ConfirmDomain { domain: one.domain.clone(), confirmed };
        call.run(api::sso::confirm_domain(one.organization, &input), move |fresh: ClaimedDomains| {
            let is_chosen =
                |row: &ClaimedDomain| row.domain == one.domain && row.organization == one.organization;
            if let Some(new) = fresh.domains.into_iter().find(is_chosen) {
                domains.update(|rows| {
                    if let Some(row) = rows.iter_mut().find(|row| is_chosen(row)) {
                        *row = new;
                    }
                });
            }
            let state = if confirmed { "confirmed" } else { "not confirmed" };
            status.set(format!("{}: {state}.", one.domain));
        });
    });
    view! {
        <section class="section">
            <div class="section__head"><h2>"Domains of single sign-on"</h2></div>
            <p class="page__lead">
                "A confirmed domain lets the sign-in service of its organization decide about all its addresses. Check first that the domain belongs to the organization, for example by a mail to its administrator. Owners can prove it themselves by a record in DNS. After a withdrawal they need a new record."
            </p>
            <CallProblem call=call beside_fields=&[]/>
            {filter_form(text)}
            {move || domains.with(|domains| table(domains, is_filtered, call, ready, set))}
            <p class="quiet said" role="status">{move || status.get()}</p>
        </section>
    }
}

fn table(
    domains: &[ClaimedDomain],
    is_filtered: bool,
    call: Call,
    ready: ReadSignal<bool>,
    set: Callback<(ClaimedDomain, bool)>,
) -> AnyView {
    if domains.is_empty() && is_filtered {
        return empty_filtered("No domain has this text.", "/operator/settings");
    }
    if domains.is_empty() {
        return empty("No organization has single sign-on yet. Owners set it on the page Team.");
    }
    let rows = domains.iter().map(|one| row(one, call, ready, set)).collect();
    table_of(
        "Domains, open ones first",
        &[("Domain", ""), ("Organization", ""), ("State", ""), ACTIONS],
        rows,
    )
}

fn row(
    one: &ClaimedDomain,
    call: Call,
    ready: ReadSignal<bool>,
    set: Callback<(ClaimedDomain, bool)>,
) -> AnyView {
    let is_confirmed = one.confirmed_at.is_some();
    let state = match one.confirmed_at {
        Some(at) => view! { "confirmed on " <When at=at/> }.into_any(),
        None => view! { "asked on " <When at=one.created_at/> }.into_any(),
    };
    let verb = if is_confirmed { "Withdraw" } else { "Confirm" };
    let label = format!("{verb} {} of {}", one.domain, one.organization_name);
    let chosen = one.clone();
    let button = may(OperatorRight::ManagePortal).then(|| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !ready.get()
                aria-disabled=move || call.pending.get().then_some("true")
                on:click=move |_| {
                    if !call.pending.get_untracked() {
                        set.run((chosen.clone(), !is_confirmed));
                    }
                }
            >
                {verb}
            </button>
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{one.domain.clone()}</span></th>
            <td role="cell" data-label="Organization"><span class="break">{one.organization_name.clone()}</span></td>
            <td role="cell" class="nowrap" data-label="State">{state}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}
