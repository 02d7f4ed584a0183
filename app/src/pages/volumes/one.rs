//! Page of a volume: the files of a directory, and uploads.

use std::future::Future;

use berth_types::Page;
use berth_types::accounts::Role;
use berth_types::ids::OrgId;
use berth_types::problems::Problem;
use berth_types::volumes::{Volume, VolumeEntry};
use futures::join;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::{use_params_map, use_query_map};
use serde::{Deserialize, Serialize};

use super::super::confirm::ConfirmTarget;
use super::super::org_data::org_object_view;
use super::super::parts::{ready, when_some};
use super::files::{FileTable, RemoveDialog};
use super::state::{VolumeState, dir_path};
use super::unfinished::Unfinished;
use super::uploads::Uploads;
use super::{files_text, used_text};
use crate::address::org_link;
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::{use_object_org, use_session};

/// The first data of the page.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    volume: Volume,
    dir: String,
    page: Page<VolumeEntry>,
}

fn load(
    org: OrgId,
    name: Option<String>,
    dir: String,
) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls =
        name.map(|name| (api::volumes::get_one(org, &name), api::volumes::files(org, &name, &dir, None)));
    async move {
        let Some((volume, page)) = calls else { return Err(Problem::not_found()) };
        let (volume, page) = join!(volume, page);
        let volume = volume?;
        // A directory without files does not exist.
        let page = match page {
            Err(problem) if problem.status == 404 && !dir.is_empty() => Page::whole(Vec::new()),
            page => page?,
        };
        Ok(Loaded { org, volume, dir, page })
    }
}

/// The page of a volume; `?dir=` is the current directory.
#[component]
pub fn VolumePage() -> impl IntoView {
    let org = use_object_org();
    let (params, query) = (use_params_map(), use_query_map());
    let name = Memo::new(move |_| params.with(|params| params.get("volume")));
    let dir = Memo::new(move |_| query.with(|query| query.get("dir")).unwrap_or_default());
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), name.get(), dir.get()),
        |(org, name, dir): (Option<OrgId>, Option<String>, String)| {
            when_some(org.map(|org| load(org, name, dir)))
        },
    );
    org_object_view(data, |loaded| view! { <VolumeView loaded=loaded/> }.into_any())
}

/// Returns the directories of a path from the volume on, each with its page.
fn breadcrumbs(name: &str, dir: &str) -> Vec<(String, String)> {
    let mut out = vec![(name.to_owned(), format!("/volumes/{name}"))];
    let mut at = String::new();
    for part in dir.split('/').filter(|part| !part.is_empty()) {
        at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
        out.push((part.to_owned(), dir_path(name, &at)));
    }
    out
}

/// Returns the sentence in place of the files of a volume on the nodes.
fn on_nodes(class: &str) -> AnyView {
    let text = format!(
        "The files are on the nodes' shared file system {class}, and the portal does not know them. Jobs with this volume read and write them directly, several at the same time. Use a job or its terminal to list, copy or delete files."
    );
    view! { <p class="prose">{text}</p> }.into_any()
}

#[component]
fn VolumeView(loaded: Loaded) -> impl IntoView {
    let Loaded { org, volume, dir, page } = loaded;
    let memberships = use_session().me.memberships;
    let writes = |role: Role| matches!(role, Role::Owner | Role::Member);
    let name = volume.name.clone();
    let title = window_title(&name);
    let mut crumbs = breadcrumbs(&name, &dir);
    let last = crumbs.pop().map(|(name, _)| name).unwrap_or_default();
    let crumbs: Vec<AnyView> = crumbs
        .into_iter()
        .map(|(name, path)| view! { <li><a href=org_link(&path)>{name}</a></li> }.into_any())
        .collect();
    let heading = name.clone();
    let state = VolumeState {
        org,
        volume: RwSignal::new(volume),
        name: StoredValue::new(name),
        dir: StoredValue::new(dir),
        entries: RwSignal::new(page.items),
        next: RwSignal::new(page.next_cursor),
        target: ConfirmTarget::none(),
        uploads: RwSignal::new(Vec::new()),
        removed: ConfirmTarget::none(),
        ready: ready(),
        writes: memberships.iter().any(|m| m.org.id == org && writes(m.role)),
    };
    let used = move || state.volume.with(used_text);
    let content = match state.volume.with_untracked(|volume| volume.class.clone()) {
        Some(class) => on_nodes(&class),
        None => view! {
            {state.writes.then(|| view! { <Uploads state=state/><Unfinished state=state/> })}
            <FileTable state=state/>
            <RemoveDialog state=state/>
        }
        .into_any(),
    };
    let counts = move || {
        let text = |volume: &Volume| format!(", {}, version {}", files_text(volume.files), volume.version);
        state.volume.with(|volume| volume.class.is_none().then(|| text(volume)))
    };
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Breadcrumb">
                <ol>
                    <li><a href=org_link("/volumes")>"Volumes"</a></li>
                    {crumbs}
                    <li><span aria-current="page" class="quiet">{last}</span></li>
                </ol>
            </nav>
            <div class="page__head"><h1>{heading}</h1></div>
            <p class="page__lead">
                {used} {counts}
            </p>
            {content}
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_directory_has_its_page() {
        let pair = |name: &str, path: &str| (name.to_owned(), path.to_owned());
        assert_eq!(breadcrumbs("data", ""), [pair("data", "/volumes/data")]);
        assert_eq!(
            breadcrumbs("data", "a b/c"),
            [
                pair("data", "/volumes/data"),
                pair("a b", "/volumes/data?dir=a%20b"),
                pair("c", "/volumes/data?dir=a%20b%2Fc")
            ]
        );
    }
}
