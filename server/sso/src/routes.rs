//! The routes of single sign-on: sign-ins, sign-outs by providers, settings, domains and identities.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, post_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{AppendHeaders, IntoResponse, NoContent, Response};
use berth_oidc::find_logout_token;
use berth_rest::authentication::{SignedUnenrolled, session_cookie, set_cookie};
use berth_rest::extract::RawBody;
use berth_rest::operations::{doc, logout_token, redirect};
use berth_rest::scopes::ANY;
use berth_rest::{Disconnect, Failed, Json, Path, Query, Sender, Signed};
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::sso::{CheckDomain, ClaimedDomains, ConfirmDomain, Identities, PutSsoProvider, SsoSettings};
use schemars::JsonSchema;
use serde::Deserialize;

use super::ends::refused_logout;
use super::flow::{FLOW_S, MAX_SLUG_BYTES, Return, Returned, Start};
use super::{Refused, SingleSignOn};
use berth_accounts::accounts::SignInOrigin;
use berth_accounts::accounts::routes::browser;

pub fn routes() -> ApiRouter<SingleSignOn> {
    ApiRouter::new()
        .api_route(
            "/sso/start",
            get_with(
                start,
                redirect(ANY, "Begins a single sign-on; a link of another site leads to the sign-in page."),
            ),
        )
        .api_route(
            "/sso/operators/callback",
            get_with(
                callback_of_operators,
                redirect(ANY, "Completes a sign-in after the operators' provider."),
            ),
        )
        .api_route(
            "/sso/{org}/callback",
            get_with(callback, redirect(ANY, "Completes a sign-in after the provider of an organization.")),
        )
        .api_route(
            "/sso/operators/logout",
            post_with(
                log_out_operators,
                logout_token(ANY, "Ends sessions that the operators' provider names."),
            ),
        )
        .api_route(
            "/sso/{org}/logout",
            post_with(
                log_out,
                logout_token(ANY, "Ends sessions that the provider of an organization names."),
            ),
        )
        .api_route(
            "/orgs/{org}/sso-provider",
            get_with(settings, doc(ApiScope::MembersRead, "Gives the single sign-on of an organization."))
                .put_with(put_provider, doc(ApiScope::Admin, "Sets the provider of an organization."))
                .delete_with(
                    delete_provider,
                    doc(ApiScope::Admin, "Removes the provider of an organization."),
                ),
        )
        .api_route(
            "/orgs/{org}/sso-domains/check",
            post_with(
                check_domain,
                doc(ApiScope::Admin, "Checks the DNS record of a domain of an organization now."),
            ),
        )
        .api_route(
            "/operator/sso-domains",
            get_with(
                claimed_domains,
                doc(ApiScope::MembersRead, "Lists the domains of single sign-on of all organizations."),
            ),
        )
        .api_route(
            "/operator/orgs/{org}/sso-domains",
            put_with(
                confirm_domain,
                doc(ApiScope::Admin, "Confirms a domain for an organization, or takes it back."),
            ),
        )
        .api_route(
            "/me/identities",
            get_with(identities, doc(ApiScope::Admin, "Gives the caller's identities at providers.")),
        )
}

/// The choice of the provider.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct StartQuery {
    /// The e-mail address of the person: its domain chooses the organization. At most 254 bytes.
    #[schemars(length(max = 254))]
    email: Option<String>,
    /// The slug of the organization. Without both the provider is that of the operators.
    #[schemars(length(max = 40))]
    org: Option<String>,
}

/// The answer of a provider. Further parameters have no effect.
#[derive(Deserialize, JsonSchema)]
struct CallbackQuery {
    /// The code of the sign-in, at most 4096 bytes.
    #[schemars(length(max = 4096))]
    code: Option<String>,
    /// The state of the first step.
    #[schemars(length(max = 100))]
    state: Option<String>,
    /// The error of the provider.
    #[schemars(length(max = 200))]
    error: Option<String>,
    /// The issuer of the provider (RFC 9207).
    #[schemars(length(max = 500))]
    iss: Option<String>,
}

/// The name of the cookie between the two steps.
const fn flow_cookie_name(https: bool) -> &'static str {
    if https { "__Host-berth_sso" } else { "berth_sso" }
}

/// The header that sets the cookie between the two steps. The return from the provider is a request of another site,
/// so the cookie is `Lax`.
fn flow_cookie(https: bool, value: &str, max_age_s: i64) -> String {
    let secure = if https { "; Secure" } else { "" };
    let name = flow_cookie_name(https);
    format!("{name}={value}; Path=/; Max-Age={max_age_s}; HttpOnly; SameSite=Lax{secure}")
}

fn find_flow_cookie(headers: &HeaderMap, https: bool) -> Option<String> {
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == flow_cookie_name(https)).map(|(_, value)| value.to_owned())
}

/// Redirects a browser and sets these cookies.
fn see_other(location: String, cookies: Vec<String>) -> Response {
    let cookies = AppendHeaders(cookies.into_iter().map(|cookie| (header::SET_COOKIE, cookie)));
    (StatusCode::SEE_OTHER, [(header::LOCATION, location)], cookies).into_response()
}

/// Leads the browser to the sign-in page, which has the sentences about the failure.
fn refused(refused: &Refused, cookies: Vec<String>) -> Response {
    see_other(format!("/sign-in?sso={}", refused.failure.name()), cookies)
}

/// True if another site leads the browser here. Browsers without the header pass.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| !matches!(site, b"same-origin" | b"none"))
}

/// The sign-in page with the button to the provider of an organization.
fn sign_in_page(org: Option<&str>) -> String {
    let is_slug = |slug: &&str| {
        !slug.is_empty()
            && slug.len() <= MAX_SLUG_BYTES
            && slug.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
    };
    org.filter(is_slug).map_or_else(|| "/sign-in".to_owned(), |slug| format!("/sign-in?org={slug}"))
}

