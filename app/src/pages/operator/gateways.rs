//! Page of the gateways: the programs through which callers reach services.
//!
//! The token of a new gateway exists only in one signal of this page.

use std::future::Future;

use berth_service_types::gateways::{Gateway, NewGateway};
use berth_types::money::money_text;
use berth_types::operators::OperatorRight;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::card_form::CardForm;
use super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::curl::ListCurl;
use super::super::limits::replace;
use super::super::org_data::answer_view;
use super::super::parts::{Call, FormKey, every_visible, focus_soon, origin, ready};
use super::super::shell_words::quote;
use super::{guarded, is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::session::{Page, use_session};
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/url"];

fn load() -> impl Future<Output = Answer<Vec<Gateway>>> + Send + 'static {
    let gateways = api::gateways::list();
    async move { Ok(gateways.await?.items) }
}

/// The page of all gateways.
#[component]
pub fn GatewaysPage() -> impl IntoView {
    if is_operator() { view! { <Gateways/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

#[component]
fn Gateways() -> impl IntoView {
    let data: Resource<Answer<Vec<Gateway>>> = Resource::new(|| (), |()| load());
    view! {
        <Page title="Gateways".to_owned()>
            <p class="page__lead">
                "A gateway passes the requests of callers to the replicas of services. It needs the portal only for changes. Without the portal the gateway continues with the services and keys that it has."
            </p>
            {answer_view(data, |gateways: Vec<Gateway>| view! { <GatewayList gateways=gateways/> }.into_any())}
        </Page>
    }
}

/// A new token, with the name of its gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NewToken {
    name: String,
    token: String,
    /// True for a gateway that had another token.
    replaced: bool,
}

/// Returns the lines that store a token and start its gateway. The token is in no argument, because other people of the
/// host see those.
fn start_lines(origin: &str, name: &str) -> String {
    let file = format!("{name}.token");
    format!(
        "install -m 600 /dev/null {file} && cat > {file}   # paste the token, then Enter and Ctrl+D\nberth-gateway --portal {} --token-file {file} --listen 127.0.0.1:8083 --data {name}",
        quote(origin)
    )
}

#[component]
fn GatewayList(gateways: Vec<Gateway>) -> impl IntoView {
    let gateways = RwSignal::new(gateways);
    let made = RwSignal::new(None::<NewToken>);
    let (target, renewed) = (ConfirmTarget::none(), ConfirmTarget::none());
    let ready = ready();
    let currency = StoredValue::new(use_session().me.currency);
    every_visible(5_000, move || {
        let fresh = load();
        spawn_local(async move {
            // The next round repeats a failed request. The page may have been left meanwhile.
            if let Ok(fresh) = fresh.await
                && gateways.try_get_untracked().is_some()
            {
                replace(gateways, fresh);
            }
        });
    });
    let writes = may(OperatorRight::ManageFleet);
    view! {
        {move || made.get().map(|made| view! { <Token made=made/> })}
        {guarded(OperatorRight::ManageFleet, view! { <GatewayForm gateways=gateways made=made/> }.into_any())}
        <section class="section">
            <div class="section__head"><h2>"Existing gateways"</h2></div>
            {move || gateways.with(|gateways| table(gateways, (writes, currency), (target, renewed), ready))}
            <ListCurl path=Signal::derive(|| "/operator/gateways".to_owned()) label="Gateways with curl"/>
        </section>
        <RemoveDialog gateways=gateways target=target/>
        <TokenDialog made=made target=renewed/>
    }
}

/// The token of a gateway and the next step, shown once.
#[component]
fn Token(made: NewToken) -> impl IntoView {
    let NewToken { name, token, replaced } = made;
    let origin = origin();
    Effect::new(|| focus_soon("#gateway-token".to_owned()));
    let next = if replaced {
        view! {
            <p>
                "Put the token into the token file of the gateway, and restart the gateway with the same data directory."
            </p>
        }
        .into_any()
    } else {
        let lines = Signal::derive(move || start_lines(&origin.get(), &name));
        view! {
            <p>"Store the token in a file on the host of the gateway, and start it:"</p>
            <CopyBlock text=lines label="Start of the gateway".to_owned()/>
        }
        .into_any()
    };
    view! {
        <section class="secret" role="status" id="gateway-token" tabindex="-1">
            <p>
                <strong>"Copy the token now."</strong>
                " It is shown only once; the portal stores only its hash. Anyone with the token gets the routes of all services."
            </p>
            <CopyBlock text=Signal::derive(move || token.clone()) label="Token of the gateway".to_owned()/>
            {next}
        </section>
    }
}

#[component]
fn GatewayForm(gateways: RwSignal<Vec<Gateway>>, made: RwSignal<Option<NewToken>>) -> impl IntoView {
    let call = Call::idle();
    let key = FormKey::new(call);
    let (name, url) = (RwSignal::new(String::new()), RwSignal::new(String::new()));
    let submit = move |()| {
        let body = NewGateway {
            name: name.get_untracked().trim().to_owned(),
            url: url.get_untracked().trim().to_owned(),
        };
        call.run(api::gateways::create(&body, key.for_body(&body)), move |mut added: Gateway| {
            key.reset();
            // The list contains no tokens.
            let token = added.token.take();
            made.set(token.map(|token| NewToken { name: added.name.clone(), token, replaced: false }));
            gateways.update(|gateways| {
                gateways.retain(|known| known.id != added.id);
                gateways.push(added);
            });
            name.set(String::new());
            url.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New gateway"
            call=call
            beside_fields=FIELDS
            verb="Add gateway"
            submit=Callback::new(submit)
        >
            <div class="field-row">
                <Field
                    label="Name"
                    name="gateway-name"
                    kind="text"
                    value=name
                    hint=Some("Lower-case letters, digits and hyphens, such as edge-1.".to_owned())
                    error=call.field("/name")
                />
                <Field
                    label="URL"
                    name="gateway-url"
                    kind="text"
                    value=url
                    hint=Some("The address for callers, such as https://models.example.org. Shown on the pages of services.".to_owned())
                    error=call.field("/url")
                />
            </div>
        </CardForm>
    }
}

fn table(
    gateways: &[Gateway],
    terms: (bool, StoredValue<String>),
    targets: (ConfirmTarget<Gateway>, ConfirmTarget<Gateway>),
    ready: ReadSignal<bool>,
) -> AnyView {
    if gateways.is_empty() {
        return empty(
            "No gateways yet. Callers reach services only through a gateway: add one above and start it.",
        );
    }
    table_of(
        "Gateways",
        &[
            ("Name", ""),
            ("URL", ""),
            ("Version", ""),
            ("Last seen", ""),
            ("Open credit", ""),
            ("Created", ""),
            ACTIONS,
        ],
        gateways.iter().map(|gateway| row(gateway, terms, targets, ready)).collect(),
    )
}

fn row(
    gateway: &Gateway,
    (writes, currency): (bool, StoredValue<String>),
    (target, renewed): (ConfirmTarget<Gateway>, ConfirmTarget<Gateway>),
    ready: ReadSignal<bool>,
) -> AnyView {
    let or_dash = |text: &str| if text.is_empty() { "–".to_owned() } else { text.to_owned() };
    let seen = match gateway.last_seen_at {
        Some(at) => view! { <When at=at/> }.into_any(),
        None => "never".into_any(),
    };
    let open = currency.with_value(|currency| money_text(gateway.open_micros, currency));
    let label = format!("New token for {}", gateway.name);
    let renew = writes.then(|| renewed.button(gateway.clone(), "New token", label, ready));
    let label = format!("Remove {}", gateway.name);
    let button = writes.then(|| target.button(gateway.clone(), "Remove", label, ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row"><span class="break">{gateway.name.clone()}</span></th>
            <td role="cell" data-label="URL"><span class="mono break">{or_dash(&gateway.url)}</span></td>
            <td role="cell" data-label="Version">{or_dash(&gateway.version)}</td>
            <td role="cell" class="nowrap" data-label="Last seen">{seen}</td>
            <td role="cell" class="nowrap" data-label="Open credit">{open}</td>
            <td role="cell" data-label="Created">
                <When at=gateway.created_at/>
                <span class="table__sub">{format!("by {}", gateway.created_by)}</span>
            </td>
            <td role="cell" class="table__actions">{renew} {button}</td>
        </tr>
    }
    .into_any()
}

#[component]
fn RemoveDialog(gateways: RwSignal<Vec<Gateway>>, target: ConfirmTarget<Gateway>) -> impl IntoView {
    let call = Call::idle();
    let remove = move |()| {
        let Some(id) = target.one.with_untracked(|one| one.as_ref().map(|one| one.id)) else { return };
        call.run(api::gateways::remove(id), move |()| {
            gateways.update(|gateways| gateways.retain(|gateway| gateway.id != id));
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="remove-gateway"
            title=target.title("Remove", "gateway", |gateway| gateway.name.as_str())
            open=target.open
            call=call
            keep="Keep gateway"
            verb="Remove gateway"
            confirm=Callback::new(remove)
        >
            <p>
                "Its token ends at once, and the gateway refuses requests as soon as the portal refuses it. Callers with its address get no answers from then on. Stop its program too."
            </p>
            <p>
                "Its open credit ends at once: what it reported is charged, and the rest is free again. Charges that it has not reported yet are forgiven."
            </p>
        </ConfirmDialog>
    }
}

#[component]
fn TokenDialog(made: RwSignal<Option<NewToken>>, target: ConfirmTarget<Gateway>) -> impl IntoView {
    let call = Call::idle();
    let replace = move |()| {
        let Some(id) = target.one.with_untracked(|one| one.as_ref().map(|one| one.id)) else { return };
        call.run(api::gateways::replace_token(id), move |gateway: Gateway| {
            let Gateway { name, token, .. } = gateway;
            made.set(token.map(|token| NewToken { name, token, replaced: true }));
            target.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="replace-gateway-token"
            title=target.title("Replace the token of", "gateway", |gateway| gateway.name.as_str())
            open=target.open
            call=call
            keep="Keep token"
            verb="Replace token"
            confirm=Callback::new(replace)
        >
            <p>
                "The former token is refused at once. The gateway continues with the services and keys that it has. Put the new token into its file and restart it with the same data directory: its journal keeps the use. Its open credit ends, and charges that it has not reported are forgiven."
            </p>
        </ConfirmDialog>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_in_a_file_and_not_in_the_command() {
        let lines = start_lines("https://berth.example", "edge-1");
        let (_, command) = lines.split_once('\n').unwrap();
        assert_eq!(
            command,
            "berth-gateway --portal https://berth.example --token-file edge-1.token --listen 127.0.0.1:8083 --data edge-1"
        );
    }
}
