//! Page of a new revision: the form of the program, prefilled with the newest revision.

use std::future::Future;

use berth_service_types::revisions::NewRevision;
use berth_service_types::services::Service;
use berth_types::ids::{OrgId, ServiceId};
use berth_types::offerings::Offering;
use berth_types::problems::{FieldError as Wrong, Problem};
use futures::join;
use leptos::ev::SubmitEvent;
use leptos::prelude::*;
use leptos_meta::Title;
use leptos_router::hooks::use_params_map;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::super::curl::{self, CopyAsCurl};
use super::super::launch::lists::Lists;
use super::super::org_data::org_object_view;
use super::super::parts::{Call, CallProblem, FormKey, Submit, focus_soon, origin, redirect, when_some};
use super::super::text::explain_repeat;
use super::draft::{Program, RevisionDraft, local_problem};
use super::form::{
    Choices, JobSection, OfferingFields, REVISION_FIELDS, ReplicaSection, RevisionForm, RolloutSection,
    ScriptFields,
};
use super::no_offerings;
use crate::address::{org_link, use_org_links};
use crate::api;
use crate::api::Answer;
use crate::identity::window_title;
use crate::session::{RoleNotice, use_session};

/// The part of a request whose fields the form has beside those of the revision.
const BASES: &[&str] = &["/job"];

const REPEATED: &str = "Open the page of the service. To create a further revision, load this page again.";

/// The first data of the form.
#[derive(Clone, Serialize, Deserialize)]
struct Loaded {
    org: OrgId,
    service: Service,
    offerings: Vec<Offering>,
    /// The newest revision.
    newest: Option<NewRevision>,
    /// True if it has the texts of script, variables and files.
    has_texts: bool,
}

fn load(org: OrgId, id: Option<ServiceId>) -> impl Future<Output = Answer<Loaded>> + Send + 'static {
    let calls = id.map(|id| (api::services::newest_revision(org, id), api::money::org_offerings(org)));
    async move {
        // An invalid id is answered like an unknown one.
        let Some((newest, offerings)) = calls else { return Err(Problem::not_found()) };
        let (newest, offerings) = join!(newest, offerings);
        let (service, newest, has_texts) = newest?;
        Ok(Loaded { org, service, offerings: offerings?.items, newest, has_texts })
    }
}

/// The page of a new revision.
#[component]
pub fn NewRevisionPage() -> impl IntoView {
    let org = use_session().org;
    let params = use_params_map();
    let id = Memo::new(move |_| {
        params.with(|params| params.get("service")).and_then(|text| text.parse::<ServiceId>().ok())
    });
    let data: Resource<Answer<Option<Loaded>>> = Resource::new(
        move || (org.get(), id.get()),
        |(org, id): (Option<OrgId>, Option<ServiceId>)| when_some(org.map(|org| load(org, id))),
    );
    org_object_view(data, |loaded| view! { <RevisionPage loaded=loaded/> }.into_any())
}

#[component]
fn RevisionPage(loaded: Loaded) -> impl IntoView {
    let (name, id) = (loaded.service.name.clone(), loaded.service.id);
    let heading = format!("New revision of {name}");
    let title = window_title(&heading);
    let form = if loaded.offerings.is_empty() {
        no_offerings()
    } else {
        view! { <RevisionBody loaded=loaded/> }.into_any()
    };
    view! {
        <Title text=title/>
        <div class="page">
            <nav class="crumbs" aria-label="Breadcrumb">
                <ol>
                    <li><a href=org_link("/services")>"Services"</a></li>
                    <li><a href=org_link(&format!("/services/{id}"))>{name}</a></li>
                    <li><span aria-current="page" class="quiet">"New revision"</span></li>
                </ol>
            </nav>
            <div class="page__head"><h1>{heading}</h1></div>
            <p class="page__lead">
                "The new revision starts beside the live one and gets requests when its replicas are ready. The live one stays until then."
            </p>
            <RoleNotice action="create revisions"/>
            {form}
        </div>
    }
}

