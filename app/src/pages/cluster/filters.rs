//! Filter, colours and views of the cluster page. A choice opens its address.

use berth_types::cluster::{BoardState, ClusterMap, WHOLE_BOARD};
use leptos::prelude::*;

use super::super::parts::ready;
use super::choice::Choice;
use super::text::{device_text, rack, state_text};
use crate::address::{OrgLinks, use_org_links};
use crate::ui::*;

/// A value of a filter with its text.
type Options = Memo<Vec<(String, String)>>;

/// Changes the choice and opens its address.
fn change((choice, links): (Memo<Choice>, OrgLinks), apply: impl FnOnce(&mut Choice)) {
    let mut next = choice.get_untracked();
    apply(&mut next);
    go(&links.path(&next.page()));
}

/// Returns the text of a field; `None` for an empty text.
fn non_empty(text: String) -> Option<String> {
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The links to the map and to the table.
#[component]
pub fn Views(
    /// The parameters of the address.
    choice: Memo<Choice>,
) -> impl IntoView {
    let links = use_org_links();
    let link = move |table: bool, name: &'static str| {
        let path = move || links.tracked_path(&Choice { table, ..choice.get() }.page());
        let here = move || (choice.with(|choice| choice.table) == table).then_some("page");
        view! { <a href=path aria-current=here>{name}</a> }
    };
    view! { <nav class="tabs" aria-label="View">{link(false, "Map")} {link(true, "Table")}</nav> }
}

/// Returns a choice between two options as radio buttons.
fn segmented(
    label: &'static str,
    name: &'static str,
    options: [&'static str; 2],
    second: fn(&mut Choice) -> &mut bool,
    choice: Memo<Choice>,
) -> AnyView {
    let (ready, links) = (ready(), use_org_links());
    let is_second = move || *second(&mut choice.get());
    let radio = move |value: bool, text: &'static str| {
        let at_first = untrack(is_second) == value;
        view! {
            <label>
                <input
                    type="radio"
                    name=name
                    disabled=move || !ready.get()
                    checked=at_first
                    prop:checked=move || is_second() == value
                    on:change=move |_| change((choice, links), |next| *second(next) = value)
                />
                {text}
            </label>
        }
    };
    let [one, other] = options;
    view! {
        <div class="segmented" role="radiogroup" aria-label=label>{radio(false, one)} {radio(true, other)}</div>
    }
    .into_any()
}

/// Returns a select field of the filter.
fn select(
    id: &'static str,
    label: &'static str,
    options: Options,
    field: fn(&Choice) -> Option<String>,
    set: fn(&mut Choice, Option<String>),
    choice: Memo<Choice>,
) -> AnyView {
    let links = use_org_links();
    let ready = ready();
    // A value of the address stays a choice, also without a board that has it.
    let all = Memo::new(move |_| {
        let mut all = options.get();
        if let Some(chosen) = choice.with(field)
            && all.iter().all(|(value, _)| *value != chosen)
        {
            all.push((chosen.clone(), chosen));
        }
        all
    });
    let option = move |(value, text): (String, String)| {
        let own = value.clone();
        let selected = move || choice.with(field).as_deref() == Some(own.as_str());
        // After a choice by hand the browser ignores the attribute.
        let property = selected.clone();
        view! { <option value=value selected=selected prop:selected=property>{text}</option> }
    };
    let is_any = move || choice.with(field).is_none();
    view! {
        <label class="filters__field" for=id>
            {label}
            <select
                class="select"
                id=id
                disabled=move || !ready.get()
                on:change=move |ev| change((choice, links), |next| set(next, non_empty(event_target_value(&ev))))
            >
                <option value="" selected=is_any prop:selected=is_any>"any"</option>
                {move || all.get().into_iter().map(option).collect_view()}
            </select>
        </label>
    }
    .into_any()
}

/// Returns equal values and texts, sorted and each once.
fn plain_options(mut values: Vec<String>) -> Vec<(String, String)> {
    values.sort();
    values.dedup();
    values.into_iter().map(|value| (value.clone(), value)).collect()
}

fn racks(map: &ClusterMap) -> Vec<(String, String)> {
    plain_options(map.nodes.iter().filter_map(rack).map(str::to_owned).collect())
}

fn models(map: &ClusterMap) -> Vec<(String, String)> {
    plain_options(map.models.iter().map(|model| model.name.clone()).collect())
}

/// Returns the whole board and the profiles of all models, from the smallest of each model.
fn devices(map: &ClusterMap) -> Vec<(String, String)> {
    let mut all = vec![WHOLE_BOARD.to_owned()];
    for profile in map.models.iter().flat_map(|model| &model.profiles) {
        if !all.contains(profile) {
            all.push(profile.clone());
        }
    }
    all.into_iter().map(|device| (device.clone(), device_text(&device))).collect()
}

