//! The command palette: pages, jobs, volumes, organizations and actions by a few letters. Its dialog is loaded at
//! the first opening.

use std::time::Duration;

use berth_types::ids::{JobId, OrgId};
use futures::join;
use leptos::ev::{KeyboardEvent, keydown};
use leptos::prelude::*;
use leptos::task::spawn_local;
use leptos::wasm_split::{SplitLoaderError, wasm_split};
use send_wrapper::SendWrapper;

use super::{go, open_url};
use crate::address::OrgLinks;
use crate::api;
use crate::theme::{choose_theme, use_theme};

/// The maximum number of shown entries.
const MAX_SHOWN: usize = 12;
/// The pause after the last key before the request for jobs.
const PAUSE_MS: u64 = 200;
/// The number of newest jobs among which the palette searches.
const SEARCHED_JOBS: u32 = 200;

/// The data of the palette.
#[derive(Clone)]
pub struct PaletteData {
    /// The path and the name of each page.
    pub links: Vec<(&'static str, String)>,
    /// The slug and the name of the organizations of the user.
    pub orgs: Vec<(String, String)>,
    /// The shown organization.
    pub org: Memo<Option<OrgId>>,
    /// The addresses of its pages.
    pub pages: OrgLinks,
    /// Opens an organization by its slug.
    pub choose: Callback<String>,
    /// True with an open dialog.
    pub open: RwSignal<bool>,
}

/// The pages outside of the app: address and name.
const OUTSIDE: [(&str, &str); 2] = [("/docs", "Documentation"), ("/api/docs", "API reference")];

/// Returns the entry of a job or a volume with its page.
fn object(kind: &'static str, page: String, text: String) -> Entry {
    Entry { text, kind, action: Action::Open(page) }
}

/// The effect of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    /// Opens a page: of operators, or of the shown organization.
    Open(String),
    /// Opens an address that the portal serves outside of the app.
    Leave(&'static str),
    Choose(String),
    NextTheme,
}

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    text: String,
    /// The kind of the entry.
    kind: &'static str,
    action: Action,
}

/// Returns all entries without the jobs and volumes: actions, pages, organizations.
fn fixed_entries(data: &PaletteData) -> Vec<Entry> {
    let tenant = !data.orgs.is_empty();
    let launch =
        Entry { text: "Launch job".to_owned(), kind: "Action", action: Action::Open("/launch".to_owned()) };
    let service = Entry {
        text: "New service".to_owned(),
        kind: "Action",
        action: Action::Open("/services/new".to_owned()),
    };
    let theme = Entry { text: "Change theme".to_owned(), kind: "Action", action: Action::NextTheme };
    let pages = data.links.iter().map(|(path, name)| Entry {
        text: name.clone(),
        kind: "Page",
        action: Action::Open((*path).to_owned()),
    });
    let outside = OUTSIDE.map(|(path, name)| Entry {
        text: name.to_owned(),
        kind: "Page",
        action: Action::Leave(path),
    });
    let switch = |(slug, name): &(String, String)| Entry {
        text: format!("Switch organization: {name}"),
        kind: "Action",
        action: Action::Choose(slug.clone()),
    };
    let several = data.orgs.len() > 1;
    let orgs = data.orgs.iter().filter(|_| several).map(switch);
    tenant
        .then_some([launch, service])
        .into_iter()
        .flatten()
        .chain(pages)
        .chain(outside)
        .chain(orgs)
        .chain(std::iter::once(theme))
        .collect()
}

/// Returns the entries with all words of the search in their text, at most [`MAX_SHOWN`].
fn matching(entries: &[Entry], objects: &[Entry], search: &str) -> Vec<Entry> {
    let search = search.to_lowercase();
    let words: Vec<&str> = search.split_whitespace().collect();
    let fits = |entry: &&Entry| {
        let text = entry.text.to_lowercase();
        words.iter().all(|word| text.contains(word))
    };
    // Without a search the pages have the place.
    let objects = objects.iter().filter(|_| !words.is_empty());
    entries.iter().chain(objects).filter(fits).take(MAX_SHOWN).cloned().collect()
}

/// The button that opens the palette.
#[component]
pub fn PaletteButton(
    /// True with an open dialog.
    open: RwSignal<bool>,
) -> impl IntoView {
    // A click before hydration would be lost.
    let ready = super::ready();
    view! {
        <button
            class="palette-button"
            type="button"
            aria-haspopup="dialog"
            aria-keyshortcuts="Control+K Meta+K"
            disabled=move || !ready.get()
            on:click=move |_| open.set(true)
        >
            "Go to"
            <kbd aria-hidden="true">"Ctrl K"</kbd>
        </button>
    }
}

/// The data of the palette of the present session; none without a session.
pub type PaletteSlot = RwSignal<Option<PaletteData>>;

