//! The gateways, for operators, and their addresses for the callers of services.

use berth_foundation::credentials::new_opaque;
use berth_foundation::{Caller, Context, Right, idempotency, recheck_operator_right};
use berth_service_types::gateways::{Gateway, GatewayAddress, NewGateway};
use berth_serving::snapshot::KeyHash;
use berth_store::services::gateways::StoredGateway;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::Page;
use berth_types::ids::{GatewayId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use futures::FutureExt;

use crate::addresses::{gateway_url, host_of};
use crate::checks::is_name;

/// Gateways of the portal.
const MAX_GATEWAYS: usize = 100;
/// Seconds for which a gateway counts as present after a report.
const PRESENT_S: i64 = 30;
/// The begin of each token.
const PREFIX: &str = "bgw_";

/// The gateways of the portal.
#[derive(Clone)]
pub struct GatewayAdmin {
    context: Context,
}

fn wire_gateway(row: StoredGateway, token: Option<String>) -> Gateway {
    Gateway {
        id: row.id,
        name: row.name,
        url: row.url,
        created_at: row.created_at,
        created_by: row.created_by,
        last_seen_at: row.last_seen_at,
        version: row.version,
        token,
    }
}

/// Checks a new gateway, and writes its address in one form.
fn checked(mut input: NewGateway) -> Result<NewGateway, Problem> {
    let mut errors = Vec::new();
    if !is_name(&input.name) {
        let detail = "Use 1 to 40 lower-case letters, digits and hyphens, with a letter first.";
        errors.push(FieldError::new("/name", detail));
    }
    if !input.url.is_empty() {
        match gateway_url(&input.url) {
            Some(url) => input.url = url,
            None => {
                let detail = "Enter an address with a host and no path, such as https://models.example.org, or omit the field.";
                errors.push(FieldError::new("/url", detail));
            }
        }
    }
    if errors.is_empty() { Ok(input) } else { Err(Problem::invalid(errors)) }
}

/// Refuses a gateway beyond the limit, with the name of another one, or with the host of a service.
async fn check_new(tx: &mut Tx<'_>, row: &StoredGateway) -> Result<(), WriteError> {
    let gateways = store::services::gateways::list(tx).await?;
    if gateways.iter().any(|gateway| gateway.name == row.name) {
        let detail = format!("The gateway {} already exists. Choose another name.", row.name);
        return Err(Problem::conflict("gateway.exists", "Name in use", detail).into());
    }
    if gateways.len() >= MAX_GATEWAYS {
        let detail = "The portal has at most 100 gateways. Remove an unused one.";
        return Err(Problem::conflict("gateway.limit", "Too many gateways", detail).into());
    }
    let Some(host) = host_of(&row.url) else { return Ok(()) };
    if store::services::services::find_by_host(tx, &host).await?.is_some() {
        let detail = "A service has this host name, so its requests would not reach other services.";
        return Err(Problem::invalid_field("/url", detail).into());
    }
    Ok(())
}

impl GatewayAdmin {
    pub const fn new(context: Context) -> Self {
        Self { context }
    }

    /// Adds a gateway. Only this answer has its token.
    ///
    /// # Errors
    /// The caller lacks the right, the gateway is invalid, or its name is in use.
    pub async fn create_gateway(&self, caller: &Caller, input: NewGateway) -> Result<Gateway, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        if caller.already_created().is_some() {
            return Err(idempotency::shown_once());
        }
        let NewGateway { name, url } = checked(input)?;
        let now = self.context.now();
        let token = format!("{PREFIX}{}", self.context.random(new_opaque));
        let hash = String::from(KeyHash::new(&token));
        let row = StoredGateway {
            id: self.context.new_id(now),
            // The write has the number.
            number: 0,
            name,
            url,
            version: String::new(),
            last_seen_at: None,
            created_at: now,
            created_by: caller.user.name.clone(),
        };
        let event = self.context.audit_event(caller, "gateway.added", row.id.to_string(), row.name.clone());
        let (new, key, user) = (row.clone(), caller.idempotency_key.clone(), caller.user.id);
        let done = self.context.db.try_write(move |tx| {
            let (mut row, hash) = (new.clone(), hash.clone());
            let (event, key) = (event.clone(), key.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageFleet).await?;
                check_new(tx, &row).await?;
                idempotency::claim(tx, key.as_ref(), "", now).await?;
                row.number = store::services::gateways::last_number(tx).await? + 1;
                store::services::gateways::insert(tx, &row, &hash).await?;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(())
            }
            .boxed()
        });
        done.await?;
        Ok(wire_gateway(row, Some(token)))
    }

    /// A page of the gateways, without their tokens.
    pub async fn list_gateways(
        &self,
        caller: &Caller,
        options: &ListOptions<GatewayId>,
    ) -> Result<Page<Gateway>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let rows = store::services::gateways::list_page(&mut conn.tx(), options).await?;
        Ok(options.page(rows, |row| row.id).map(|row| wire_gateway(row, None)))
    }

    /// Removes a gateway. Its token is refused at once.
    pub async fn remove_gateway(&self, caller: &Caller, id: GatewayId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "gateway.removed", id.to_string(), String::new());
        let known = self.context.db.write(move |tx| {
            let mut event = event.clone();
            async move {
                let Some(name) = store::services::gateways::remove(tx, id, now).await? else {
                    return Ok(false);
                };
                event.detail = name;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok::<bool, StoreError>(true)
            }
            .boxed()
        });
        if known.await? { Ok(()) } else { Err(Problem::not_found()) }
    }

    /// The gateways that reported within [`PRESENT_S`], for the members of an organization.
    pub async fn list_present(&self, caller: &Caller, org: OrgId) -> Result<Vec<GatewayAddress>, Problem> {
        self.context.authorise(caller, org, Right::View).await?;
        let since = self.context.now().plus_seconds(-PRESENT_S);
        let mut conn = self.context.db.read().await?;
        let rows = store::services::gateways::list(&mut conn.tx()).await?;
        let present = rows.into_iter().filter(|row| row.last_seen_at.is_some_and(|at| at >= since));
        Ok(present.map(|row| GatewayAddress { name: row.name, url: row.url }).collect())
    }
}
