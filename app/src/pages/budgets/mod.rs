//! Budgets: what may be spent in a month, how far that is, and what happens at the end of it.
//!
//! Must not decide what a budget refuses or stops, nor add up what counts: that is the portal's word.

pub mod form;
pub mod words;

use std::future::Future;

use berth_types::budgets::{AtLimit, Budget, NewBudget};
use berth_types::ids::OrgId;
use berth_types::money::money_text;
use berth_types::usage::GroupBy;
use leptos::prelude::*;
use leptos::task::spawn_local;
use serde::{Deserialize, Serialize};

use self::form::BudgetForm;
use self::words::{at_limit_words, bar_words, left, parts, passed_words};
use super::billing::BillingTabs;
use super::confirm::{ConfirmDialog, Doomed};
use super::curl;
use super::limits::replace;
use super::of_org::of_org;
use super::parts::{Call, every, origin, ready};
use super::usage::choice::path;
use crate::api;
use crate::api::Answer;
use crate::api::usage::UsageQuery;
use crate::session::{Page, use_session};
use crate::ui::*;

/// What the page starts with.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    budgets: Vec<Budget>,
}

fn load(org: OrgId) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let budgets = api::budgets::list(org);
    async move { Ok(Loaded { org, budgets: budgets.await?.items }) }
}

/// The page with all budgets.
#[component]
pub fn BudgetsPage() -> impl IntoView {
    view! {
        <Page title="Budgets".to_owned()>
            <BillingTabs current="/budgets"/>
            <p class="page__lead">
                "A budget says what may be spent in a calendar month, on everything or on the jobs with one label. You are told at 50, 75 and 100 %."
            </p>
            {of_org(load, |loaded: Loaded| view! { <BudgetsView loaded=loaded/> }.into_any())}
        </Page>
    }
}

#[component]
fn BudgetsView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, budgets } = loaded;
    let currency = use_session().me.currency;
    let ready = ready();
    let budgets = RwSignal::new(budgets);
    let doomed = Doomed::none();
    every(10_000, move || {
        let fresh = api::budgets::list(org);
        spawn_local(async move {
            // What cannot be fetched now leaves what is shown; the next round tries again.
            if let Ok(fresh) = fresh.await {
                replace(budgets, fresh.items);
            }
        });
    });
    let none = Memo::new(move |_| budgets.with(Vec::is_empty));
    let cards = move || {
        budgets.with(|budgets| budgets.iter().map(|one| card(one, ready, doomed)).collect::<Vec<AnyView>>())
    };
    view! {
        <section class="section">
            <div class="section__head"><h2>"This month"</h2></div>
            {move || {
                if none.get() {
                    view! { <Nothing org=org/> }.into_any()
                } else {
                    view! { <div class="cards">{cards}</div> }.into_any()
                }
            }}
        </section>
        <BudgetForm org=org budgets=budgets currency=currency/>
        <DeleteDialog org=org budgets=budgets doomed=doomed/>
    }
}

/// Empty teaches: one sentence, one action, the same as a curl line.
#[component]
fn Nothing(org: OrgId) -> impl IntoView {
    let origin = origin();
    let example = NewBudget {
        name: "All of the lab".to_owned(),
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
                "No budget yet: what may be spent is what is available. Make one below, and choose whether its end is only told, refuses what could go beyond it, or stops what runs as well."
            </p>
            <CopyBlock text=line label="A budget with curl".to_owned()/>
        </div>
    }
}

/// What a budget counts.
fn scope(budget: &Budget) -> AnyView {
    if budget.label.is_empty() {
        return view! { <p class="quiet">"Counts everything, reservations too."</p> }.into_any();
    }
    let label = format!("{}={}", budget.label, budget.value);
    let query = UsageQuery { group: GroupBy::Label, label: budget.label.clone(), ..UsageQuery::default() };
    let used = path(&query);
    view! {
        <p class="quiet">
            "Counts jobs with the label " <span class="tag tag--label">{label}</span> ". "
            <a href=used>"What they used"</a>
        </p>
    }
    .into_any()
}

/// What is spent and set aside, with the thresholds at which somebody is told.
fn gauge(budget: &Budget) -> AnyView {
    let (spent, held) = parts(budget);
    let class = if budget.passed_percent >= 75 { "gauge gauge--warn" } else { "gauge" };
    let name = format!("{}: {}", budget.name, bar_words(budget));
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

fn card(budget: &Budget, ready: ReadSignal<bool>, doomed: Doomed<Budget>) -> AnyView {
    let text = |micros: i64| money_text(micros, &budget.currency);
    let name = budget.name.clone();
    let label = format!("Delete {name}");
    let by = budget.created_by.clone();
    let tag = passed_words(budget).map(|words| {
        let class = if budget.passed_percent >= 75 { "tag tag--warn" } else { "tag" };
        view! { <span class=class>{words}</span> }
    });
    view! {
        <article class="card" aria-label=budget.name.clone()>
            <div class="card__head">
                <h3 class="card__title">{name}</h3>
                {tag}
                <span class="card__aside">
                    {doomed.button(budget.clone(), "Delete", label, ready)}
                </span>
            </div>
            {scope(budget)}
            {gauge(budget)}
            <dl class="kv kv--ends">
                <dt>"Spent"</dt>
                <dd>{text(budget.spent_micros)}</dd>
                <dt>"Set aside for what runs, waits or is reserved"</dt>
                <dd>{text(budget.committed_micros)}</dd>
                <dt>"Left"</dt>
                <dd>{text(left(budget))}</dd>
                <dt>"Of, a month"</dt>
                <dd>{text(budget.limit_micros)}</dd>
            </dl>
            <p>"At its limit: "{at_limit_words(budget.at_limit)}</p>
            <p class="quiet small">{by}", "<When at=budget.created_at/></p>
        </article>
    }
    .into_any()
}

#[component]
fn DeleteDialog(org: OrgId, budgets: RwSignal<Vec<Budget>>, doomed: Doomed<Budget>) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(id) = doomed.one.get_untracked().map(|budget| budget.id) else { return };
        call.run(api::budgets::delete(org, id), move |()| {
            budgets.update(|budgets| budgets.retain(|budget| budget.id != id));
            doomed.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-budget"
            title=doomed.title("Delete", "budget", |budget| budget.name.as_str())
            open=doomed.open
            call=call
            keep="Keep it"
            verb="Delete budget"
            confirm=Callback::new(delete)
        >
            <p>
                "It tells, refuses and stops nothing from now on. What was spent stays spent, and what runs goes on. This cannot be undone; you can make the same budget again."
            </p>
        </ConfirmDialog>
    }
}
