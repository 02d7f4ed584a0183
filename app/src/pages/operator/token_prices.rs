//! Page of the prices of tokens: a price for the prompts and one for the completions of each service.

use std::future::Future;

use berth_service_types::services::{Service, ServiceProtocol, TokenPrice};
use berth_types::money::{money_text, parse_amount_micros, typed_amount};
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use leptos::prelude::*;

use super::super::curl::ListCurl;
use super::super::dialog_form::DialogForm;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, ready};
use super::{is_operator, may, read_only};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/prompt_micros_per_million", "/completion_micros_per_million"];
/// The greatest price of a million tokens, in micro-units of the currency.
const MAX_MICROS: i64 = 1_000_000_000_000;

fn load() -> impl Future<Output = Answer<Vec<Service>>> + Send + 'static {
    let services = api::services::list_of_all();
    async move { Ok(services.await?.items) }
}

/// The page of the prices of tokens.
#[component]
pub fn TokenPricesPage() -> impl IntoView {
    if is_operator() { view! { <TokenPrices/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn TokenPrices() -> impl IntoView {
    let data: Resource<Answer<Vec<Service>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Prices of tokens".to_owned()>
            <p class="page__lead">
                "A service can have a price for the tokens of its requests, besides the price of the time of its replicas. Without a price tokens are free. The organization of the key pays. The tokens of a request without a key are free."
            </p>
            {answer_view(data, |services: Vec<Service>| view! { <PriceList services=services/> }.into_any())}
        </Page>
    }
}

/// Returns the slug of the organization of a service, from its path at the gateways.
fn org_slug(service: &Service) -> String {
    service.path.split('/').nth(2).unwrap_or_default().to_owned()
}

/// Parses the prices for a million tokens.
///
/// # Errors
/// One error for each invalid amount.
fn parse_price(prompt: &str, completion: &str) -> Result<TokenPrice, Vec<FieldError>> {
    let mut errors = Vec::new();
    let mut amount = |text: &str, pointer: &str| {
        let micros = parse_amount_micros(text.trim());
        micros.filter(|micros| micros % 1_000 == 0 && *micros <= MAX_MICROS).unwrap_or_else(|| {
            let detail = "Enter an amount from 0 to 1000000 with at most three decimals, such as 0.15.";
            errors.push(FieldError::new(pointer, detail));
            0
        })
    };
    let price = TokenPrice {
        prompt_micros_per_million: amount(prompt, "/prompt_micros_per_million"),
        completion_micros_per_million: amount(completion, "/completion_micros_per_million"),
    };
    if errors.is_empty() { Ok(price) } else { Err(errors) }
}

/// The signals of the page.
#[derive(Clone, Copy)]
struct State {
    services: RwSignal<Vec<Service>>,
    /// The service whose price changes.
    chosen: RwSignal<Option<Service>>,
    open: RwSignal<bool>,
}

#[component]
fn PriceList(services: Vec<Service>) -> impl IntoView {
    let currency = use_session().me.currency;
    let state =
        State { services: RwSignal::new(services), chosen: RwSignal::new(None), open: RwSignal::new(false) };
    let (writes, ready) = (may(OperatorRight::ManageMoney), ready());
    let shown = StoredValue::new(currency.clone());
    view! {
        {read_only(OperatorRight::ManageMoney)}
        <section class="section">
            {move || {
                state
                    .services
                    .with(|services| shown.with_value(|currency| table(services, currency, writes, state, ready)))
            }}
            <ListCurl path=Signal::derive(|| "/operator/services".to_owned()) label="Services with curl"/>
        </section>
        <PriceDialog state=state currency=currency/>
    }
}

fn table(
    services: &[Service],
    currency: &str,
    writes: bool,
    state: State,
    ready: ReadSignal<bool>,
) -> AnyView {
    if services.is_empty() {
        return empty("No services yet. An organization creates them on its page Services.");
    }
    table_of(
        "Prices of tokens",
        &[("Service", ""), ("Organization", ""), ("Prompts", "num"), ("Completions", "num"), ACTIONS],
        services.iter().map(|service| row(service, currency, writes, state, ready)).collect(),
    )
}

fn row(service: &Service, currency: &str, writes: bool, state: State, ready: ReadSignal<bool>) -> AnyView {
    // Only answers with the interface of OpenAI count tokens.
    let has_tokens = service.protocol == ServiceProtocol::OpenAi;
    let price = |micros: i64| match micros {
        _ if !has_tokens => "no tokens".to_owned(),
        0 => "free".to_owned(),
        micros => format!("{} for a million", money_text(micros, currency)),
    };
    let TokenPrice { prompt_micros_per_million, completion_micros_per_million } = service.token_price;
    let one = service.clone();
    let button = (writes && has_tokens).then(|| {
        let label = format!("Set price of {}", service.name);
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !ready.get()
                on:click=move |_| {
                    state.chosen.set(Some(one.clone()));
                    state.open.set(true);
                }
            >
                "Set price"
            </button>
        }
    });
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{service.name.clone()}</span></th>
            <td role="cell" data-label="Organization"><span class="break">{org_slug(service)}</span></td>
            <td role="cell" class="num" data-label="Prompts">{price(prompt_micros_per_million)}</td>
            <td role="cell" class="num" data-label="Completions">{price(completion_micros_per_million)}</td>
            <td role="cell" class="table__actions">{button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn PriceDialog(state: State, currency: String) -> impl IntoView {
    let call = Call::idle();
    let (prompt, completion) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let reset = move |()| {
        let price =
            state.chosen.with_untracked(|one| one.as_ref().map(|one| one.token_price).unwrap_or_default());
        prompt.set(typed_amount(price.prompt_micros_per_million));
        completion.set(typed_amount(price.completion_micros_per_million));
    };
    let submit = move |()| {
        let Some(id) = state.chosen.with_untracked(|one| one.as_ref().map(|one| one.id)) else { return };
        let price = match parse_price(&prompt.get_untracked(), &completion.get_untracked()) {
            Ok(price) => price,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        call.run(api::services::put_token_price(id, &price), move |changed: Service| {
            state.services.update(|all| {
                all.iter_mut().filter(|one| one.id == changed.id).for_each(|one| one.clone_from(&changed));
            });
            state.open.set(false);
        });
    };
    let title = Signal::derive(move || {
        state.chosen.with(|one| match one {
            Some(one) => format!("Price of the tokens of {}", one.name),
            None => "Price of tokens".to_owned(),
        })
    });
    view! {
        <DialogForm
            id="token-price"
            title=title
            open=state.open
            call=call
            keep="Keep price"
            verb="Set price"
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>
                "The price applies to requests from now on. Earlier charges do not change. With a price the gateways answer only /v1/chat/completions, /v1/completions, /v1/embeddings and /v1/models of the service."
            </p>
            <CallProblem call=call beside_fields=FIELDS/>
            <NumberField
                label="Prompts"
                id="price-prompts"
                unit=currency.clone()
                value=prompt
                hint="For a million tokens. 0: free of charge."
                error=call.field("/prompt_micros_per_million")
            />
            <NumberField
                label="Completions"
                id="price-completions"
                unit=currency
                value=completion
                hint="For a million tokens. 0: free of charge."
                error=call.field("/completion_micros_per_million")
            />
        </DialogForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_price_comes_back_and_each_bad_amount_has_its_error() {
        for (prompt, completion) in [(0, 0), (150_000, 600_000), (1_000, 1_000_000_000_000)] {
            let price =
                TokenPrice { prompt_micros_per_million: prompt, completion_micros_per_million: completion };
            assert_eq!(
                parse_price(&typed_amount(prompt), &format!(" {} ", typed_amount(completion))),
                Ok(price)
            );
        }
        let pointers = |prompt: &str, completion: &str| {
            let errors = parse_price(prompt, completion).unwrap_err();
            errors.into_iter().map(|error| error.pointer).collect::<Vec<_>>()
        };
        assert_eq!(pointers("free", ""), FIELDS);
        assert_eq!(pointers("1", "-1"), [FIELDS[1]]);
        assert_eq!(pointers("0.0001", "1000001"), FIELDS);
        assert_eq!(pointers("1000000.001", "1000000"), [FIELDS[0]]);
    }
}
