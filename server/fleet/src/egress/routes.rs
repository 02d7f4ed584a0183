//! The routes of named networks and egress policies.

use super::EgressPolicies;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::lists::{ListQuery, page_in_memory};
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::Page;
use berth_types::egress::{EgressPolicy, NamedNetwork, PutEgressPolicy, PutNetwork};
use berth_types::ids::OrgId;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<EgressPolicies> {
    ApiRouter::new()
        .api_route(
            "/operator/networks",
            get_with(
                list_networks,
                doc(
                    ApiScope::FleetRead,
                    "Lists the named networks with the organizations that may reach them.",
                ),
            ),
        )
        .api_route(
            "/operator/networks/{network}",
            put_with(
                put_network,
                doc(ApiScope::FleetWrite, "Adds a named network, or replaces its ranges. At most 100 exist."),
            )
            .delete_with(
                remove_network,
                doc(ApiScope::FleetWrite, "Removes a named network that no organization may reach."),
            ),
        )
        .api_route(
            "/operator/orgs/{org}/egress-policy",
            get_with(show_any, doc(ApiScope::FleetRead, "Gives the egress policy of any organization."))
                .put_with(set, doc(ApiScope::FleetWrite, "Replaces the egress policy of an organization.")),
        )
        .api_route(
            "/orgs/{org}/egress-policy",
            get_with(show, doc(ApiScope::JobsRead, "Gives the egress policy of an organization.")),
        )
}

async fn list_networks(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<NamedNetwork>>, Failed> {
    let options = query.by_name()?;
    let networks = policies.list_networks(&caller).await?;
    Ok(Answer(page_in_memory(networks, &options, |network| network.name.clone())))
}

async fn put_network(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Path(network): Path<String>,
    body: Json<PutNetwork>,
) -> Result<Answer<NamedNetwork>, Failed> {
    Ok(Answer(policies.put_network(&caller, network, body.value).await?))
}

async fn remove_network(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Path(network): Path<String>,
) -> Result<NoContent, Failed> {
    policies.remove_network(&caller, network).await?;
    Ok(NoContent)
}

async fn show_any(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<EgressPolicy>, Failed> {
    Ok(Answer(policies.any_policy(&caller, org).await?))
}

async fn set(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<PutEgressPolicy>,
) -> Result<Answer<EgressPolicy>, Failed> {
    Ok(Answer(policies.set_policy(&caller, org, body.value).await?))
}

async fn show(
    State(policies): State<EgressPolicies>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<EgressPolicy>, Failed> {
    Ok(Answer(policies.policy(&caller, org).await?))
}
