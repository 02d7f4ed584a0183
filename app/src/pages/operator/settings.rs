//! Page of the portal settings: name, addresses, accent colour, public offer and logo.

use std::future::Future;

use berth_types::operators::OperatorRight;
use berth_types::portal::{Accent, PortalSettings};
use berth_types::sso::ClaimedDomains;
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;

use super::super::card_form::CardForm;
use super::super::confirm::ConfirmDialog;
use super::super::org_data::answer_view;
use super::super::parts::{Call, CallProblem, FieldError, ready};
use super::sso_domains::SsoDomains;
use super::{guarded, is_operator, may};
use crate::api;
use crate::api::Answer;
use crate::identity::use_logo;
use crate::session::Page;
use crate::ui::*;

const FIELDS: &[&str] = &["/name", "/support_email", "/terms_url", "/max_token_days"];
const LOGO_FIELDS: &[&str] = &["/png"];

/// The page of the portal settings.
#[component]
pub fn SettingsPage() -> impl IntoView {
    if is_operator() { view! { <Settings/> }.into_any() } else { view! { <NotFound/> }.into_any() }
}

/// Loads the domains with a text. Returns the text too.
fn load_domains(text: String) -> impl Future<Output = Answer<(String, ClaimedDomains)>> + Send + 'static {
    let domains = api::sso::claimed_domains(&text);
    async move { Ok((text, domains.await?)) }
}

#[component]
fn Settings() -> impl IntoView {
    let data: Resource<Answer<PortalSettings>> = Resource::new(|| (), |()| api::portal::settings());
    let query = use_query_map();
    let text = Memo::new(move |_| {
        query.with(|query| query.get("domain").map(|text| text.trim().to_owned()).unwrap_or_default())
    });
    // The domains are of people, which not each role reads.
    let domains = may(OperatorRight::Inspect).then(|| {
        let domains: Resource<Answer<(String, ClaimedDomains)>> =
            Resource::new(move || text.get(), load_domains);
        answer_view(domains, |(text, domains)| view! { <SsoDomains domains=domains text=text/> }.into_any())
    });
    view! {
        <Page title="Portal settings".to_owned()>
            <p class="page__lead">
                "Name and look apply to all pages, and to open pages after their next load. Visitors see them without an account."
            </p>
            {guarded(
                OperatorRight::ManagePortal,
                view! {
                    {answer_view(data, |settings| view! { <SettingsForm settings=settings/> }.into_any())}
                    <LogoForm/>
                }
                .into_any(),
            )}
            {domains}
        </Page>
    }
}

/// Returns the text without white space around it; `None` for an empty one.
fn optional(text: RwSignal<String>) -> Option<String> {
    text.with_untracked(|text| Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_owned))
}

#[component]
fn SettingsForm(settings: PortalSettings) -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let status = RwSignal::new("");
    let name = RwSignal::new(settings.name);
    let support = RwSignal::new(settings.support_email.unwrap_or_default());
    let terms = RwSignal::new(settings.terms_url.unwrap_or_default());
    let accent = RwSignal::new(settings.accent);
    let public = RwSignal::new(settings.offer_public);
    let token_days = RwSignal::new(settings.max_token_days.to_string());
    let expiry_required = RwSignal::new(settings.token_expiry_required);
    let submit = move |()| {
        status.set("");
        let input = PortalSettings {
            name: name.with_untracked(|name| name.trim().to_owned()),
            support_email: optional(support),
            terms_url: optional(terms),
            accent: accent.get_untracked(),
            offer_public: public.get_untracked(),
            // The portal refuses 0 with the permitted numbers.
            max_token_days: token_days.with_untracked(|days| days.trim().parse().unwrap_or(0)),
            token_expiry_required: expiry_required.get_untracked(),
        };
        call.run(api::portal::set_settings(&input), move |fresh: PortalSettings| {
            name.set(fresh.name);
            show_accent(fresh.accent);
            status.set("Saved.");
        });
    };
    view! {
        <CardForm
            title="Name and look"
            call=call
            beside_fields=FIELDS
            verb="Save settings"
            status=status
            submit=Callback::new(submit)
        >
            <Field label="Name" name="portal-name" kind="text" value=name error=call.field("/name")/>
            <Field
                label="Support e-mail"
                name="support-email"
                kind="email"
                value=support
                hint=Some("Optional. Visitors see the address.".to_owned())
                error=call.field("/support_email")
            />
            <Field
                label="Terms of use"
                name="terms-url"
                kind="url"
                value=terms
                hint=Some("Optional. An address with https.".to_owned())
                error=call.field("/terms_url")
            />
            <AccentChoice accent=accent ready=ready/>
            <label class="check">
                <input
                    type="checkbox"
                    checked=settings.offer_public
                    prop:checked=move || public.get()
                    disabled=move || !ready.get()
                    on:change=move |event| public.set(event_target_checked(&event))
                />
                <span>
                    "Public prices"
                    <span class="check__hint">"The start page and GET /api/v1/offer show prices and free boards by model."</span>
                </span>
            </label>
            <Field
                label="Longest token lifetime (days)"
                name="token-days"
                kind="number"
                value=token_days
                hint=Some("Applies to new API tokens with an expiry.".to_owned())
                error=call.field("/max_token_days")
            />
            <label class="check">
                <input
                    type="checkbox"
                    checked=settings.token_expiry_required
                    prop:checked=move || expiry_required.get()
                    disabled=move || !ready.get()
                    on:change=move |event| expiry_required.set(event_target_checked(&event))
                />
                <span>
                    "Expiry of tokens required"
                    <span class="check__hint">"The portal refuses new API tokens without an expiry. Present tokens stay as they are."</span>
                </span>
            </label>
        </CardForm>
    }
}

