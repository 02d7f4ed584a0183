//! The routes of single nodes.

use super::Nodes;
use aide::axum::ApiRouter;
use aide::axum::routing::{delete_with, get_with, post_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::response::NoContent;
use berth_rest::operations::doc;
use berth_rest::{Failed, Json, Path, Signed};
use berth_types::diagnosis::NodeDiagnosis;
use berth_types::ids::{NodeId, OrgId};
use berth_types::node_pools::InferencePool;
use berth_types::nodes::{ApproveNode, Dedication, Node, OrgNodes, PatchNode, PutOrgNodes};
use berth_types::rdma::RdmaGrant;
use berth_types::scopes::ApiScope;

pub fn routes() -> ApiRouter<Nodes> {
    ApiRouter::new()
        .api_route(
            "/operator/nodes/{node}",
            get_with(show, doc(ApiScope::FleetRead, "Gives a node with its boards."))
                .patch_with(change, doc(ApiScope::FleetWrite, "Changes the cordon, the labels or the pool of a node."))
                .delete_with(remove, doc(ApiScope::FleetWrite, "Removes a node without an approval, or a lost node with a revoked certificate.")),
        )
        .api_route(
            "/operator/nodes/{node}/approve",
            post_with(approve, doc(ApiScope::FleetWrite, "Approves a node with its present boards.")),
        )
        .api_route(
            "/operator/nodes/{node}/diagnosis",
            get_with(
                diagnosis,
                doc(ApiScope::FleetRead, "Gives the latest checks of a node's host by its worker."),
            ),
        )
        .api_route(
            "/operator/nodes/{node}/dedication",
            put_with(
                dedicate,
                doc(ApiScope::FleetWrite, "Dedicates a node to an organization, or opens it to all."),
            ),
        )
        .api_route(
            "/operator/nodes/{node}/set-aside",
            delete_with(
                release,
                doc(
                    ApiScope::FleetWrite,
                    "Releases a node that is set aside for jobs on several nodes, and forgets the measurements of its links.",
                ),
            ),
        )
        .api_route(
            "/operator/inference-pool",
            get_with(show_pool, doc(ApiScope::FleetRead, "Gives the settings of the pool for inference."))
                .put_with(
                    set_pool,
                    doc(ApiScope::FleetWrite, "Replaces the settings of the pool for inference."),
                ),
        )
        .api_route(
            "/operator/orgs/{org}/nodes",
            get_with(show_of_org, doc(ApiScope::FleetRead, "Gives the dedicated nodes of an organization."))
                .put_with(
                    set_of_org,
                    doc(ApiScope::FleetWrite, "Sets the use of own nodes only by an organization."),
                ),
        )
        .api_route(
            "/operator/orgs/{org}/rdma",
            get_with(
                show_rdma_of_org,
                doc(ApiScope::FleetRead, "Gives the grant of RDMA of any organization."),
            )
            .put_with(
                set_rdma_of_org,
                doc(ApiScope::FleetWrite, "Grants RDMA to an organization, or revokes it."),
            ),
        )
        .api_route(
            "/orgs/{org}/rdma",
            get_with(show_rdma, doc(ApiScope::JobsRead, "Gives the grant of RDMA of an organization.")),
        )
}

async fn show(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.get_node(&caller, node).await?))
}

async fn diagnosis(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<NodeDiagnosis>, Failed> {
    Ok(Answer(nodes.get_diagnosis(&caller, node).await?))
}

async fn change(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<PatchNode>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.patch_node(&caller, node, body.value).await?))
}

async fn approve(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<ApproveNode>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.approve_node(&caller, node, body.value).await?))
}

async fn dedicate(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
    body: Json<Dedication>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.dedicate_node(&caller, node, body.value).await?))
}

async fn show_pool(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
) -> Result<Answer<InferencePool>, Failed> {
    Ok(Answer(nodes.inference_pool(&caller).await?))
}

async fn set_pool(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    body: Json<InferencePool>,
) -> Result<Answer<InferencePool>, Failed> {
    Ok(Answer(nodes.set_inference_pool(&caller, body.value).await?))
}

async fn show_of_org(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<OrgNodes>, Failed> {
    Ok(Answer(nodes.org_nodes(&caller, org).await?))
}

async fn set_of_org(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<PutOrgNodes>,
) -> Result<Answer<OrgNodes>, Failed> {
    Ok(Answer(nodes.set_org_nodes(&caller, org, body.value).await?))
}

async fn show_rdma_of_org(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<RdmaGrant>, Failed> {
    Ok(Answer(nodes.rdma_grant(&caller, org).await?))
}

async fn set_rdma_of_org(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
    body: Json<RdmaGrant>,
) -> Result<Answer<RdmaGrant>, Failed> {
    Ok(Answer(nodes.set_rdma_grant(&caller, org, body.value).await?))
}

async fn show_rdma(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(org): Path<OrgId>,
) -> Result<Answer<RdmaGrant>, Failed> {
    Ok(Answer(nodes.own_rdma_grant(&caller, org).await?))
}

async fn release(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<Answer<Node>, Failed> {
    Ok(Answer(nodes.release_node(&caller, node).await?))
}

async fn remove(
    State(nodes): State<Nodes>,
    Signed(caller): Signed,
    Path(node): Path<NodeId>,
) -> Result<NoContent, Failed> {
    nodes.remove_node(&caller, node).await?;
    Ok(NoContent)
}
