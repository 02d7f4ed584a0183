//! The list of organizations: its filter and order, from the URL and as a plain form, and its pages.

use std::future::Future;

use berth_types::Sort;
use berth_types::accounts::{OrgFilter, OrgOrder, OrgSummary};
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use crate::api;
use crate::api::Answer;

/// The filter and the order of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrgListing {
    filter: OrgFilter,
    order: OrgOrder,
    sort: Sort,
}

impl OrgListing {
    /// Parses filter and order of a URL; invalid values are ignored.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| get(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let order = text("order_by").and_then(|name| OrgOrder::parse(&name)).unwrap_or_default();
        let sort = match (text("sort").as_deref(), order) {
            (Some("asc"), _) => Sort::Asc,
            (Some("desc"), _) | (_, OrgOrder::Created) => Sort::Desc,
            _ => Sort::Asc,
        };
        let without_credit = text("without_credit").as_deref() == Some("true");
        Self { filter: OrgFilter { org: None, slug: None, name: text("name"), without_credit }, order, sort }
    }

    /// Returns the query for the portal, without `?`.
    pub fn query(&self) -> String {
        api::accounts::orgs_query(&self.filter, self.order, self.sort)
    }

    /// Returns true if the filter has a condition.
    pub fn is_filtered(&self) -> bool {
        self.filter != OrgFilter::default()
    }
}

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
pub struct Loaded {
    pub listing: OrgListing,
    pub orgs: Vec<OrgSummary>,
    pub cursor: Option<String>,
}

/// Gets the first page of the list.
pub fn load(listing: OrgListing) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let page = api::accounts::orgs(&listing.query(), None);
    async move {
        let page = page.await?;
        Ok(Loaded { listing, orgs: page.items, cursor: page.next_cursor })
    }
}

/// Returns the label of an order.
const fn order_text(order: OrgOrder) -> &'static str {
    match order {
        OrgOrder::Created => "creation",
        OrgOrder::Name => "name",
        OrgOrder::Balance => "balance",
        OrgOrder::Spent => "charges this month",
    }
}

/// Returns the form, which also works without scripts.
pub fn filter_form(listing: &OrgListing) -> AnyView {
    let OrgListing { filter, order, sort } = listing;
    let option = |one: OrgOrder| {
        let selected = *order == one;
        view! { <option value=one.name() selected=selected>{order_text(one)}</option> }.into_any()
    };
    let orders: Vec<AnyView> = OrgOrder::ALL.into_iter().map(option).collect();
    let descending = *sort == Sort::Desc;
    let (name, without_credit) = (filter.name.clone().unwrap_or_default(), filter.without_credit);
    let clear = listing
        .is_filtered()
        .then(|| view! { <a class="btn btn--quiet" href="/operator/orgs">"Clear filters"</a> });
    view! {
        <form class="filters" method="get" action="/operator/orgs" aria-label="Filter">
            <label class="filters__field" for="orgs-name">
                "Name"
                <input
                    class="input"
                    id="orgs-name"
                    name="name"
                    autocomplete="off"
                    maxlength="100"
                    placeholder="part of the name"
                    value=name
                />
            </label>
            <label class="check">
                <input type="checkbox" name="without_credit" value="true" checked=without_credit/>
                <span>"Without credit"</span>
            </label>
            <label class="filters__field" for="orgs-order">
                "Order by"
                <select class="select" id="orgs-order" name="order_by">{orders}</select>
            </label>
            <label class="filters__field" for="orgs-sort">
                "Direction"
                <select class="select" id="orgs-sort" name="sort">
                    <option value="asc" selected=!descending>"ascending"</option>
                    <option value="desc" selected=descending>"descending"</option>
                </select>
            </label>
            <button class="btn" type="submit">"Apply filter"</button>
            {clear}
        </form>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_and_order_are_parsed_from_a_url() {
        let parse = |query: &[(&str, &str)]| {
            OrgListing::parse(|name| {
                query.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let plain = parse(&[("order_by", "colour"), ("name", " "), ("sort", "up"), ("without_credit", "no")]);
        assert_eq!((plain.query().as_str(), plain.is_filtered()), ("order_by=created&sort=desc", false));
        assert_eq!(parse(&[("order_by", "name")]).query(), "order_by=name&sort=asc");
        let found =
            parse(&[("order_by", "spent"), ("sort", "desc"), ("name", " a&b"), ("without_credit", "true")]);
        assert_eq!(found.query(), "order_by=spent&sort=desc&name=a%26b&without_credit=true");
        assert!(found.is_filtered());
    }
}