/// The shortcut and, after the first opening, the dialog.
///
/// It is outside of the pages: the arrival of a page takes the frame out of the document for a moment, and a dialog in
/// it would lose the typed letters.
#[component]
pub fn Palette(
    /// The data of the frame of the session.
    data: PaletteSlot,
) -> impl IntoView {
    Effect::new(move || {
        let handle = window_event_listener(keydown, move |event: KeyboardEvent| {
            let held = (event.ctrl_key() || event.meta_key()) && !event.shift_key() && !event.alt_key();
            if held
                && event.key().eq_ignore_ascii_case("k")
                && let Some(open) = data.with_untracked(|data| data.as_ref().map(|data| data.open))
            {
                event.prevent_default();
                open.set(true);
            }
        });
        on_cleanup(move || handle.remove());
    });
    let wanted = Memo::new(move |before: Option<&bool>| {
        let is_open = data.with(|data| data.as_ref().is_some_and(|data| data.open.get()));
        is_open || before.is_some_and(|before| *before)
    });
    move || {
        data.get().filter(|_| wanted.get()).map(|data| {
            // The browser has one thread, so the value never changes its thread.
            Suspend::new(SendWrapper::new(async move {
                match dialog(data).await {
                    Ok(view) => view,
                    Err(_) => {
                        let text = "This part did not load. Nothing was changed. Reload the page.";
                        view! { <p class="waking" role="alert">{text}</p> }.into_any()
                    }
                }
            }))
        })
    }
}

/// Returns the dialog, in a part of its own.
#[wasm_split(palette, wasm_split_path = ::leptos::wasm_split, preload(load_dialog), fallible)]
fn dialog(data: PaletteData) -> Result<AnyView, SplitLoaderError> {
    Ok(view! { <PaletteDialog data=data/> }.into_any())
}

/// Requests the newest jobs and the volumes of the chosen organization once for each opening, after the first letters.
fn load_objects(data: &PaletteData, search: RwSignal<String>) -> RwSignal<Vec<Entry>> {
    let objects = RwSignal::new(Vec::new());
    let loaded = RwSignal::new(false);
    let (open, org) = (data.open, data.org);
    Effect::new(move || {
        if !open.get() {
            loaded.set(false);
            objects.set(Vec::new());
        }
    });
    Effect::new(move || {
        let Some(org) = org.get().filter(|_| open.get()) else { return };
        if loaded.get_untracked() || search.with(|search| search.trim().is_empty()) {
            return;
        }
        let request = move || {
            loaded.set(true);
            let lists = (api::jobs::list(org, None, None, SEARCHED_JOBS), api::volumes::list(org));
            spawn_local(async move {
                let (jobs, volumes) = join!(lists.0, lists.1);
                // A list without an answer has no entries.
                let jobs = jobs.into_iter().flat_map(|page| page.items);
                let volumes = volumes.into_iter().flat_map(|page| page.items);
                let jobs = jobs.map(|job| object("Job", format!("/jobs/{}", job.id), job.name));
                let volumes = volumes.map(|one| object("Volume", format!("/volumes/{}", one.name), one.name));
                let _ = objects.try_set(jobs.chain(volumes).collect());
            });
        };
        if let Ok(handle) = set_timeout_with_handle(request, Duration::from_millis(PAUSE_MS)) {
            on_cleanup(move || handle.clear());
        }
    });
    objects
}

/// Requests the job whose complete id is the search.
fn load_by_id(data: &PaletteData, search: RwSignal<String>) -> RwSignal<Option<api::Answer<Entry>>> {
    let found = RwSignal::new(None);
    let (open, org) = (data.open, data.org);
    let id = Memo::new(move |_| search.with(|search| search.trim().parse::<JobId>().ok()));
    Effect::new(move || {
        found.set(None);
        let (true, Some(org), Some(asked)) = (open.get(), org.get(), id.get()) else { return };
        let job = api::jobs::get(org, asked);
        spawn_local(async move {
            let answer = job.await.map(|job| format!("{} {asked}", job.name));
            if id.try_get_untracked() == Some(Some(asked)) {
                found.set(Some(answer.map(|text| object("Job", format!("/jobs/{asked}"), text))));
            }
        });
    });
    found
}

/// Returns the id of an option.
fn option_id(index: usize) -> String {
    format!("palette-{index}")
}