/// The filter of boards, and the colours of the map or the order of the table.
#[component]
pub fn Filters(
    /// The boards.
    map: RwSignal<ClusterMap>,
    /// The parameters of the address.
    choice: Memo<Choice>,
) -> impl IntoView {
    let links = use_org_links();
    let ready = ready();
    let states = || BoardState::ALL.map(|state| (state.name().to_owned(), state_text(state))).to_vec();
    let (states, models, devices, racks) = (
        Memo::new(move |_| states()),
        Memo::new(move |_| map.with(models)),
        Memo::new(move |_| map.with(devices)),
        Memo::new(move |_| map.with(racks)),
    );
    let state_name = |choice: &Choice| choice.filter.state.map(|state| state.name().to_owned());
    let set_state = |choice: &mut Choice, name: Option<String>| {
        choice.filter.state = name.and_then(|name| BoardState::parse(&name));
    };
    let is_table = Memo::new(move |_| choice.with(|choice| choice.table));
    let label_value = move || choice.with(|choice| choice.filter.label.clone()).unwrap_or_default();
    let apply_label = move |text: String| change((choice, links), |next| next.filter.label = non_empty(text));
    view! {
        <div class="filters" role="group" aria-label="Filter">
            <div hidden=move || is_table.get()>
                {segmented("Colours", "colours", ["By state", "By use"], |choice| &mut choice.by_use, choice)}
            </div>
            <div hidden=move || !is_table.get()>
                {segmented("Order", "order", ["A–Z", "Z–A"], |choice| &mut choice.descending, choice)}
            </div>
            {select(
                "boards-model",
                "Model",
                models,
                |choice| choice.filter.model.clone(),
                |choice, model| choice.filter.model = model,
                choice,
            )}
            {select(
                "boards-free",
                "Free device",
                devices,
                |choice| choice.filter.fits.clone(),
                |choice, device| choice.filter.fits = device,
                choice,
            )}
            {select("boards-state", "State", states, state_name, set_state, choice)}
            {select(
                "boards-rack",
                "Rack",
                racks,
                |choice| choice.filter.rack.clone(),
                |choice, rack| choice.filter.rack = rack,
                choice,
            )}
            <label class="filters__field" for="boards-label">
                "Node label"
                <input
                    class="input"
                    id="boards-label"
                    autocomplete="off"
                    placeholder="key=value"
                    maxlength="127"
                    disabled=move || !ready.get()
                    value=label_value
                    prop:value=label_value
                    on:change=move |ev| apply_label(event_target_value(&ev))
                />
            </label>
            <label class="check">
                <input
                    type="checkbox"
                    disabled=move || !ready.get()
                    prop:checked=move || choice.with(|choice| choice.filter.own)
                    on:change=move |ev| {
                        let own = event_target_checked(&ev);
                        change((choice, links), |next| next.filter.own = own);
                    }
                />
                "Your jobs"
            </label>
            <label class="check">
                <input
                    type="checkbox"
                    disabled=move || !ready.get()
                    prop:checked=move || choice.with(|choice| choice.filter.dedicated)
                    on:change=move |ev| {
                        let dedicated = event_target_checked(&ev);
                        change((choice, links), |next| next.filter.dedicated = dedicated);
                    }
                />
                "Dedicated nodes"
            </label>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_types::cluster::{BoardModel, MapNode};

    #[test]
    fn options_are_those_of_the_boards() {
        let model = |name: &str, profiles: &[&str]| BoardModel {
            name: name.to_owned(),
            profiles: profiles.iter().map(|profile| (*profile).to_owned()).collect(),
        };
        let node = |rack: &str| MapNode {
            id: "node_00000000000000000000000001".parse().unwrap(),
            name: "pier-01".to_owned(),
            labels: [("rack".to_owned(), rack.to_owned())].into(),
            dedicated: false,
            boards: Vec::new(),
        };
        let map = ClusterMap {
            models: vec![model("H100", &["1g", "2g"]), model("A30", &["1g", "4g"])],
            free_sets: Vec::new(),
            nodes: vec![node("r2"), node("r1"), node("r2")],
        };
        let values = |options: Vec<(String, String)>| options.into_iter().map(|(value, _)| value).collect();
        let (models, racks): (Vec<String>, Vec<String>) = (values(models(&map)), values(racks(&map)));
        assert_eq!(
            (models, racks),
            (vec!["A30".to_owned(), "H100".to_owned()], vec!["r1".to_owned(), "r2".to_owned()])
        );
        let devices = devices(&map);
        let texts: Vec<&str> = devices.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["whole board", "1g", "2g", "4g"]);
        assert_eq!(non_empty(" ".to_owned()), None);
    }
}
