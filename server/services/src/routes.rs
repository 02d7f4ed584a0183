//! The routes of services, inference keys and gateways.

use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with, put_with};
use axum::extract::State;
use axum::response::NoContent;
use axum::{Extension, Json as Answer};
use berth_rest::answers::{Created, NotKept};
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::{answers, doc};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_service_types::gateways::{Gateway, GatewayAddress, NewGateway};
use berth_service_types::hosts::{CheckHost, ClaimedHost, ConfirmHost, ServiceHost};
use berth_service_types::keys::{InferenceKey, NewInferenceKey};
use berth_service_types::revisions::{NewRevision, PutTraffic, Revision};
use berth_service_types::services::{NewService, PatchService, Service, ServiceHour, TokenPrice};
use berth_types::ids::{GatewayId, InferenceKeyId, OrgId, RevisionId, ServiceId};
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

use crate::Services;

/// The most hours of use in an answer: a week.
const MAX_HOURS: u32 = 168;

pub fn services() -> ApiRouter<Services> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/services",
            get_with(list, doc(ApiScope::ServicesRead, "Lists the services of an organization.")).post_with(
                create,
                doc(ApiScope::ServicesWrite, "Creates a service with its first revision."),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}",
            get_with(show, doc(ApiScope::ServicesRead, "Gives a service."))
                .patch_with(change, doc(ApiScope::ServicesWrite, "Changes a service, or stops it."))
                .delete_with(
                    remove,
                    doc(ApiScope::ServicesWrite, "Deletes a service and ends its replicas."),
                ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/revisions",
            get_with(revisions, doc(ApiScope::ServicesRead, "Lists the revisions of a service.")).post_with(
                create_revision,
                doc(ApiScope::ServicesWrite, "Creates a revision and begins its rollout."),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/revisions/{revision}/specification",
            get_with(
                specification,
                doc(ApiScope::ServicesRead, "Gives the specification of a revision with all its texts."),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/traffic",
            put_with(
                put_traffic,
                doc(ApiScope::ServicesWrite, "Sets the part of the requests of the revision on its way."),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/rollback",
            post_with(
                roll_back,
                doc(
                    ApiScope::ServicesWrite,
                    "Withdraws the revision on its way, or goes back to the one before.",
                ),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/use",
            get_with(
                list_use,
                doc(ApiScope::ServicesRead, "Lists the use of a service by hour, also of a deleted one."),
            ),
        )
        .api_route(
            "/operator/services",
            get_with(list_all, doc(ApiScope::ServicesRead, "Lists the services of all organizations.")),
        )
        .api_route(
            "/operator/services/{service}/token-price",
            put_with(
                set_token_price,
                doc(ApiScope::BillingWrite, "Sets the price of the tokens of a service."),
            ),
        )
}

pub fn hosts() -> ApiRouter<Services> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/service-hosts/check",
            post_with(
                check_host,
                doc(ApiScope::ServicesWrite, "Checks the DNS record of a host name of a service now."),
            ),
        )
        .api_route(
            "/operator/service-hosts",
            get_with(
                list_claims,
                doc(ApiScope::ServicesRead, "Lists the host names of services of all organizations."),
            ),
        )
        .api_route(
            "/operator/orgs/{org}/service-hosts",
            put_with(
                confirm_host,
                doc(
                    ApiScope::Admin,
                    "Confirms a host name for an organization without DNS, or takes it back.",
                ),
            ),
        )
}

pub fn keys() -> ApiRouter<Services> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/inference-keys",
            get_with(list_keys, doc(ApiScope::ServicesRead, "Lists the inference keys of an organization."))
                .post_with(
                    create_key,
                    doc(ApiScope::ServicesWrite, "Creates an inference key; its secret is shown once."),
                ),
        )
        .api_route(
            "/orgs/{org}/inference-keys/{key}",
            delete_with(revoke_key, doc(ApiScope::ServicesWrite, "Revokes an inference key.")),
        )
}

pub fn gateways() -> ApiRouter<Services> {
    ApiRouter::new()
        .api_route(
            "/orgs/{org}/service-gateways",
            get_with(present, doc(ApiScope::ServicesRead, "Lists the gateways that answer at present.")),
        )
        .api_route(
            "/operator/gateways",
            get_with(list_gateways, doc(ApiScope::FleetRead, "Lists the gateways.")).post_with(
                create_gateway,
                answers::<201, Gateway>(ApiScope::FleetWrite, "Adds a gateway; its token is shown once."),
            ),
        )
        .api_route(
            "/operator/gateways/{gateway}",
            delete_with(remove_gateway, doc(ApiScope::FleetWrite, "Removes a gateway and ends its credit.")),
        )
        .api_route(
            "/operator/gateways/{gateway}/token",
            post_with(
                replace_token,
                answers::<200, Gateway>(
                    ApiScope::FleetWrite,
                    "Replaces the token of a gateway; the new one is shown once.",
                ),
            ),
        )
}

async fn create(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewService>,
) -> Result<Created<Service>, Failed> {
    Ok(Created(services.create_service(&caller, org, body.value).await?))
}

