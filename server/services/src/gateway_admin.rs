//! The gateways, for operators, and their addresses for the callers of services.

use std::collections::{BTreeSet, HashMap};

use berth_foundation::credentials::new_opaque;
use berth_foundation::{Caller, Change, Context, Right, idempotency, recheck_operator_right};
use berth_service_types::gateways::{Gateway, GatewayAddress, NewGateway};
use berth_store::services::gateways::StoredGateway;
use berth_store::{self as store, StoreError, Tx, WriteError};
use berth_types::Page;
use berth_types::ids::{GatewayId, OrgId};
use berth_types::lists::ListOptions;
use berth_types::operators::OperatorRight;
use berth_types::problems::{FieldError, Problem};
use berth_types::time::Timestamp;
use futures::FutureExt;

use crate::addresses::{gateway_url, host_of};
use crate::checks::is_name;
use crate::gateways::{EndedBlocks, end_blocks, token_hash};
use crate::hosts::owners::HostOwners;

/// Gateways of the portal. The content security policy of the pages has the addresses of all.
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

/// The micro-units of open blocks by the number of their gateway.
async fn sum_open(tx: &mut Tx<'_>) -> Result<HashMap<i64, i64>, StoreError> {
    Ok(store::services::credit::sum_open(tx).await?.into_iter().collect())
}

fn wire_gateway(row: StoredGateway, open: &HashMap<i64, i64>, token: Option<String>) -> Gateway {
    Gateway {
        id: row.id,
        name: row.name,
        url: row.url,
        created_at: row.created_at,
        created_by: row.created_by,
        last_seen_at: row.last_seen_at,
        version: row.version,
        open_micros: open.get(&row.number).copied().unwrap_or(0),
        token,
    }
}

/// Ends what a gateway did by a number: its blocks of credit, and its share in the faults of services. Returns the
/// organizations with a charge, and the detail of the audit event.
async fn end_number(
    tx: &mut Tx<'_>,
    context: &Context,
    gateway: &StoredGateway,
    now: Timestamp,
) -> Result<(BTreeSet<OrgId>, String), StoreError> {
    // Those beyond the most of one transaction end in the loop of lost blocks.
    let EndedBlocks { blocks, freed_micros, charged } = end_blocks(tx, context, gateway.number, now).await?;
    let mut detail = format!(
        "{}: {blocks} of its blocks of credit ended, {freed_micros} micro-units are free again, later charges are forgiven",
        gateway.name
    );
    let counts = store::services::gateway_faults::discard(tx, gateway.number).await?;
    if counts > 0 {
        detail.push_str(&format!(", {counts} of its counts of faults by service and hour are void"));
    }
    Ok((charged, detail))
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

/// Refuses a gateway beyond the limit, with the name of another one, or with the confirmed host of a service.
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
    let services = store::services::hosts::list_services(tx, &host).await?;
    let owners = HostOwners::read(tx, std::iter::once(host.as_str())).await?;
    if owners.find(&host).is_some_and(|(_, owner)| services.iter().any(|(_, org)| *org == owner)) {
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
        let hash = token_hash(&token);
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
        Ok(wire_gateway(row, &HashMap::new(), Some(token)))
    }

    /// A page of the gateways, without their tokens.
    pub async fn list_gateways(
        &self,
        caller: &Caller,
        options: &ListOptions<GatewayId>,
    ) -> Result<Page<Gateway>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let mut conn = self.context.db.read().await?;
        let mut tx = conn.tx();
        let rows = store::services::gateways::list_page(&mut tx, options).await?;
        let open = sum_open(&mut tx).await?;
        Ok(options.page(rows, |row| row.id).map(|row| wire_gateway(row, &open, None)))
    }

    /// Replaces the token of a gateway. The former one is refused at once, and only this answer has the new one. Its
    /// holder may be a stranger, so its blocks of credit and its faults of services end as those of a removed gateway, and
    /// the gateway gets another number for new ones.
    ///
    /// # Errors
    /// The caller lacks the right or a fresh proof, or there is no such gateway.
    pub async fn replace_token(&self, caller: &Caller, id: GatewayId) -> Result<Gateway, Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let token = format!("{PREFIX}{}", self.context.random(new_opaque));
        let (hash, user, now) = (token_hash(&token), caller.user.id, self.context.now());
        let event = self.context.audit_event(caller, "gateway.token_replaced", id.to_string(), String::new());
        let context = self.context.clone();
        let done = self.context.db.try_write(move |tx| {
            let (context, hash, mut event) = (context.clone(), hash.clone(), event.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageFleet).await?;
                let number = store::services::gateways::last_number(tx).await? + 1;
                let found = store::services::gateways::replace_token(tx, id, (&hash, number), now).await?;
                let mut gateway = found.ok_or_else(Problem::not_found)?;
                let (charged, detail) = end_number(tx, &context, &gateway, now).await?;
                gateway.number = number;
                event.detail = detail;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok((gateway, charged))
            }
            .boxed()
        });
        let (gateway, charged) = done.await?;
        for org in charged {
            self.context.publish(Change::Charged(org));
        }
        Ok(wire_gateway(gateway, &HashMap::new(), Some(token)))
    }

    /// Removes a gateway. Its token is refused at once, and its blocks of credit end: what it reported is charged, the
    /// rest is free again, and later charges are forgiven. Its faults of services are void.
    pub async fn remove_gateway(&self, caller: &Caller, id: GatewayId) -> Result<(), Problem> {
        self.context.authorise_operator(caller, OperatorRight::ManageFleet).await?;
        self.context.check_proof(caller)?;
        let now = self.context.now();
        let event = self.context.audit_event(caller, "gateway.removed", id.to_string(), String::new());
        let (context, user) = (self.context.clone(), caller.user.id);
        let done = self.context.db.try_write(move |tx| {
            let (context, mut event) = (context.clone(), event.clone());
            async move {
                recheck_operator_right(tx, user, OperatorRight::ManageFleet).await?;
                let found = store::services::gateways::remove(tx, id, now).await?;
                let gateway = found.ok_or_else(Problem::not_found)?;
                let (charged, detail) = end_number(tx, &context, &gateway, now).await?;
                event.detail = detail;
                store::quotas::insert_audit(tx, None, &event).await?;
                Ok(charged)
            }
            .boxed()
        });
        for org in done.await? {
            self.context.publish(Change::Charged(org));
        }
        Ok(())
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