/// The accent colours, each with a sample.
#[component]
fn AccentChoice(accent: RwSignal<Accent>, ready: ReadSignal<bool>) -> impl IntoView {
    let choices = Accent::ALL
        .into_iter()
        .map(|one| {
            let at_first = accent.get_untracked() == one;
            view! {
                <label>
                    <input
                        type="radio"
                        name="accent"
                        value=one.name()
                        checked=at_first
                        prop:checked=move || accent.get() == one
                        disabled=move || !ready.get()
                        on:change=move |_| accent.set(one)
                    />
                    <span class="accent-sample" data-accent=one.name() aria-hidden="true"></span>
                    {one.name()}
                </label>
            }
        })
        .collect_view();
    view! {
        <div class="field field--wide">
            <span class="field__label" id="accent-label">"Accent colour"</span>
            <div class="segmented" role="radiogroup" aria-labelledby="accent-label">{choices}</div>
        </div>
    }
}

/// Applies a saved accent colour to the open page.
fn show_accent(accent: Accent) {
    #[cfg(feature = "hydrate")]
    if let Some(root) = document().document_element() {
        // It fails only for an invalid name of the attribute.
        let _ = root.set_attribute("data-accent", accent.name());
    }
    #[cfg(not(feature = "hydrate"))]
    let _ = accent;
}

/// The logo with its upload and its removal.
#[component]
fn LogoForm() -> impl IntoView {
    let ready = ready();
    let call = Call::idle();
    let remove = Call::idle();
    let removing = RwSignal::new(false);
    let logo = use_logo();
    let wrong = call.field("/png");
    let on_change = move |event: leptos::ev::Event| {
        #[cfg(feature = "hydrate")]
        browser::send(&event, call, logo);
        #[cfg(not(feature = "hydrate"))]
        let _ = &event;
    };
    let confirm = move |()| {
        remove.run(api::portal::remove_logo(), move |()| {
            logo.set(None);
            removing.set(false);
        });
    };
    let shown = move || match logo.get() {
        Some(logo) => view! {
            <p>
                <img
                    class="brand__logo"
                    src=logo.path
                    width=logo.width_px.to_string()
                    height=logo.height_px.to_string()
                    alt="Present logo"
                />
            </p>
        }
        .into_any(),
        None => view! { <p class="quiet">"No logo. The pages show the mark of Berth."</p> }.into_any(),
    };
    let button = move || {
        logo.with(Option::is_some).then(|| {
            view! {
                <p>
                    <button
                        class="btn btn--danger btn--small"
                        type="button"
                        disabled=move || !ready.get()
                        on:click=move |_| removing.set(true)
                    >
                        "Remove logo"
                    </button>
                </p>
            }
        })
    };
    view! {
        <section class="card">
            <h2 class="card__title">"Logo"</h2>
            <CallProblem call=call beside_fields=LOGO_FIELDS/>
            {shown}
            <div class="field field--wide">
                <label class="field__label" for="logo">"New logo"</label>
                <input
                    id="logo"
                    type="file"
                    accept="image/png"
                    disabled=move || !ready.get() || call.pending.get()
                    aria-describedby="logo-hint logo-error"
                    aria-invalid=move || wrong.get().map(|_| "true")
                    on:change=on_change
                />
                <p class="field__hint" id="logo-hint">
                    "A PNG image of at most 64 KiB and 1024 pixels in width and height. It is shown 24 pixels high."
                </p>
                <FieldError id="logo-error" error=wrong/>
            </div>
            {button}
            <ConfirmDialog
                id="remove-logo"
                title="Remove the logo?".to_owned()
                open=removing
                call=remove
                keep="Keep logo".to_owned()
                verb="Remove logo".to_owned()
                confirm=Callback::new(confirm)
            >
                <p>"All pages show the mark of Berth after their next load. The image is deleted."</p>
            </ConfirmDialog>
        </section>
    }
}

#[cfg(feature = "hydrate")]
mod browser {
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use berth_types::portal::{Logo, PutLogo};
    use berth_types::problems::Problem;
    use js_sys::Uint8Array;
    use leptos::prelude::*;
    use wasm_bindgen_futures::JsFuture;
    use web_sys::{File, HtmlInputElement};

    use super::super::super::parts::Call;
    use crate::api;

    /// The largest image that the portal accepts.
    const MAX_BYTES: f64 = 65_536.0;

    /// Sends the selected image.
    pub fn send(event: &leptos::ev::Event, call: Call, logo: RwSignal<Option<Logo>>) {
        let input: HtmlInputElement = event_target(event);
        let Some(file) = input.files().and_then(|files| files.get(0)) else { return };
        // An empty input lets the user select the same file again.
        input.set_value("");
        if file.size() > MAX_BYTES {
            call.problem.set(Some(Problem::invalid_field("/png", "Use an image of at most 64 KiB.")));
            return;
        }
        let request = async move {
            let Some(png) = read(&file).await else {
                let detail = "The browser can no longer read the file. Select it again.";
                return Err(Problem::invalid_field("/png", detail));
            };
            api::portal::set_logo(&PutLogo { png }).await
        };
        call.run(request, move |fresh: Logo| logo.set(Some(fresh)));
    }

    /// Reads a file into base64.
    async fn read(file: &File) -> Option<String> {
        let buffer = JsFuture::from(file.array_buffer()).await.ok()?;
        Some(STANDARD.encode(Uint8Array::new(&buffer).to_vec()))
    }
}
