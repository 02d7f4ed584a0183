//! The routes of promises.

use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, patch_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::answers::MayWait;
use berth_rest::lists::ListQuery;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_service_types::promises::{
    JudgedWindow, NewPromise, PatchPromise, Promise, PutServicePromise, ServicePromise,
};
use berth_types::Page;
use berth_types::ids::{OrgId, PromiseId, ServiceId};
use berth_types::scopes::ApiScope;

use crate::Services;

pub fn routes() -> ApiRouter<Services> {
    ApiRouter::new()
        .api_route(
            "/operator/promises",
            get_with(list_all, doc(ApiScope::BillingRead, "Lists the offered promises."))
                .post_with(create, doc(ApiScope::BillingWrite, "Offers a promise for services.")),
        )
        .api_route(
            "/operator/promises/{promise}",
            patch_with(change, doc(ApiScope::BillingWrite, "Changes a promise for new choices."))
                .delete_with(retire, doc(ApiScope::BillingWrite, "Ends the offer of a promise.")),
        )
        .api_route(
            "/orgs/{org}/promises",
            get_with(
                list_offered,
                doc(ApiScope::ServicesRead, "Lists the promises that services can choose."),
            ),
        )
        .api_route(
            "/orgs/{org}/services/{service}/promise",
            get_with(show, doc(ApiScope::ServicesRead, "Gives the promise of a service and its windows."))
                .put_with(choose, doc(ApiScope::ServicesWrite, "Sets the promise of a service.")),
        )
        .api_route(
            "/orgs/{org}/services/{service}/promise/windows",
            get_with(
                list_windows,
                doc(ApiScope::ServicesRead, "Lists the judged windows of the promises of a service."),
            ),
        )
}

async fn list_all(
    State(services): State<Services>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Promise>>, Failed> {
    Ok(Answer(services.promises.list_all(&caller, &query.by_creation()?).await?))
}

async fn create(
    State(services): State<Services>,
    Signed(caller): Signed,
    body: Json<NewPromise>,
) -> Result<MayWait<201, Promise>, Failed> {
    Ok(MayWait(services.promises.create_promise(&caller, body.value, None).await?))
}

async fn change(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(promise): Path<PromiseId>,
    body: Json<PatchPromise>,
) -> Result<MayWait<200, Promise>, Failed> {
    Ok(MayWait(services.promises.change_promise(&caller, promise, body.value, None).await?))
}

async fn retire(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(promise): Path<PromiseId>,
) -> Result<NoContent, Failed> {
    services.promises.retire_promise(&caller, promise).await?;
    Ok(NoContent)
}

async fn list_offered(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Promise>>, Failed> {
    Ok(Answer(services.promises.list_offered(&caller, org, &query.by_creation()?).await?))
}

async fn show(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
) -> Result<Answer<ServicePromise>, Failed> {
    Ok(Answer(services.promises.get_choice(&caller, service).await?))
}

async fn list_windows(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<JudgedWindow>>, Failed> {
    Ok(Answer(services.promises.list_windows(&caller, service, &query.by_creation()?).await?))
}

async fn choose(
    State(services): State<Services>,
    Signed(caller): Signed,
    Path(service): Path<(OrgId, ServiceId)>,
    body: Json<PutServicePromise>,
) -> Result<Answer<ServicePromise>, Failed> {
    Ok(Answer(services.promises.choose(&caller, service, body.value).await?))
}
