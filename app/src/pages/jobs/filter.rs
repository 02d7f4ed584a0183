//! Filter and order of the list of jobs, with their address.

use berth_types::Sort;
use berth_types::jobs::{JobState, OrgJobFilter};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::text::state_text;
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::ui::*;

/// A choice of states: a state, or ended and open jobs.
type States = (Option<JobState>, Option<bool>);

/// The choices of the filter, without short states.
const CHOICES: [States; 9] = [
    (None, None),
    (None, Some(false)),
    (None, Some(true)),
    (Some(JobState::Queued), None),
    (Some(JobState::Running), None),
    (Some(JobState::Succeeded), None),
    (Some(JobState::Failed), None),
    (Some(JobState::Cancelled), None),
    (Some(JobState::TimedOut), None),
];

/// Filter and order of the list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    /// The filter.
    pub filter: OrgJobFilter,
    /// The order by submission.
    pub sort: Sort,
}

impl Listing {
    /// Parses the query of an address; invalid values are ignored.
    pub fn parse(get: impl Fn(&str) -> Option<String>) -> Self {
        let text = |name: &str| get(name).map(|t| t.trim().to_owned()).filter(|t| !t.is_empty());
        let filter = OrgJobFilter {
            state: text("state").and_then(|name| JobState::parse(&name)),
            ended: text("ended").and_then(|ended| ended.parse().ok()),
            name: text("name"),
            created_by: text("created_by"),
            label: text("label"),
        };
        let sort = if text("sort").as_deref() == Some("asc") { Sort::Asc } else { Sort::Desc };
        Self { filter, sort }
    }

    fn states(&self) -> States {
        (self.filter.state, self.filter.ended)
    }

    /// Returns filter and order as a query without `?`; empty for all jobs, newest first.
    pub fn query(&self) -> String {
        let filter = api::jobs::filter_query(&self.filter);
        let sort = if self.sort == Sort::Asc { "sort=asc" } else { "" };
        [filter.as_str(), sort].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&")
    }

    /// Returns the page of the list.
    fn page(&self) -> String {
        let query = self.query();
        if query.is_empty() { "/jobs".to_owned() } else { format!("/jobs?{query}") }
    }
}

fn states_text((state, ended): States) -> String {
    match (state, ended) {
        (Some(state), _) => state_text(state),
        (None, Some(true)) => "ended".to_owned(),
        (None, Some(false)) => "active".to_owned(),
        (None, None) => "all".to_owned(),
    }
}

/// Filter and order; a choice opens the address of its list.
#[component]
pub fn Filter(
    /// The filter and order of the address.
    listing: Memo<Listing>,
) -> impl IntoView {
    // A choice before hydration would be lost.
    let (links, ready) = (use_org_links(), ready());
    let choice = move |states: States| {
        let at_first = listing.with_untracked(|listing| listing.states() == states);
        let choose = move |_| {
            let mut chosen = listing.get_untracked();
            (chosen.filter.state, chosen.filter.ended) = states;
            go(&links.path(&chosen.page()));
        };
        view! {
            <label>
                <input
                    type="radio"
                    name="states"
                    disabled=move || !ready.get()
                    checked=at_first
                    prop:checked=move || { listing.with(|listing| listing.states() == states) }
                    on:change=choose
                />
                {states_text(states)}
            </label>
        }
    };
    let any = Memo::new(move |_| listing.with(|listing| listing.filter != OrgJobFilter::default()));
    view! {
        <div class="filters">
            <div class="segmented" role="radiogroup" aria-label="State">
                {CHOICES.map(choice).into_iter().collect_view()}
            </div>
        </div>
        <div class="filters">
            <FilterForm listing=listing/>
            <Order listing=listing/>
            {move || any.get().then(|| view! { <a class="btn btn--quiet" href=org_link("/jobs")>"Clear filters"</a> })}
        </div>
    }
}

/// Returns a signal with a text of the filter, which follows the address.
fn filter_field(listing: Memo<Listing>, field: fn(&OrgJobFilter) -> &Option<String>) -> RwSignal<String> {
    let text = move |listing: &Listing| field(&listing.filter).clone().unwrap_or_default();
    // Another choice leaves the typed text.
    let chosen = Memo::new(move |_| listing.with(text));
    let value = RwSignal::new(chosen.get_untracked());
    Effect::new(move |before: Option<()>| {
        let chosen = chosen.get();
        if before.is_some() {
            value.set(chosen);
        }
    });
    value
}

