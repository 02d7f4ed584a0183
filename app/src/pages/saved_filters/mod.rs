//! Saved filters of a list: choice, save, new name and deletion.
//!
//! The browser keeps the filters, by user and list. A filter is the query of an address, so a link shares it.

mod stored;

use berth_types::ids::UserId;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use self::stored::{Filters, MAX_NAME_CHARS, SavedFilter, change, stored};
use super::parts::{Modal, focus_soon, ready};
use crate::session::use_session;

/// The filters of the shown list.
#[derive(Clone, Copy)]
struct SavedList {
    user: UserId,
    /// The name of the list in the storage; absent without an organization.
    list: Signal<Option<String>>,
    filters: RwSignal<Filters>,
    /// The problem of the last change.
    problem: RwSignal<Option<&'static str>>,
    /// The result of the last change.
    result: RwSignal<String>,
    /// The last deleted filter with its place.
    removed: RwSignal<Option<(usize, SavedFilter)>>,
}

impl SavedList {
    /// Reads the filters after hydration and after each change of the list.
    fn new(user: UserId, list: Signal<Option<String>>) -> Self {
        let saved = Self {
            user,
            list,
            filters: RwSignal::new(Filters::default()),
            problem: RwSignal::new(None),
            result: RwSignal::new(String::new()),
            removed: RwSignal::new(None),
        };
        Effect::new(move || {
            let name = list.get();
            saved.filters.set(name.map(|name| stored(user, &name)).unwrap_or_default());
        });
        saved
    }

    /// Forgets the texts about earlier changes.
    fn clear(self) {
        self.problem.set(None);
        self.result.set(String::new());
        self.removed.set(None);
    }

    /// Changes the stored filters. Returns `None` after a refusal, with its problem.
    fn change<T>(self, work: impl FnOnce(&mut Filters) -> Result<T, &'static str>) -> Option<T> {
        let list = self.list.get_untracked()?;
        self.clear();
        match change(self.user, &list, work) {
            Ok((filters, value)) => {
                self.filters.set(filters);
                Some(value)
            }
            Err(problem) => {
                self.problem.set(Some(problem));
                None
            }
        }
    }

    fn remove(self, name: &str) {
        let removed = self.change(|filters| Ok(filters.remove(name))).flatten();
        if removed.is_some() {
            self.result.set(format!("Deleted {name}."));
            self.removed.set(removed);
            // The row of the button may be gone.
            focus_soon("#undo-filter".to_owned());
        }
    }

    fn undo(self) {
        let Some((place, one)) = self.removed.get_untracked() else { return };
        if self.change(|filters| filters.insert(place, &one.name, &one.query)).is_some() {
            self.result.set(format!("Restored {}.", one.name));
            // The button is hidden now.
            let row = place.saturating_add(1);
            focus_soon(format!("#edit-filters .rows__row:nth-child({row}) .btn--danger"));
        }
    }
}

/// The choice of a saved filter with the buttons to save the present one and to edit all.
#[component]
pub fn SavedFilters(
    /// The name of the list in the storage; absent without an organization.
    list: Signal<Option<String>>,
    /// The query of the present filter without `?`; empty without a filter.
    query: Signal<String>,
    /// Opens the list with a query without `?`, which may be empty.
    open: Callback<String>,
) -> impl IntoView {
    let ready = ready();
    let saved = SavedList::new(use_session().me.user.id, list);
    let (saving, editing) = (RwSignal::new(false), RwSignal::new(false));
    let names = Memo::new(move |_| {
        saved.filters.with(|filters| {
            filters.list().iter().map(|one| (one.name.clone(), one.query.clone())).collect::<Vec<_>>()
        })
    });
    let none = move || names.with(Vec::is_empty);
    let option = move |(name, of_name): (String, String)| {
        let chosen = move || query.with(|query| *query == of_name);
        let value = name.clone();
        view! { <option value=value prop:selected=chosen>{name}</option> }
    };
    let unsaved = move || query.with(|query| !names.with(|names| names.iter().any(|(_, one)| one == query)));
    let choose = move |event| {
        let name = event_target_value(&event);
        let query = saved.filters.with_untracked(|filters| filters.find(&name).map(|one| one.query.clone()));
        // Without a saved filter the list has all items.
        open.run(query.unwrap_or_default());
    };
    view! {
        <div class="filters">
            <label class="filters__field" for="saved-filter">
                "Saved filter"
                <select
                    class="select"
                    id="saved-filter"
                    disabled=move || !ready.get() || none()
                    on:change=choose
                >
                    <option value="" selected=true prop:selected=unsaved>"none"</option>
                    {move || names.get().into_iter().map(option).collect_view()}
                </select>
            </label>
            <button
                class="btn"
                type="button"
                disabled=move || !ready.get() || query.with(String::is_empty)
                on:click=move |_| {
                    saved.clear();
                    saving.set(true);
                }
            >
                "Save this filter"
            </button>
            <button
                class="btn btn--quiet"
                type="button"
                disabled=move || !ready.get() || none()
                on:click=move |_| {
                    saved.clear();
                    editing.set(true);
                }
            >
                "Edit saved filters"
            </button>
        </div>
        <SaveDialog saved=saved query=query open=saving/>
        <EditDialog saved=saved open=editing/>
    }
}

