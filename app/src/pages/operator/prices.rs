//! Page of the prices per hour by offering, with their history and the dialog for a new version. Existing jobs
//! and reservations keep their price version.

pub mod change;
pub mod draft;
pub mod history;
mod planned;

use std::future::Future;

use berth_types::Page as Rows;
use berth_types::change_requests::{ChangeRequest, Outcome};
use berth_types::ids::OfferingId;
use berth_types::money::money_text;
use berth_types::offerings::{Offering, Price, PriceVersion};
use berth_types::operators::OperatorRight;
use futures::join;
use leptos::prelude::*;

use self::change::ChangeDialog;
use self::history::{History, WithdrawDialog};
use self::planned::PlannedNote;
use super::super::confirm::ConfirmTarget;
use super::super::launch::offers::offering_bar;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, ready};
use super::super::text::counted;
use super::waiting::{WaitingNotice, second_operator_required};
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

/// The offerings, and the planned prices by offering and begin.
type Loaded = (Vec<Offering>, Vec<PriceVersion>);

fn load() -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let (offerings, planned) = (api::money::offerings(), api::money::planned_prices());
    async move {
        let (offerings, planned) = join!(offerings, planned);
        Ok((offerings?.items, planned?.items))
    }
}

/// The page of all prices.
#[component]
pub fn PricesPage() -> impl IntoView {
    if is_operator() { view! { <Prices/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Prices() -> impl IntoView {
    let data: Resource<Answer<Loaded>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Prices".to_owned()>
            <p class="page__lead">
                "A new price applies to later submissions and reservations. Existing jobs and reservations keep their price version."
            </p>
            {read_only(OperatorRight::ManageMoney)}
            {answer_view(data, |(offerings, planned)| {
                if offerings.is_empty() {
                    empty_linked("No offerings yet. They result from the boards of the nodes.", "/operator/nodes", "Add node")
                } else {
                    view! { <PriceView offerings=offerings planned=planned/> }.into_any()
                }
            })}
        </Page>
    }
}

/// The signals of the page.
#[derive(Clone, Copy)]
pub struct PricesState {
    offerings: RwSignal<Vec<Offering>>,
    /// The planned prices by offering and begin.
    planned: RwSignal<Vec<PriceVersion>>,
    /// The offering of the last history that a link opened.
    opened: RwSignal<Option<OfferingId>>,
    /// The offering of the dialog.
    chosen: RwSignal<Option<Offering>>,
    changing: RwSignal<bool>,
    withdrawing: ConfirmTarget<PriceVersion>,
    /// The slug of the last offering with a change.
    changed: RwSignal<Option<String>>,
    /// The result of the last change.
    status: RwSignal<String>,
    /// The last change, if it waits for a second operator.
    waiting: RwSignal<Option<ChangeRequest>>,
    /// True with the rule for a second operator.
    second_operator: ReadSignal<bool>,
    ready: ReadSignal<bool>,
}

impl PricesState {
    /// Shows a changed price with its status, or its change request.
    fn show(self, outcome: Outcome<Offering>, status: String) {
        match outcome {
            Outcome::Requested(request) => {
                self.status.set(String::new());
                self.waiting.set(Some(*request));
            }
            Outcome::Done(fresh) => {
                self.waiting.set(None);
                self.update_price(fresh, status);
            }
        }
    }

    /// Updates a price. The answer has no capacity, so only the price is taken.
    fn update_price(self, fresh: Offering, status: String) {
        let slug = fresh.slug;
        let price = fresh.price;
        self.offerings.update(|all| {
            if let Some(known) = all.iter_mut().find(|known| known.slug == slug) {
                known.price = price;
            }
        });
        self.status.set(status);
        self.changed.set(Some(slug));
    }
}

#[component]
fn PriceView(offerings: Vec<Offering>, planned: Vec<PriceVersion>) -> impl IntoView {
    let currency = use_session().me.currency;
    let all = offerings.clone();
    let state = PricesState {
        offerings: RwSignal::new(offerings),
        planned: RwSignal::new(planned),
        opened: RwSignal::new(None),
        chosen: RwSignal::new(None),
        changing: RwSignal::new(false),
        withdrawing: ConfirmTarget::none(),
        changed: RwSignal::new(None),
        status: RwSignal::new(String::new()),
        waiting: RwSignal::new(None),
        second_operator: second_operator_required(),
        ready: ready(),
    };
    let refresh = Call::idle();
    Effect::new(move || {
        if state.changed.get().is_some() {
            let show = move |page: Rows<PriceVersion>| state.planned.set(page.items);
            refresh.run(api::money::planned_prices(), show);
        }
    });
    let history = |offering: Offering| view! { <History state=state offering=offering/> }.into_any();
    let histories: Vec<AnyView> = all.into_iter().map(history).collect();
    let unpriced = Memo::new(move |_| {
        state.offerings.with(|all| all.iter().filter(|offering| offering.price.version == 0).count())
    });
    let rows = move || {
        state.offerings.with(|all| all.iter().map(|offering| row(offering, state)).collect::<Vec<AnyView>>())
    };
    view! {
        <WaitingNotice waiting=state.waiting/>
        {move || warning(unpriced.get())}
        <section class="section">
            <div class="section__head">
                <h2>"Current prices"</h2>
                <div class="section__aside" role="status">{move || state.status.get()}</div>
            </div>
            <CallProblem call=refresh beside_fields=&[]/>
            {live_table(
                "Prices per hour",
                &[
                    ("Offering", ""),
                    ("Size", ""),
                    ("On demand", "num"),
                    ("Reserved", "num"),
                    ("Preemptible", "num"),
                    ("Version", "num"),
                    ("Free devices", "num"),
                    ACTIONS,
                ],
                rows.into_any(),
            )}
        </section>
        <section class="section">
            <div class="section__head"><h2>"Price history"</h2></div>
            <div class="card">{histories}</div>
        </section>
        <ChangeDialog state=state currency=currency/>
        <WithdrawDialog state=state/>
    }
}

fn warning(unpriced: usize) -> Option<AnyView> {
    (unpriced > 0).then(|| {
        let title = format!("{} without a price", counted(unpriced, "offering", "offerings"));
        view! {
            <div class="banner banner--warn">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    "Offerings without a price cannot be ordered. A price of 0 makes an offering free of charge."
                </div>
            </div>
        }
        .into_any()
    })
}

/// Returns a price of a mode; without its own price, the price on demand applies.
fn hourly(micros: Option<i64>, currency: &str) -> AnyView {
    match micros {
        Some(micros) => {
            let text = money_text(micros, currency);
            view! { {text}<span class="unit">"/h"</span> }.into_any()
        }
        None => view! { <span class="quiet">"as on demand"</span> }.into_any(),
    }
}

/// Returns the prices on demand, reserved and preemptible.
fn prices(price: &Price) -> [AnyView; 3] {
    if price.version == 0 {
        let none = || view! { <span class="quiet">"–"</span> }.into_any();
        return [view! { <span class="warn">"no price"</span> }.into_any(), none(), none()];
    }
    [
        hourly(Some(price.per_hour_micros), &price.currency),
        hourly(price.reserved_per_hour_micros, &price.currency),
        hourly(price.preemptible_per_hour_micros, &price.currency),
    ]
}

fn row(offering: &Offering, state: PricesState) -> AnyView {
    let name = match &offering.mig_profile {
        Some(profile) => format!("{} {profile}", offering.gpu_model),
        None => offering.gpu_model.clone(),
    };
    let slug = offering.slug.clone();
    let bar = offering_bar(offering);
    let simulated =
        offering.simulated.then(|| view! { " " <span class="tag tag--simulated">"simulated"</span> });
    let free = format!("{} of {}", offering.available, offering.capacity);
    let [on_demand, reserved, preemptible] = prices(&offering.price);
    let label = format!("Change price of {slug}");
    let this = offering.clone();
    let button = may(OperatorRight::ManageMoney).then(|| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !state.ready.get()
                on:click=move |_| {
                    state.chosen.set(Some(this.clone()));
                    state.changing.set(true);
                }
            >
                "Change price"
            </button>
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row">
                {name}{simulated}<span class="table__sub mono">{slug.clone()}</span>
                <PlannedNote state=state id=offering.id slug=slug/>
            </th>
            <td role="cell" data-label="Size">{bar}</td>
            <td role="cell" class="num" data-label="On demand">{on_demand}</td>
            <td role="cell" class="num" data-label="Reserved">{reserved}</td>
            <td role="cell" class="num" data-label="Preemptible">{preemptible}</td>
            <td role="cell" class="num" data-label="Version">{offering.price.version}</td>
            <td role="cell" class="num" data-label="Free devices">{free}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}
