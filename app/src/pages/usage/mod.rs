//! What was used and what it cost: by day, told apart by offering, mode, member or a label.
//!
//! Must not hold the choice anywhere but in the address, so that it can be shared; sums over everything
//! are the portal's.

pub mod chart;
pub mod choice;
pub mod series;
pub mod table;
pub mod words;

use std::future::Future;

use berth_types::ids::OrgId;
use berth_types::money::money_text;
use berth_types::problems::Problem;
use berth_types::usage::{GroupBy, Usage};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos_router::hooks::use_query_map;
use serde::{Deserialize, Serialize};

use self::chart::Chart;
use self::choice::{Preset, chosen_days, path};
use self::series::Bands;
use self::words::{device_hours, group_choice};
use super::billing::BillingTabs;
use super::days::{day_at, day_text};
use super::limits::replace;
use super::of_org::drawn;
use super::parts::{FieldError, every, now_ms, origin, ready, when_some};
use super::words::grouped;
use super::{curl, days};
use crate::api;
use crate::api::Answer;
use crate::api::usage::UsageQuery;
use crate::session::{Page, use_session};
use crate::ui::*;

/// Milliseconds between two looks: a running job is charged about once a minute.
const AGAIN_MS: u64 = 30_000;

/// What was asked for, and the answer to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Shown {
    query: UsageQuery,
    usage: Usage,
}

fn load(org: OrgId, query: UsageQuery) -> impl Future<Output = Answer<(OrgId, Shown)>> + Send + 'static {
    let wanted = api::usage::get(org, query.clone());
    let plain = api::usage::get(org, UsageQuery::default());
    async move {
        let shown = match wanted.await {
            Ok(usage) => Shown { query, usage },
            // An address that the portal cannot answer: the page shows what it shows by itself, and then
            // asks once more for what is in the address, to say what is wrong with it.
            Err(problem) if problem.status == 400 => {
                Shown { query: UsageQuery::default(), usage: plain.await? }
            }
            Err(problem) => return Err(problem),
        };
        Ok((org, shown))
    }
}

/// The page with the use of an organization.
#[component]
pub fn UsagePage() -> impl IntoView {
    let org = use_session().org;
    let params = use_query_map();
    let query = Memo::new(move |_| params.with(|params| choice::read(|name| params.get(name))));
    // Another choice is fetched by the page that stands, so that nothing it shows goes away meanwhile.
    let data: Resource<Answer<Option<(OrgId, Shown)>>> = Resource::new(
        move || org.get(),
        move |org: Option<OrgId>| when_some(org.map(|org| load(org, query.get_untracked()))),
    );
    view! {
        <Page title="Usage".to_owned()>
            <BillingTabs current="/usage"/>
            {drawn(data, move |(org, first): (OrgId, Shown)| {
                view! { <UsageView org=org first=first query=query/> }.into_any()
            })}
        </Page>
    }
}

#[component]
fn UsageView(org: OrgId, first: Shown, query: Memo<UsageQuery>) -> impl IntoView {
    let shown = RwSignal::new(first);
    let busy = RwSignal::new(false);
    let problem = RwSignal::new(None::<Problem>);
    let asked = StoredValue::new(0_u64);
    let fetch = move |loud: bool| {
        let wanted = query.get_untracked();
        let number = asked.get_value().wrapping_add(1);
        asked.set_value(number);
        let answer = api::usage::get(org, wanted.clone());
        spawn_local(async move {
            let answer = answer.await;
            // An answer to an older choice would show the wrong days.
            if asked.try_get_value() != Some(number) {
                return;
            }
            busy.set(false);
            match answer {
                Ok(usage) => {
                    problem.set(None);
                    replace(shown, Shown { query: wanted, usage });
                }
                // What cannot be looked at again leaves what is shown.
                Err(found) if loud => problem.set(Some(found)),
                Err(_) => {}
            }
        });
    };
    Effect::new(move |before: Option<UsageQuery>| {
        let now = query.get();
        let before = before.unwrap_or_else(|| shown.with_untracked(|shown| shown.query.clone()));
        if before != now {
            busy.set(true);
            fetch(true);
        }
        now
    });
    every(AGAIN_MS, move || fetch(false));
    let group = Memo::new(move |_| shown.with(|shown| shown.query.answerable().group));
    let bands = Memo::new(move |_| shown.with(|shown| Bands::of(&shown.usage, group.get())));
    let none = Memo::new(move |_| shown.with(|shown| shown.usage.rows.is_empty()));
    let csv = move || shown.with(|shown| shown.query.csv_path(org));
    view! {
        <Filters query=query shown=shown/>
        {move || problem.get().map(|problem| view! { <ProblemNotice problem=problem/> })}
        <div class="stack stack--wide" aria-busy=move || if busy.get() { "true" } else { "false" }>
            {move || shown.with(|shown| figures(&shown.usage))}
            {move || {
                if none.get() {
                    view! { <Nothing org=org shown=shown/> }.into_any()
                } else {
                    view! {
                        <Chart bands=bands/>
                        {move || apart(&bands.get(), group.get())}
                        <section class="section">
                            <div class="section__head">
                                <h2>"Every day"</h2>
                                <div class="section__aside">
                                    <a href=csv rel="external" download="usage.csv">"Download CSV"</a>
                                </div>
                            </div>
                            {move || shown.with(|shown| table::by_day(&shown.usage, group.get()))}
                        </section>
                    }
                        .into_any()
                }
            }}
        </div>
    }
}