async fn start(
    State(sso): State<SingleSignOn>,
    Sender(address): Sender,
    headers: HeaderMap,
    Query(query): Query<StartQuery>,
) -> Result<Response, Failed> {
    // A link of another site would sign the person in without an act of the person.
    if is_cross_site(&headers) {
        return Ok(see_other(sign_in_page(query.org.as_deref()), Vec::new()));
    }
    let https = sso.providers.context.settings.https;
    let choice = Start { email: query.email, org: query.org };
    Ok(match sso.start(&choice, address).await {
        Ok(begun) => see_other(begun.location, vec![flow_cookie(https, &begun.cookie, FLOW_S)]),
        Err(problem) => {
            tracing::info!(failure = problem.failure.name(), detail = problem.detail, "no single sign-on");
            refused(&problem, Vec::new())
        }
    })
}

async fn callback(
    State(sso): State<SingleSignOn>,
    Sender(address): Sender,
    disconnect: Disconnect,
    Path(org): Path<OrgId>,
    headers: HeaderMap,
    Query(query): Query<CallbackQuery>,
) -> Result<Response, Failed> {
    let from = SignInOrigin { address, disconnect, ..SignInOrigin::default() };
    Ok(complete(&sso, Some(org), from, &headers, query).await)
}

async fn callback_of_operators(
    State(sso): State<SingleSignOn>,
    Sender(address): Sender,
    disconnect: Disconnect,
    headers: HeaderMap,
    Query(query): Query<CallbackQuery>,
) -> Result<Response, Failed> {
    let from = SignInOrigin { address, disconnect, ..SignInOrigin::default() };
    Ok(complete(&sso, None, from, &headers, query).await)
}

/// Completes a sign-in at the address of an organization, or (`None`) of the operators.
async fn complete(
    sso: &SingleSignOn,
    org: Option<OrgId>,
    from: SignInOrigin,
    headers: &HeaderMap,
    query: CallbackQuery,
) -> Response {
    let settings = &sso.providers.context.settings;
    let former = session_cookie(headers, settings.https);
    let from = SignInOrigin { browser: browser(headers), former, ..from };
    let returned = Return { code: query.code, state: query.state, error: query.error, iss: query.iss };
    let cookie = find_flow_cookie(headers, settings.https);
    let mut cookies = vec![flow_cookie(settings.https, "", 0)];
    match sso.complete(org, returned, cookie.as_deref(), from).await {
        Ok(Returned::Session(session)) => {
            cookies.push(set_cookie(settings.https, &session, settings.session_absolute_s));
            see_other("/".to_owned(), cookies)
        }
        // Browsers send no part after `#`, so the challenge is in no log.
        Ok(Returned::Challenge(step)) => see_other(format!("/sign-in#{}", step.challenge), cookies),
        Err(problem) => refused(&problem, cookies),
    }
}

async fn end_sessions(
    sso: &SingleSignOn,
    org: Option<OrgId>,
    address: Option<std::net::IpAddr>,
    body: &[u8],
) -> Result<Response, Failed> {
    if let Some(wait_s) = sso.logout_throttle.count_token(address) {
        return Err(Problem::throttled("Too many refused logout tokens from your network.", wait_s).into());
    }
    let token = find_logout_token(body).ok_or_else(|| Problem::malformed("The form has no logout_token."))?;
    sso.log_out(org, &token).await.map_err(refused_logout)?;
    sso.logout_throttle.record_success(address);
    Ok(StatusCode::OK.into_response())
}

async fn log_out(
    State(sso): State<SingleSignOn>,
    Sender(address): Sender,
    Path(org): Path<OrgId>,
    RawBody(body): RawBody,
) -> Result<Response, Failed> {
    end_sessions(&sso, Some(org), address, &body).await
}

async fn log_out_operators(
    State(sso): State<SingleSignOn>,
    Sender(address): Sender,
    RawBody(body): RawBody,
) -> Result<Response, Failed> {
    end_sessions(&sso, None, address, &body).await
}

async fn settings(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<SsoSettings>, Failed> {
    Ok(Answer(sso.providers.settings(&caller, org).await?))
}

async fn put_provider(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<PutSsoProvider>,
) -> Result<Answer<SsoSettings>, Failed> {
    Ok(Answer(sso.providers.put_provider(&caller, org, body.value).await?))
}

async fn delete_provider(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<NoContent, Failed> {
    sso.providers.delete_provider(&caller, org).await?;
    Ok(NoContent)
}

async fn check_domain(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<CheckDomain>,
) -> Result<Answer<SsoSettings>, Failed> {
    Ok(Answer(sso.providers.check_domain(&caller, org, body.value).await?))
}

/// The query of the list of domains.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct DomainsQuery {
    /// Only domains with this text in the domain or in the name of the organization, without regard to case; at most 100
    /// characters.
    #[schemars(length(max = 100))]
    text: Option<String>,
}

async fn claimed_domains(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Query(query): Query<DomainsQuery>,
) -> Result<Answer<ClaimedDomains>, Failed> {
    Ok(Answer(sso.providers.claimed_domains(&caller, &query.text.unwrap_or_default()).await?))
}

async fn confirm_domain(
    State(sso): State<SingleSignOn>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<ConfirmDomain>,
) -> Result<Answer<ClaimedDomains>, Failed> {
    Ok(Answer(sso.providers.confirm_domain(&caller, org, body.value).await?))
}

async fn identities(
    State(sso): State<SingleSignOn>,
    SignedUnenrolled(caller): SignedUnenrolled,
) -> Result<Answer<Identities>, Failed> {
    Ok(Answer(sso.providers.identities(&caller).await?))
}
