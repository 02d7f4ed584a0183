//! The routes of the inventory, of stuck work and of racks.

use super::Inventory;
use aide::axum::ApiRouter;
use aide::axum::routing::{get_with, put_with};
use axum::Json as Answer;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, NoContent, Response};
use berth_rest::columns::Table;
use berth_rest::csv::{Format, broken, csv_answer, plain_cell, wants_csv};
use berth_rest::lists::{ListQuery, name_and_id, page_in_memory};
use berth_rest::operations::{doc, or_csv};
use berth_rest::{Failed, Json, Path, Query, Signed};
use berth_types::operations::{InventoryHost, PutRack, Rack, Stuck};
use berth_types::scopes::ApiScope;
use berth_types::{Page, Sort};
use serde::Deserialize;

pub fn routes() -> ApiRouter<Inventory> {
    ApiRouter::new()
        .api_route(
            "/operator/stuck",
            get_with(list_stuck, doc(ApiScope::JobsRead, "Lists work without progress, the longest first.")),
        )
        .api_route(
            "/operator/inventory",
            get_with(
                inventory,
                or_csv::<Page<InventoryHost>>(
                    ApiScope::FleetRead,
                    "Lists hosts with their versions and differences.",
                ),
            ),
        )
        .api_route(
            "/operator/racks",
            get_with(list_racks, doc(ApiScope::FleetRead, "Lists racks with their power budgets.")),
        )
        .api_route(
            "/operator/racks/{rack}",
            put_with(set_rack, doc(ApiScope::FleetWrite, "Sets the power budget of a rack."))
                .delete_with(unset_rack, doc(ApiScope::FleetWrite, "Removes the power budget of a rack.")),
        )
}

async fn list_stuck(
    State(inventory): State<Inventory>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Stuck>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(inventory.list_stuck(&caller).await?, &options, stuck_key)))
}

/// The begin, then the rank. A rank may be stuck for two causes.
fn stuck_key(stuck: &Stuck) -> String {
    let Stuck { job, attempt, node, cause, .. } = stuck;
    format!("{:020}\u{1f}{job}\u{1f}{attempt:010}\u{1f}{node}\u{1f}{cause:?}", stuck.since.micros())
}

#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct InventoryQuery {
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    sort: Option<Sort>,
    /// The format of the answer; by `Accept` when absent.
    format: Option<Format>,
}

async fn inventory(
    State(inventory): State<Inventory>,
    Signed(caller): Signed,
    Query(query): Query<InventoryQuery>,
    headers: HeaderMap,
) -> Result<Response, Failed> {
    if wants_csv(query.format, &headers) {
        return inventory_csv(inventory.inventory(&caller).await?);
    }
    let options = ListQuery { limit: query.limit, cursor: query.cursor, sort: query.sort }.by_name()?;
    let hosts = inventory.inventory(&caller).await?;
    let page = page_in_memory(hosts, &options, |host| name_and_id(&host.name, host.node));
    Ok(Answer(page).into_response())
}

/// The inventory as CSV. Each fact of a host is a line, so that new facts add no columns.
fn inventory_csv(hosts: Vec<InventoryHost>) -> Result<Response, Failed> {
    let mut file = csv::Writer::from_writer(Vec::new());
    file.write_record(Page::<InventoryHost>::COLUMNS).map_err(broken)?;
    for host in hosts {
        let boards: Vec<String> = host.boards.iter().map(|(model, n)| format!("{n} x {model}")).collect();
        for (fact, value) in &host.facts {
            let usual = host.odd.iter().find(|o| o.fact == *fact).map(|o| o.usual.clone());
            let cells = [
                host.node.to_string(),
                plain_cell(host.name.clone()),
                boards.join("; "),
                fact.clone(),
                plain_cell(value.clone()),
                plain_cell(usual.unwrap_or_default()),
                host.last_seen_at.map_or_else(String::new, |at| at.to_string()),
            ];
            file.write_record(cells).map_err(broken)?;
        }
    }
    csv_answer(file, "inventory.csv")
}

async fn list_racks(
    State(inventory): State<Inventory>,
    Signed(caller): Signed,
    Query(query): Query<ListQuery>,
) -> Result<Answer<Page<Rack>>, Failed> {
    let options = query.by_name()?;
    Ok(Answer(page_in_memory(inventory.list_racks(&caller).await?, &options, |rack| rack.name.clone())))
}

async fn set_rack(
    State(inventory): State<Inventory>,
    Signed(caller): Signed,
    Path(rack): Path<String>,
    body: Json<PutRack>,
) -> Result<NoContent, Failed> {
    inventory.set_rack(&caller, &rack, Some(body.value)).await?;
    Ok(NoContent)
}

async fn unset_rack(
    State(inventory): State<Inventory>,
    Signed(caller): Signed,
    Path(rack): Path<String>,
) -> Result<NoContent, Failed> {
    inventory.set_rack(&caller, &rack, None).await?;
    Ok(NoContent)
}