/// Returns the first input and the sentence about it.
fn first_input(newest: Option<&NewRevision>, has_texts: bool) -> (RevisionDraft, String) {
    let Some(newest) = newest else {
        return (RevisionDraft::new(String::new(), Program::Script), String::new());
    };
    let (draft, absent) = RevisionDraft::from_revision(newest);
    let mut text = "Filled from the newest revision.".to_owned();
    if !has_texts {
        text.push_str(" Its texts could not be read: enter those of script, variables and files again.");
    }
    if !absent.is_empty() {
        text.push_str(&format!(" Not in the form: {}.", absent.join(", ")));
    }
    (draft, text)
}

#[component]
fn RevisionBody(loaded: Loaded) -> impl IntoView {
    let Loaded { org, service, offerings, newest, has_texts } = loaded;
    let (id, name) = (service.id, StoredValue::new(service.name));
    let (draft, notice) = first_input(newest.as_ref(), has_texts);
    let has_steps = !draft.canary.is_empty();
    let form = RevisionForm::new(draft);
    let offering = form.job.offering;
    let choices = Choices::new(org, offerings, offering);
    let lists = Lists::new(org);
    let call = Call::idle();
    let key = FormKey::new(call);
    let next = redirect();
    let request: Memo<Result<NewRevision, Vec<Wrong>>> = Memo::new(move |_| {
        let draft = form.draft(choices.whole_board.get());
        name.with_value(|name| draft.request(name, None))
    });
    Effect::new(move || {
        if call.problem.with(Option::is_some) {
            focus_soon("#revision-form [aria-invalid=\"true\"]".to_owned());
        }
    });
    let (links, refused) = (use_org_links(), !use_session().runs_in(org));
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        let body = match request.get_untracked() {
            Ok(body) => body,
            Err(errors) => return call.problem.set(Some(Problem::invalid(errors))),
        };
        // One key for the whole form: a change after a lost answer must not create a second revision.
        let answer = api::services::add_revision(org, id, &body, key.for_text("revision".to_owned()));
        let answer = async move { answer.await.map_err(|problem| local_problem(problem, BASES, None)) };
        let page = links.path(&format!("/services/{id}"));
        call.run(explain_repeat(answer, REPEATED), move |_: IgnoredAny| {
            // The form stays until the next page is loaded: a second click must not create a second revision.
            call.pending.set(true);
            key.reset();
            next.set(Some(page));
        });
    };
    let origin = origin();
    let line = Signal::derive(move || {
        request.with(|request| match request {
            Err(_) => curl::INCOMPLETE.to_owned(),
            Ok(body) => {
                let body = serde_json::to_string(body).unwrap_or_default();
                curl::post(&origin.get(), &format!("/orgs/{org}/services/{id}/revisions"), &body)
            }
        })
    });
    view! {
        <p class="quiet" role="status">{notice}</p>
        <form class="form" id="revision-form" method="post" novalidate=true aria-label="New revision" on:submit=submit>
            <CallProblem call=call beside_fields=REVISION_FIELDS/>
            <fieldset class="form__section">
                <legend>"Program"</legend>
                <ScriptFields form=form call=call/>
            </fieldset>
            <OfferingFields choices=choices chosen=offering call=call/>
            <fieldset class="form__section">
                <legend>"Advanced"</legend>
                <ReplicaSection form=form call=call/>
                <RolloutSection form=form call=call filled=has_steps/>
                <JobSection form=form lists=lists call=call/>
            </fieldset>
            <div class="form__actions"><Submit call=call disabled=refused>"Create revision"</Submit></div>
            <CopyAsCurl line=line label="New revision with curl"/>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_without_its_texts_needs_them_again() {
        let newest: NewRevision = serde_json::from_value(serde_json::json!({
            "job": {"name": "chat", "offering": "h100-80gb", "command": ["serve"]}, "port": 9_000,
        }))
        .unwrap();
        let (draft, text) = first_input(Some(&newest), false);
        assert_eq!((draft.port.as_str(), draft.job.command.as_str()), ("9000", "serve"));
        assert!(text.ends_with("enter those of script, variables and files again."), "{text}");
        assert_eq!(first_input(Some(&newest), true).1, "Filled from the newest revision.");
        assert_eq!(first_input(None, false).1, "");
    }
}