/// The texts of the filter. A plain form, which also works without scripts.
#[component]
fn FilterForm(listing: Memo<Listing>) -> impl IntoView {
    let links = use_org_links();
    let name = filter_field(listing, |filter| &filter.name);
    let person = filter_field(listing, |filter| &filter.created_by);
    let label = filter_field(listing, |filter| &filter.label);
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let text = |value: RwSignal<String>| {
            Some(value.with_untracked(|value| value.trim().to_owned())).filter(|text| !text.is_empty())
        };
        let mut chosen = listing.get_untracked();
        chosen.filter.name = text(name);
        chosen.filter.created_by = text(person);
        chosen.filter.label = text(label);
        go(&links.path(&chosen.page()));
    };
    let input = move |id: &'static str,
                      title: &'static str,
                      name: &'static str,
                      placeholder: &'static str,
                      value: RwSignal<String>| {
        let first = value.get_untracked();
        let (is_label, longest) = if name == "label" { (true, "127") } else { (false, "100") };
        view! {
            <label class="filters__field" for=id>
                {title}
                <input
                    class="input"
                    id=id
                    name=name
                    autocomplete="off"
                    maxlength=longest
                    placeholder=placeholder
                    // The browser checks the pattern, with the title in its message.
                    pattern=is_label.then_some("[^=]+=.*")
                    title=is_label.then_some("Enter a label as key=value, such as project=ocr.")
                    value=first
                    prop:value=move || value.get()
                    on:input=move |ev| value.set(event_target_value(&ev))
                />
            </label>
        }
    };
    let state = move || listing.with(|listing| listing.filter.state.map_or("", JobState::name));
    let ended = move || {
        listing.with(|listing| listing.filter.ended.map_or_else(String::new, |ended| ended.to_string()))
    };
    let sort = move || listing.with(|listing| if listing.sort == Sort::Asc { "asc" } else { "desc" });
    view! {
        <form class="filters" method="get" action=org_link("/jobs") aria-label="Filter" on:submit=submit>
            <input type="hidden" name="state" value=state/>
            <input type="hidden" name="ended" value=ended/>
            <input type="hidden" name="sort" value=sort/>
            {input("jobs-name", "Name", "name", "part of the name", name)}
            {input("jobs-person", "Submitted by", "created_by", "part of the name", person)}
            {input("jobs-label", "Label", "label", "key=value", label)}
            <button class="btn" type="submit">"Apply filter"</button>
        </form>
    }
}

/// The choice of the order.
#[component]
fn Order(listing: Memo<Listing>) -> impl IntoView {
    let (links, ready) = (use_org_links(), ready());
    let name = |sort: Sort| if sort == Sort::Asc { "asc" } else { "desc" };
    let option = move |sort: Sort, text: &'static str| {
        let chosen = move || listing.with(|listing| listing.sort == sort);
        view! { <option value=name(sort) selected=chosen>{text}</option> }
    };
    let choose = move |event| {
        let sort = if event_target_value(&event) == "asc" { Sort::Asc } else { Sort::Desc };
        go(&links.path(&Listing { sort, ..listing.get_untracked() }.page()));
    };
    view! {
        <label class="filters__field" for="jobs-order">
            "Order"
            <select
                class="select"
                id="jobs-order"
                disabled=move || !ready.get()
                prop:value=move || listing.with(|listing| name(listing.sort))
                on:change=choose
            >
                {option(Sort::Desc, "newest first")} {option(Sort::Asc, "oldest first")}
            </select>
        </label>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &[(&str, &str)]) -> Listing {
        Listing::parse(|name| {
            query.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_address_has_filter_and_order() {
        assert_eq!(parse(&[("state", "nonsense"), ("name", " "), ("ended", "x")]).page(), "/jobs");
        let listing = parse(&[("ended", "false"), ("label", " team=a "), ("sort", "asc")]);
        assert_eq!(listing.page(), "/jobs?ended=false&label=team%3Da&sort=asc");
        assert_eq!((listing.sort, listing.states()), (Sort::Asc, (None, Some(false))));
        assert_eq!(parse(&[("sort", "asc")]).page(), "/jobs?sort=asc");
        assert_eq!(parse(&[("state", "timed_out")]).states(), (Some(JobState::TimedOut), None));
    }

    #[test]
    fn each_choice_of_states_has_a_text() {
        assert_eq!(CHOICES.map(states_text)[..4], ["all", "active", "ended", "queued"]);
    }
}