/// Sums of what is told apart, where it is.
fn apart(bands: &Bands, group: GroupBy) -> Option<AnyView> {
    let heading = format!("By {}", group_choice(group));
    (group != GroupBy::Day).then(|| {
        view! {
            <section class="section">
                <div class="section__head"><h2>{heading}</h2></div>
                {table::sums(bands, group)}
            </section>
        }
        .into_any()
    })
}

/// Which days, and by what use is told apart; choosing goes to the address of that choice.
#[component]
fn Filters(query: Memo<UsageQuery>, shown: RwSignal<Shown>) -> impl IntoView {
    let ready = ready();
    let wrong = RwSignal::new(None::<String>);
    let preset = Memo::new(move |_| shown.with(|shown| Preset::shown(&shown.query, &shown.usage)));
    let choice = move |value: Preset| {
        let at_first = preset.get_untracked() == Some(value);
        let pick = move |_: leptos::ev::Event| {
            wrong.set(None);
            go(&path(&value.query(&day_at(now_ms()), query.get_untracked())));
        };
        view! {
            <label>
                <input
                    type="radio"
                    name="days"
                    checked=at_first
                    disabled=move || !ready.get()
                    prop:checked=move || { preset.get() == Some(value) }
                    on:change=pick
                />
                {value.text()}
            </label>
        }
    };
    let from = Memo::new(move |_| shown.with(|shown| shown.usage.from.clone()));
    let until = Memo::new(move |_| shown.with(|shown| shown.usage.until.clone()));
    let pick_days = move |from: String, until: String| match chosen_days(&from, &until) {
        Err(why) => wrong.set(Some(why.to_owned())),
        Ok((from, until)) => {
            wrong.set(None);
            go(&path(&UsageQuery { from: Some(from), until: Some(until), ..query.get_untracked() }));
        }
    };
    let groups: Vec<AnyView> = UsageQuery::GROUPS
        .into_iter()
        .map(|(group, name)| {
            let at_first = query.with_untracked(|query| query.group == group);
            view! {
                <option
                    value=name
                    selected=at_first
                    prop:selected=move || query.with(|query| query.group == group)
                >
                    {group_choice(group)}
                </option>
            }
            .into_any()
        })
        .collect();
    let pick_group = move |ev: leptos::ev::Event| {
        if let Some(group) = UsageQuery::parse_group(&event_target_value(&ev)) {
            go(&path(&UsageQuery { group, ..query.get_untracked() }));
        }
    };
    let by_label = Memo::new(move |_| query.with(|query| query.group == GroupBy::Label));
    let (first_from, first_until) = (from.get_untracked(), until.get_untracked());
    view! {
        <div class="stack">
            <div class="filters">
                <div class="segmented" role="radiogroup" aria-label="Days that end today">
                    {Preset::ALL.map(choice).into_iter().collect_view()}
                </div>
                <label class="filters__field">
                    "From"
                    <input
                        class="input"
                        type="date"
                        value=first_from
                        disabled=move || !ready.get()
                        aria-describedby="usage-days-error"
                        prop:value=move || from.get()
                        on:change=move |ev| pick_days(event_target_value(&ev), until.get_untracked())
                    />
                </label>
                <label class="filters__field">
                    "until"
                    <input
                        class="input"
                        type="date"
                        value=first_until
                        disabled=move || !ready.get()
                        aria-describedby="usage-days-error"
                        prop:value=move || until.get()
                        on:change=move |ev| pick_days(from.get_untracked(), event_target_value(&ev))
                    />
                </label>
                <label class="filters__field">
                    "by"
                    <select class="select" disabled=move || !ready.get() on:change=pick_group>
                        {groups}
                    </select>
                </label>
                {move || by_label.get().then(|| view! { <LabelKey query=query ready=ready/> })}
            </div>
            <FieldError id="usage-days-error" error=Signal::from(wrong)/>
        </div>
    }
}

