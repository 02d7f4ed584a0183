//! Pages of the portal for the way back from Stripe.

use berth_foundation::Context;
use berth_store as store;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;

/// Returns the address of the billing page of an organization.
///
/// # Errors
/// The organization does not exist, or the store fails.
pub async fn get_billing_page(context: &Context, org: OrgId) -> Result<String, Problem> {
    let mut conn = context.db.read().await?;
    let org = store::accounts::find_org(&mut conn.tx(), org).await?.ok_or_else(Problem::not_found)?;
    let portal = context.settings.public_url.trim_end_matches('/');
    Ok(format!("{portal}/orgs/{}/billing", org.slug))
}