#[component]
fn PaletteDialog(data: PaletteData) -> impl IntoView {
    let open = data.open;
    let theme = use_theme();
    let search = RwSignal::new(String::new());
    let current = RwSignal::new(0usize);
    let element = NodeRef::<leptos::html::Dialog>::new();
    // True from an opening until the dialog is shown: the event of its last close can come later, also after it.
    let opening = RwSignal::new(false);
    let objects = load_objects(&data, search);
    let found = load_by_id(&data, search);
    let fixed = fixed_entries(&data);
    let entries = Memo::new(move |_| {
        let objects: Vec<Entry> = found.get().and_then(Result::ok).into_iter().chain(objects.get()).collect();
        search.with(|search| matching(&fixed, &objects, search))
    });
    Effect::new(move || {
        let wanted = open.get();
        let Some(dialog) = element.get() else { return };
        if wanted && !dialog.open() {
            search.set(String::new());
            current.set(0);
            // The element of the first opening is not in the document yet.
            opening.set(true);
            request_animation_frame(move || {
                let _ = opening.try_set(false);
                if open.try_get_untracked() == Some(true) && !dialog.open() {
                    // It fails only for a removed element.
                    let _ = dialog.show_modal();
                }
            });
        } else if !wanted && dialog.open() {
            dialog.close();
        }
    });
    let (choose, pages) = (data.choose, data.pages);
    let run = move |action: Action| {
        open.set(false);
        match action {
            Action::Open(path) if path.starts_with("/operator") => go(&path),
            Action::Open(page) => go(&pages.path(&page)),
            Action::Leave(path) => open_url(path),
            Action::Choose(slug) => choose.run(slug),
            Action::NextTheme => choose_theme(theme, theme.get_untracked().following()),
        }
    };
    let keys = move |event: KeyboardEvent| {
        let last = entries.with_untracked(Vec::len).saturating_sub(1);
        let now = current.get_untracked();
        match event.key().as_str() {
            "ArrowDown" => current.set(if now >= last { 0 } else { now + 1 }),
            "ArrowUp" => current.set(if now == 0 { last } else { now - 1 }),
            "Enter" => {
                if let Some(entry) = entries.with_untracked(|entries| entries.get(now).cloned()) {
                    run(entry.action);
                }
            }
            _ => return,
        }
        event.prevent_default();
    };
    let options = move || {
        let now = current.get();
        entries
            .get()
            .into_iter()
            .enumerate()
            .map(|(index, entry)| option((index, index == now), entry, run))
            .collect_view()
    };
    let active = move || {
        let index = current.get();
        entries.with(|entries| index < entries.len()).then(|| option_id(index))
    };
    let count = move || match entries.with(Vec::len) {
        0 if found.get().and_then(Result::err).is_some_and(|problem| problem.status == 404) => {
            "No job with this id.".to_owned()
        }
        0 => "Nothing found.".to_owned(),
        1 => "1 result".to_owned(),
        count => format!("{count} results"),
    };
    view! {
        <dialog
            class="dialog palette"
            aria-label="Go to"
            node_ref=element
            on:close=move |_| {
                let is_shown = element.get_untracked().is_some_and(|dialog| dialog.open());
                if !is_shown && !opening.get_untracked() {
                    open.set(false);
                }
            }
        >
            <input
                class="input"
                type="text"
                role="combobox"
                aria-label="Page, job, volume or action"
                aria-expanded="true"
                aria-autocomplete="list"
                aria-controls="palette-list"
                aria-activedescendant=active
                autocomplete="off"
                spellcheck="false"
                maxlength="100"
                placeholder="Page, job, volume or action"
                autofocus
                prop:value=move || search.get()
                on:input=move |event| {
                    search.set(event_target_value(&event));
                    current.set(0);
                }
                on:keydown=keys
            />
            <ul class="palette__list" id="palette-list" role="listbox" aria-label="Results">{options}</ul>
            <p class="palette__count" role="status">{count}</p>
        </dialog>
    }
}

/// Returns one option of the list.
fn option(
    (index, current): (usize, bool),
    entry: Entry,
    run: impl Fn(Action) + Copy + Send + 'static,
) -> AnyView {
    let Entry { text, kind, action } = entry;
    view! {
        <li
            class="palette__option"
            id=option_id(index)
            role="option"
            aria-selected=if current { "true" } else { "false" }
            on:click=move |_| run(action.clone())
        >
            <span class="palette__text">{text}</span>
            <span class="quiet small">{kind}</span>
        </li>
    }
    .into_any()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str, kind: &'static str) -> Entry {
        Entry { text: text.to_owned(), kind, action: Action::Open(format!("/{text}")) }
    }

    fn texts(found: &[Entry]) -> Vec<&str> {
        found.iter().map(|entry| entry.text.as_str()).collect()
    }

    #[test]
    fn all_words_of_a_search_must_be_in_the_text() {
        let pages = [entry("Jobs", "Page"), entry("Operator: All jobs", "Page"), entry("Billing", "Page")];
        let jobs = [entry("train-7b", "Job"), entry("jobs-of-mine", "Job")];
        assert_eq!(texts(&matching(&pages, &jobs, "JOBS")), ["Jobs", "Operator: All jobs", "jobs-of-mine"]);
        assert_eq!(texts(&matching(&pages, &jobs, " all op ")), ["Operator: All jobs"]);
        assert_eq!(texts(&matching(&pages, &jobs, "7B")), ["train-7b"]);
        assert!(matching(&pages, &jobs, "nothing").is_empty());
        assert_eq!(texts(&matching(&pages, &jobs, "")), ["Jobs", "Operator: All jobs", "Billing"]);
    }

    #[test]
    fn the_list_has_a_maximum() {
        let jobs: Vec<Entry> = (0..100).map(|number| entry(&format!("job {number}"), "Job")).collect();
        assert_eq!(matching(&[], &jobs, "job").len(), MAX_SHOWN);
    }
}