/// The dialog with the name of a new filter.
#[component]
fn SaveDialog(saved: SavedList, query: Signal<String>, open: RwSignal<bool>) -> impl IntoView {
    let name = RwSignal::new(String::new());
    let problem = saved.problem;
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let (name_text, query) = (name.get_untracked(), query.get_untracked());
        if saved.change(|filters| filters.add(&name_text, &query)).is_some() {
            name.set(String::new());
            open.set(false);
        }
    };
    view! {
        <Modal id="save-filter" title="Save this filter" open=open>
            <form method="post" on:submit=submit>
                <div class="dialog__body">
                    <div class="field field--wide">
                        <label class="field__label" for="save-filter-name">"Name"</label>
                        <input
                            id="save-filter-name"
                            autocomplete="off"
                            maxlength=MAX_NAME_CHARS.to_string()
                            aria-describedby="save-filter-hint save-filter-error"
                            aria-invalid=move || problem.get().map(|_| "true")
                            prop:value=move || name.get()
                            on:input=move |event| name.set(event_target_value(&event))
                        />
                        <p class="field__hint" id="save-filter-hint">
                            "This browser keeps the filter for you. The address of the list shares it with others."
                        </p>
                        {move || {
                            problem
                                .get()
                                .map(|text| view! { <p class="field__error" id="save-filter-error" role="alert">{text}</p> })
                        }}
                    </div>
                </div>
                <div class="dialog__actions">
                    <button class="btn" type="button" on:click=move |_| open.set(false)>"Close"</button>
                    <button class="btn btn--primary" type="submit">"Save filter"</button>
                </div>
            </form>
        </Modal>
    }
}

/// The dialog with all filters, their new names and their deletion.
#[component]
fn EditDialog(saved: SavedList, open: RwSignal<bool>) -> impl IntoView {
    let SavedList { filters, problem, result, removed, .. } = saved;
    let count = Memo::new(move |_| filters.with(|filters| filters.list().len()));
    let places = move || 0..count.get();
    let undoable = Memo::new(move |_| removed.with(Option::is_some));
    view! {
        <Modal id="edit-filters" title="Saved filters" open=open>
            <div class="dialog__body">
                <div class="rows">
                    // By place: a new name leaves the row and the focus.
                    <For
                        each=places
                        key=|place: &usize| *place
                        children=move |place: usize| view! { <FilterRow saved=saved place=place/> }
                    />
                </div>
                <p class="quiet" hidden=move || { count.get() > 0 }>"No saved filters."</p>
                <div class="row">
                    <p class="quiet" role="status">{move || result.get()}</p>
                    <button
                        class="btn btn--small"
                        id="undo-filter"
                        type="button"
                        hidden=move || !undoable.get()
                        on:click=move |_| saved.undo()
                    >
                        "Undo"
                    </button>
                </div>
                {move || problem.get().map(|text| view! { <p class="field__error" role="alert">{text}</p> })}
            </div>
            <div class="dialog__actions">
                <button class="btn" type="button" on:click=move |_| open.set(false)>"Close"</button>
            </div>
        </Modal>
    }
}

/// A row with the name of a filter.
#[component]
fn FilterRow(
    saved: SavedList,
    /// The place of the filter in the list.
    place: usize,
) -> impl IntoView {
    let known = Memo::new(move |_| {
        saved
            .filters
            .with(|filters| filters.list().get(place).map(|one| one.name.clone()))
            .unwrap_or_default()
    });
    let name = RwSignal::new(known.get_untracked());
    // Another filter may take the place.
    Effect::new(move || name.set(known.get()));
    let rename = move |event: SubmitEvent| {
        event.prevent_default();
        let (from, to) = (known.get_untracked(), name.get_untracked());
        if saved.change(|filters| filters.rename(&from, &to)).is_some() {
            saved.result.set(format!("Renamed {from} to {}.", to.trim()));
        }
    };
    let label = move |text: &'static str| move || known.with(|known| format!("{text} {known}"));
    view! {
        <form class="rows__row" method="post" on:submit=rename>
            <input
                class="input"
                autocomplete="off"
                maxlength=MAX_NAME_CHARS.to_string()
                aria-label=label("Name of")
                prop:value=move || name.get()
                on:input=move |event| name.set(event_target_value(&event))
            />
            <button class="btn btn--small" type="submit" aria-label=label("Rename")>"Rename"</button>
            <button
                class="btn btn--danger btn--small"
                type="button"
                aria-label=label("Delete")
                on:click=move |_| saved.remove(&known.get_untracked())
            >
                "Delete"
            </button>
        </form>
    }
}
