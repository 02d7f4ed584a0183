//! Page of budgets: monthly limits on charges.
//!
//! The portal sums up charges and decides about refusals and stops.

pub mod form;
pub mod text;

use std::future::Future;

use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::OrgId;
use berth_types::money::{column_decimals, column_text};
use berth_types::usage::GroupBy;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::form::BudgetForm;
use self::text::{at_limit_text, bar_parts, gauge_text, remaining, threshold_text};
use super::billing::BillingTabs;
use super::confirm::{ConfirmDialog, ConfirmTarget};
use super::curl::{self, ListCurl};
use super::limits::replace;
use super::org_data::org_view;
use super::parts::{Call, every_visible, origin, ready};
use super::usage::choice::path;
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::api::usage::UsageQuery;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    budgets: Vec<Budget>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let budgets = api::budgets::list(org);
    async move { Ok(Loaded { org, budgets: budgets.await?.items }) }
}

/// The page of all budgets.
#[component]
pub fn BudgetsPage() -> impl IntoView {
    view! {
        <Page title="Budgets".to_owned()>
            <BillingTabs current="/budgets"/>
            <p class="page__lead">
                "A budget limits the charges of a calendar month (UTC): of all jobs and reservations, or of jobs with one label. Notices go out by e-mail and webhook at 50, 75 and 100 %."
            </p>
            {org_view(load, |loaded: Loaded| view! { <BudgetsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn BudgetsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, budgets } = loaded;
    let session = use_session();
    let owns = session.owns(org);
    let currency = session.me.currency;
    let ready = ready();
    let budgets = RwSignal::new(budgets);
    let target = ConfirmTarget::none();
    every_visible(10_000, move || {
        let fresh = api::budgets::list(org);
        spawn_local(async move {
            // The next round repeats a failed request.
            if let Ok(fresh) = fresh.await {
                replace(budgets, fresh.items);
            }
        });
    });
    let none = Memo::new(move |_| budgets.with(Vec::is_empty));
    let cards = move || {
        budgets.with(|budgets| {
            budgets.iter().map(|one| card(one, owns.then_some((ready, target)))).collect::<Vec<AnyView>>()
        })
    };
    view! {
        <section class="section">
            <div class="section__head"><h2>"Current month"</h2></div>
            {move || {
                if none.get() {
                    view! { <NoBudgets org=org owns=owns/> }.into_any()
                } else {
                    view! { <div class="cards">{cards}</div> }.into_any()
                }
            }}
        </section>
        <ListCurl path=Signal::derive(move || format!("/orgs/{org}/budgets")) label="Budgets with curl"/>
        {owns.then(|| view! {
            <BudgetForm org=org budgets=budgets currency=currency/>
            <DeleteDialog org=org budgets=budgets target=target/>
        })}
    }
}

/// The empty state with an example request.
#[component]
fn NoBudgets(
    org: OrgId,
    /// True for an owner, who can create budgets.
    owns: bool,
) -> impl IntoView {
    let origin = origin();
    let example = NewBudget {
        name: "Whole lab".to_owned(),
        label: String::new(),
        value: String::new(),
        limit_micros: 500_000_000,
        at_limit: AtLimit::Refuse,
    };
    let body = serde_json::to_string(&example).unwrap_or_default();
    let line = Signal::derive(move || curl::post(&origin.get(), &format!("/orgs/{org}/budgets"), &body));
    view! {
        <div class="empty">
            <p class="empty__text">
                "No budget yet. Without a budget, only the available balance limits charges. "
                {if owns { "Create a budget below." } else { "Owners of the organization create budgets." }}
            </p>
            {owns.then(|| view! { <CopyBlock text=line label="Budget with curl".to_owned()/> })}
        </div>
    }
}

/// The scope of a budget.
fn scope(budget: &Budget) -> AnyView {
    if budget.label.is_empty() {
        return view! { <p class="quiet">"Counts all jobs and reservations."</p> }.into_any();
    }
    let label = format!("{}={}", budget.label, budget.value);
    let query = UsageQuery { group: GroupBy::Label, label: budget.label.clone(), ..UsageQuery::default() };
    let used = org_link(&path(&query));
    view! {
        <p class="quiet">
            "Counts jobs with the label " <span class="tag tag--label">{label}</span> ". "
            <a href=used>"Show usage"</a>
        </p>
    }
    .into_any()
}

/// The bar with spent and reserved money and the thresholds of notices.
fn gauge(budget: &Budget) -> AnyView {
    let (spent, held) = bar_parts(budget);
    let class = if budget.passed_percent >= 75 { "gauge gauge--warn" } else { "gauge" };
    let name = format!("{}: {}", budget.name, gauge_text(budget));
    let (begin, spent, held) = (spent.to_string(), spent.to_string(), held.to_string());
    view! {
        <div>
            <svg class=class viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=name>
                <rect class="gauge__spent" x="0" y="0" width=spent height="10"></rect>
                <rect class="gauge__held" x=begin y="0" width=held height="10"></rect>
                <line class="gauge__mark" x1="500" x2="500" y1="0" y2="10"></line>
                <line class="gauge__mark" x1="750" x2="750" y1="0" y2="10"></line>
            </svg>
            <div class="gauge__scale" aria-hidden="true"><span>"50"</span><span>"75"</span><span>"100 %"</span></div>
        </div>
    }
    .into_any()
}

/// The card of a budget; `delete` has the parts of its button, for owners.
fn card(budget: &Budget, delete: Option<(ReadSignal<bool>, ConfirmTarget<Budget>)>) -> AnyView {
    let amounts = [budget.spent_micros, budget.committed_micros, remaining(budget), budget.limit_micros];
    let decimals = column_decimals(amounts);
    let text = |micros: i64| column_text(micros, &budget.currency, decimals);
    let name = budget.name.clone();
    let label = format!("Delete {name}");
    let by = budget.created_by.clone();
    let tag = threshold_text(budget).map(|text| {
        let class = if budget.passed_percent >= 75 { "tag tag--warn" } else { "tag" };
        view! { <span class=class>{text}</span> }
    });
    view! {
        <article class="card" aria-label=budget.name.clone()>
            <div class="card__head">
                <h3 class="card__title">{name}</h3>
                {tag}
                <span class="card__aside">
                    {delete.map(|(ready, target)| target.button(budget.clone(), "Delete", label, ready))}
                </span>
            </div>
            {scope(budget)}
            {gauge(budget)}
            <dl class="kv kv--ends">
                <dt>"Spent"</dt>
                <dd>{text(budget.spent_micros)}</dd>
                <dt>"Reserved for open jobs and reservations"</dt>
                <dd>{text(budget.committed_micros)}</dd>
                <dt>"Remaining"</dt>
                <dd>{text(remaining(budget))}</dd>
                <dt>"Monthly limit"</dt>
                <dd>{text(budget.limit_micros)}</dd>
            </dl>
            <p>"At the limit: "{at_limit_text(budget.at_limit)}</p>
            <p class="quiet small">"Created by "{by}", "<When at=budget.created_at/></p>
        </article>
    }
    .into_any()
}

#[component]
fn DeleteDialog(org: OrgId, budgets: RwSignal<Vec<Budget>>, target: ConfirmTarget<Budget>) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(id) = target.one.get_untracked().map(|budget| budget.id) else { return };
        call.run(api::budgets::delete(org, id), move |()| {
            budgets.update(|budgets| budgets.retain(|budget| budget.id != id));
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-budget"
            title=target.title("Delete", "budget", |budget| budget.name.as_str())
            open=target.open
            call=call
            keep="Keep budget"
            verb="Delete budget"
            confirm=Callback::new(delete)
        >
            <p>
                "The budget no longer notifies, refuses or stops anything. Running jobs continue, and charges do not change. This cannot be undone, but you can create the same budget again."
            </p>
        </ConfirmDialog>
    }
}
