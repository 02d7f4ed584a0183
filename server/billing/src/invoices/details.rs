//! The details of a customer on the invoices of an organization.

use berth_types::ids::OrgId;
use berth_types::invoices::BillingDetails;
use berth_types::problems::{FieldError, Problem};
use futures::FutureExt;

use super::Invoices;
use berth_foundation::{Caller, Right};
use berth_store as store;

/// The most characters of a legal name.
const MAX_NAME_CHARS: usize = 100;
/// The most characters of an address.
const MAX_ADDRESS_CHARS: usize = 500;
/// The most characters of a tax number.
pub(super) const MAX_TAX_ID_CHARS: usize = 50;

/// Checks an optional text of one line.
pub(super) fn check_line(pointer: &str, text: &str, max_chars: usize, errors: &mut Vec<FieldError>) {
    if text.chars().count() > max_chars {
        errors.push(FieldError::new(pointer, format!("Use at most {max_chars} characters.")));
    } else if text.chars().any(char::is_control) {
        errors.push(FieldError::new(pointer, "Use printable characters on one line."));
    }
}

/// The faults of details.
fn check(details: &BillingDetails) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_line("/name", &details.name, MAX_NAME_CHARS, &mut errors);
    if details.address.chars().count() > MAX_ADDRESS_CHARS {
        errors.push(FieldError::new("/address", "Use at most 500 characters."));
    } else if details.address.chars().any(|c| c.is_control() && c != '\n') {
        errors.push(FieldError::new("/address", "Use printable characters and line breaks."));
    }
    check_line("/tax_id", &details.tax_id, MAX_TAX_ID_CHARS, &mut errors);
    errors
}

/// The details without white space around them.
fn trimmed(details: &BillingDetails) -> BillingDetails {
    BillingDetails {
        name: details.name.trim().to_owned(),
        address: details.address.trim().to_owned(),
        tax_id: details.tax_id.trim().to_owned(),
    }
}

impl Invoices {
    /// The details of the customer on new invoices of an organization; empty before they are set.
    ///
    /// # Errors
    /// The caller has no right to see money.
    pub async fn billing_details(&self, caller: &Caller, org: OrgId) -> Result<BillingDetails, Problem> {
        self.context.authorise(caller, org, Right::ViewMoney).await?;
        let mut conn = self.context.db.read().await?;
        Ok(store::billing_details::find(&mut conn.tx(), org).await?.unwrap_or_default())
    }

    /// Sets the details of the customer on new invoices. Issued invoices stay unchanged.
    ///
    /// # Errors
    /// The caller has no right to pay, or a text is too long or not printable.
    pub async fn set_billing_details(
        &self,
        caller: &Caller,
        org: OrgId,
        input: BillingDetails,
    ) -> Result<BillingDetails, Problem> {
        self.context.authorise(caller, org, Right::Pay).await?;
        let errors = check(&input);
        if !errors.is_empty() {
            return Err(Problem::invalid(errors));
        }
        let details = trimmed(&input);
        let text = serde_json::to_string(&details).map_err(|_| Problem::internal())?;
        let event = self.context.audit_event(caller, "billing_details.set", org.to_string(), text.clone());
        let new = details.clone();
        self.context
            .db
            .write(move |tx| {
                let (new, text, event) = (new.clone(), text.clone(), event.clone());
                async move {
                    let before = store::billing_details::find(tx, org).await?;
                    let before = before.and_then(|before| serde_json::to_string(&before).ok());
                    store::billing_details::put(tx, org, &new).await?;
                    store::quotas::insert_audit(tx, Some(org), &event.with_change(before, Some(text))).await
                }
                .boxed()
            })
            .await?;
        Ok(details)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointers(name: &str, address: &str, tax_id: &str) -> Vec<String> {
        let details =
            BillingDetails { name: name.to_owned(), address: address.to_owned(), tax_id: tax_id.to_owned() };
        check(&details).into_iter().map(|error| error.pointer).collect()
    }

    #[test]
    fn each_text_of_the_details_has_its_limit() {
        assert_eq!(pointers("", "", ""), Vec::<String>::new());
        let (name, address, tax_id) = ("ä".repeat(100), "x\n".repeat(250), "1".repeat(50));
        assert_eq!(pointers(&name, &address, &tax_id), Vec::<String>::new());
        let (name, address, tax_id) = (name + "x", address + "x", tax_id + "1");
        assert_eq!(pointers(&name, &address, &tax_id), ["/name", "/address", "/tax_id"]);
        assert_eq!(pointers("a\nb", "a\tb", "\u{7f}"), ["/name", "/address", "/tax_id"]);
    }
}
