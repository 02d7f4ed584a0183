//! The list of organizations with their balances, for operators.

use berth_types::Page;
use berth_types::accounts::{Org, OrgFilter, OrgOrder, OrgSummary};
use berth_types::ids::OrgId;
use berth_types::lists::{ListOptions, NameCursor};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;

use berth_foundation::Caller;
use berth_foundation::days::month_start_day;
use berth_rest::lists::name_and_id;
use berth_store as store;
use berth_store::orgs::{OrgPlace, OrgSearch, StoredOrgSummary};

use super::Ledger;

/// Characters of the searched part of a name.
const MAX_PART_CHARS: usize = 100;
/// Bytes of a slug in a filter.
const MAX_SLUG_BYTES: usize = 100;

/// The part of a name in a filter; empty when absent.
fn name_part(text: Option<&str>) -> Result<String, Problem> {
    let Some(text) = text else { return Ok(String::new()) };
    if (1..=MAX_PART_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(Problem::malformed("`name` has 1 to 100 printable characters."))
    }
}

/// The slug of a filter; empty when absent.
fn slug_text(slug: Option<&str>) -> Result<String, Problem> {
    match slug {
        None => Ok(String::new()),
        Some(slug) if (1..=MAX_SLUG_BYTES).contains(&slug.len()) => Ok(slug.to_owned()),
        Some(_) => Err(Problem::malformed("`slug` has 1 to 100 bytes.")),
    }
}

/// The key of an organization in a list: its value in the order, then its id.
fn org_key(row: &StoredOrgSummary, order: OrgOrder) -> NameCursor {
    let number = match order {
        OrgOrder::Name => return NameCursor(name_and_id(&row.name, row.id)),
        OrgOrder::Created => row.created_at.micros(),
        OrgOrder::Balance => row.posted_micros,
        OrgOrder::Spent => row.spent_micros,
    };
    NameCursor(name_and_id(&number.to_string(), row.id))
}

/// Parses the key of [`org_key`].
fn place(cursor: Option<&NameCursor>, order: OrgOrder) -> Result<OrgPlace, Problem> {
    let Some(NameCursor(text)) = cursor else { return Ok(OrgPlace::default()) };
    let parsed = text.rsplit_once('\u{1f}').and_then(|(key, id)| {
        let id = id.parse::<OrgId>().ok()?.to_string();
        match order {
            OrgOrder::Name => Some(OrgPlace { name: key.to_owned(), number: 0, id }),
            OrgOrder::Created | OrgOrder::Balance | OrgOrder::Spent => {
                Some(OrgPlace { name: String::new(), number: key.parse().ok()?, id })
            }
        }
    });
    parsed.ok_or_else(|| {
        Problem::malformed("The cursor is not from this list. Send a `next_cursor` of this list.")
    })
}

impl Ledger {
    /// A page of the organizations that match a filter, each with its numbers of members and jobs and its
    /// money, for an operator.
    ///
    /// # Errors
    /// A text of the filter or the cursor is invalid.
    pub async fn list_org_summaries(
        &self,
        caller: &Caller,
        filter: &OrgFilter,
        order: OrgOrder,
        options: &ListOptions<NameCursor>,
    ) -> Result<Page<OrgSummary>, Problem> {
        self.context.authorise_operator(caller, OperatorRight::View).await?;
        let search = OrgSearch {
            org: filter.org.map_or_else(String::new, |org| org.to_string()),
            slug: slug_text(filter.slug.as_deref())?,
            name: name_part(filter.name.as_deref())?,
            without_credit: filter.without_credit,
            order,
            sort: options.sort,
            after: place(options.cursor.as_ref(), order)?,
            since_day: month_start_day(self.context.now()),
            rows: options.rows(),
        };
        let mut conn = self.context.db.read().await?;
        let rows = store::orgs::list_summaries(&mut conn.tx(), &search).await?;
        let summary = |row: StoredOrgSummary| OrgSummary {
            org: Org { id: row.id, name: row.name, slug: row.slug, created_at: row.created_at },
            members: row.members,
            running: row.running,
            queued: row.queued,
            posted_micros: row.posted_micros,
            held_micros: row.held_micros,
            credit_limit_micros: row.credit_limit_micros,
            spent_micros: row.spent_micros,
            currency: self.context.settings.currency.clone(),
        };
        Ok(options.page(rows, |row| org_key(row, order)).map(summary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_parsed_from_its_cursor() {
        let id: OrgId = "org_00000000000000000000000001".parse().unwrap();
        let cursor = |key: &str| NameCursor(name_and_id(key, id));
        let number = place(Some(&cursor("-5")), OrgOrder::Balance).unwrap();
        assert_eq!((number.number, number.id), (-5, id.to_string()));
        assert_eq!(place(Some(&cursor("a b")), OrgOrder::Name).unwrap().name, "a b");
        assert_eq!(place(None, OrgOrder::Spent).unwrap().id, "");
        assert!(place(Some(&cursor("a b")), OrgOrder::Spent).is_err());
        assert!(place(Some(&NameCursor("5".to_owned())), OrgOrder::Spent).is_err());
    }

    #[test]
    fn the_texts_of_a_filter_have_limits() {
        assert_eq!(name_part(None).unwrap(), "");
        assert_eq!(name_part(Some("lab")).unwrap(), "lab");
        for text in [String::new(), "n".repeat(101), "a\tb".to_owned()] {
            assert!(name_part(Some(&text)).is_err(), "{text:?}");
        }
        assert_eq!(
            (slug_text(None).unwrap(), slug_text(Some("lab")).unwrap()),
            (String::new(), "lab".to_owned())
        );
        assert!(slug_text(Some("")).is_err() && slug_text(Some(&"s".repeat(101))).is_err());
    }
}