async fn list(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Service>>, Failed> {
    Ok(Answer(services.list_services(&caller, org, &query.by_creation()?).await?))
}

async fn list_all(
    State(services): State<Services>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Service>>, Failed> {
    Ok(Answer(services.list_all(&caller, &query.by_creation()?).await?))
}

async fn show(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path((org, service)): Path<(OrgId, ServiceId)>,
) -> Result<Answer<Service>, Failed> {
    Ok(Answer(services.get_service(&caller, org, service).await?))
}

async fn change(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    body: Json<PatchService>,
) -> Result<Answer<Service>, Failed> {
    Ok(Answer(services.change_service(&caller, service, body.value).await?))
}

async fn remove(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path((org, service)): Path<(OrgId, ServiceId)>,
) -> Result<NoContent, Failed> {
    services.delete_service(&caller, org, service).await?;
    Ok(NoContent)
}

async fn revisions(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Revision>>, Failed> {
    Ok(Answer(services.list_revisions(&caller, service, &query.by_creation()?).await?))
}

async fn specification(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path((org, service, revision)): Path<(OrgId, ServiceId, RevisionId)>,
) -> Result<Answer<NewRevision>, Failed> {
    Ok(Answer(services.get_specification(&caller, (org, service), revision).await?))
}

async fn create_revision(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    body: Json<NewRevision>,
) -> Result<Created<Revision>, Failed> {
    Ok(Created(services.create_revision(&caller, service, body.value).await?))
}

async fn put_traffic(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    body: Json<PutTraffic>,
) -> Result<Answer<Service>, Failed> {
    Ok(Answer(services.put_traffic(&caller, service, body.value).await?))
}

async fn roll_back(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path((org, service)): Path<(OrgId, ServiceId)>,
) -> Result<Answer<Service>, Failed> {
    Ok(Answer(services.roll_back(&caller, org, service).await?))
}

/// The query of the use of a service.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct UseQuery {
    /// The number of hours until now, 1 to 168; 24 when absent.
    #[schemars(range(min = 1, max = 168))]
    hours: Option<u32>,
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
}

async fn list_use(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    Query(query): Query<UseQuery>,
) -> Result<Answer<Page<ServiceHour>>, Failed> {
    let hours = query.hours.unwrap_or(24);
    if !(1..=MAX_HOURS).contains(&hours) {
        return Err(Failed(Problem::malformed("`hours` is between 1 and 168.")));
    }
    let list = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort };
    let options = list.by_creation_with(&hours)?;
    Ok(Answer(services.list_use(&caller, service, hours, &options).await?))
}

async fn set_token_price(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<ServiceId>,
    body: Json<TokenPrice>,
) -> Result<Answer<Service>, Failed> {
    Ok(Answer(services.set_token_price(&caller, service, body.value).await?))
}

async fn create_key(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<NewInferenceKey>,
) -> Result<Created<InferenceKey>, Failed> {
    Ok(Created(services.keys.create_key(&caller, org, body.value).await?))
}

async fn list_keys(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<InferenceKey>>, Failed> {
    Ok(Answer(services.keys.list_keys(&caller, org, &query.by_creation()?).await?))
}

async fn revoke_key(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path((org, key)): Path<(OrgId, InferenceKeyId)>,
) -> Result<NoContent, Failed> {
    services.keys.revoke_key(&caller, org, key).await?;
    Ok(NoContent)
}

async fn create_gateway(
    State(services): State<Services>,
    Signed(caller): Signed,
    body: Json<NewGateway>,
) -> Result<(Extension<NotKept>, Created<Gateway>), Failed> {
    let created = services.gateways.create_gateway(&caller, body.value).await?;
    // An answer that grants access is never stored.
    Ok((Extension(NotKept), Created(created)))
}

async fn list_gateways(
    State(services): State<Services>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Gateway>>, Failed> {
    Ok(Answer(services.gateways.list_gateways(&caller, &query.by_creation()?).await?))
}

async fn replace_token(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(gateway): Path<GatewayId>,
) -> Result<(Extension<NotKept>, Answer<Gateway>), Failed> {
    let replaced = services.gateways.replace_token(&caller, gateway).await?;
    // An answer that grants access is never stored.
    Ok((Extension(NotKept), Answer(replaced)))
}

async fn check_host(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<CheckHost>,
) -> Result<Answer<ServiceHost>, Failed> {
    Ok(Answer(services.hosts.check_host(&caller, org, body.value).await?))
}

async fn list_claims(
    State(services): State<Services>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<ClaimedHost>>, Failed> {
    Ok(Answer(services.hosts.list_claims(&caller, &query.by_name()?).await?))
}

async fn confirm_host(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<ConfirmHost>,
) -> Result<Answer<ServiceHost>, Failed> {
    Ok(Answer(services.hosts.confirm_host(&caller, org, body.value).await?))
}

async fn remove_gateway(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(gateway): Path<GatewayId>,
) -> Result<NoContent, Failed> {
    services.gateways.remove_gateway(&caller, gateway).await?;
    Ok(NoContent)
}

async fn present(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<GatewayAddress>>, Failed> {
    let all = services.gateways.list_present(&caller, org).await?;
    Ok(Answer(page_in_memory(all, &query.by_name()?, |gateway| gateway.name.clone())))
}