/// The key of the label by whose values use is told apart.
#[component]
fn LabelKey(query: Memo<UsageQuery>, ready: ReadSignal<bool>) -> impl IntoView {
    let at_first = query.with_untracked(|query| query.label.clone());
    let pick = move |ev: leptos::ev::Event| {
        let label = event_target_value(&ev).trim().to_owned();
        go(&path(&UsageQuery { label, ..query.get_untracked() }));
    };
    view! {
        <label class="filters__field">
            "with the key"
            <input
                class="input"
                autocomplete="off"
                spellcheck="false"
                maxlength="63"
                placeholder="project"
                value=at_first
                disabled=move || !ready.get()
                prop:value=move || query.with(|query| query.label.clone())
                on:change=pick
            />
        </label>
    }
}

fn figures(usage: &Usage) -> AnyView {
    let text = |micros: i64| money_text(micros, &usage.currency);
    let days = format!("{} to {}", days::short_day(&usage.from), days::short_day(&usage.until));
    let (lasts, rate_note) = match usage.runway_hours {
        Some(hours) => {
            (view! { {grouped(hours)}<span class="stat__unit">"h"</span> }.into_any(), "at the present rate")
        }
        None => ("as it is".into_any(), "nothing is being spent"),
    };
    let so_far = format!("{} so far", text(usage.month_to_date_micros));
    view! {
        <dl class="stats">
            <div class="stat">
                <dt class="stat__label">"Cost"</dt>
                <dd class="stat__value">{text(usage.cost_micros)}</dd>
                <dd class="stat__note">{days}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Used"</dt>
                <dd class="stat__value">{device_hours(usage.device_ms)}<span class="stat__unit">"h"</span></dd>
                <dd class="stat__note">"device-hours that were charged"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Reserved, not used"</dt>
                <dd class="stat__value">
                    {device_hours(usage.idle_reserved_device_ms)}<span class="stat__unit">"h"</span>
                </dd>
                <dd class="stat__note">"device-hours in which no job ran"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Idle hours"</dt>
                <dd class="stat__value">{text(usage.underused_micros)}</dd>
                <dd class="stat__note">"of jobs below 40 % utilisation"</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"Lasts"</dt>
                <dd class="stat__value">{lasts}</dd>
                <dd class="stat__note">{rate_note}</dd>
            </div>
            <div class="stat">
                <dt class="stat__label">"This month, at its end"</dt>
                <dd class="stat__value">{text(usage.forecast_month_micros)}</dd>
                <dd class="stat__note">{so_far}", the rest like the last seven days"</dd>
            </div>
        </dl>
    }
    .into_any()
}

/// In place of the chart when nothing was charged.
#[component]
fn Nothing(org: OrgId, shown: RwSignal<Shown>) -> impl IntoView {
    let origin = origin();
    let line = Signal::derive(move || {
        let query = shown.with(|shown| shown.query.answerable().text());
        curl::get(&origin.get(), &format!("/orgs/{org}/usage{query}"))
    });
    let words = move || {
        shown.with(|shown| {
            let (from, until) = (day_text(&shown.usage.from), day_text(&shown.usage.until));
            let query = shown.query.answerable();
            if query.group == GroupBy::Label {
                let label = query.label;
                return format!("No job with the label {label} was charged from {from} to {until}. Labels are given to a job when it is submitted.");
            }
            format!("Nothing was charged from {from} to {until}. What a job uses is charged while it runs, and stands here on the day on which it was used.")
        })
    };
    view! {
        <div class="empty">
            <p class="empty__text">{words}</p>
            <a class="btn" href="/launch">"Launch job"</a>
            <CopyBlock text=line label="The same with curl".to_owned()/>
        </div>
    }
}
