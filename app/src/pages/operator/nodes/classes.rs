//! The storage classes: their declaration, their organizations and their deletion.

use berth_types::nodes::{HostMount, Node};
use berth_types::operators::OperatorRight;
use berth_types::problems::Problem;
use berth_types::storage_classes::{StorageClass, StorageClassOrg};
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::confirm::{ConfirmDialog, ConfirmTarget};
use super::super::super::dialog_form::DialogForm;
use super::super::super::org_data::answer_view;
use super::super::super::parts::{Call, CallProblem, ready};
use super::super::super::text::{counted, size_text};
use super::super::may;
use super::dedication::get_org;
use crate::api;
use crate::api::Answer;
use crate::ui::*;

const FIELDS: &[&str] = &["/class"];
const GRANT_FIELDS: &[&str] = &["/org"];

/// The section of the storage classes.
#[component]
pub fn StorageClasses(
    /// All classes by name.
    data: Resource<Answer<berth_types::Page<StorageClass>>>,
) -> impl IntoView {
    view! {
        <section class="section">
            <div class="section__head"><h2>"Storage classes"</h2></div>
            <p class="prose">
                "A storage class is a file system of the nodes for volumes, such as Lustre or NFS. Workers announce it by the option --host-mount. Only granted organizations create volumes of a class."
            </p>
            {answer_view(data, |page| view! { <ClassList classes=page.items/> }.into_any())}
        </section>
    }
}

/// Returns the host mounts of a node: `Host mounts: scratch (lustre, 1.5 TiB of 3.0 TiB free)`; `None` without one.
pub(super) fn host_mounts_text(node: &Node) -> Option<String> {
    let mount = |mount: &HostMount| {
        let kind = if mount.file_system.is_empty() { "unknown type" } else { mount.file_system.as_str() };
        let (free, total) = (size_text(mount.free_bytes), size_text(mount.total_bytes));
        format!("{} ({kind}, {free} of {total} free)", mount.name)
    };
    let mounts: Vec<String> = node.host_mounts.iter().map(mount).collect();
    (!mounts.is_empty()).then(|| format!("Host mounts: {}", mounts.join(", ")))
}

/// The state of the form, the rows and the dialogs.
#[derive(Clone, Copy)]
struct ClassState {
    classes: RwSignal<Vec<StorageClass>>,
    /// The class of the dialog for a deletion.
    deleting: ConfirmTarget<String>,
    /// The class of the dialog for a grant.
    granting: ConfirmTarget<String>,
    /// The request that takes a class from an organization.
    revoking: Call,
    /// The result of the last action.
    status: RwSignal<String>,
    ready: ReadSignal<bool>,
    manages: bool,
}

impl ClassState {
    /// Shows a new or changed class.
    fn show(self, class: StorageClass) {
        self.classes.update(|classes| {
            classes.retain(|known| known.name != class.name);
            let at = classes.partition_point(|known| known.name < class.name);
            classes.insert(at, class);
        });
    }
}

#[component]
fn ClassList(classes: Vec<StorageClass>) -> impl IntoView {
    let state = ClassState {
        classes: RwSignal::new(classes),
        deleting: ConfirmTarget::none(),
        granting: ConfirmTarget::none(),
        revoking: Call::idle(),
        status: RwSignal::new(String::new()),
        ready: ready(),
        manages: may(OperatorRight::ManageFleet),
    };
    let none = Memo::new(move |_| state.classes.with(Vec::is_empty));
    view! {
        <CallProblem call=state.revoking beside_fields=&[]/>
        {move || {
            if none.get() {
                empty("No storage classes yet. Declare the name of a host mount, then grant it to organizations.")
            } else {
                state.classes.with(|classes| table(classes, state))
            }
        }}
        <p class="quiet said" role="status">{move || state.status.get()}</p>
        {state.manages.then(|| view! { <ClassForm state=state/> })}
        <GrantDialog state=state/>
        <DeleteDialog state=state/>
    }
}

fn table(classes: &[StorageClass], state: ClassState) -> AnyView {
    table_of(
        "Storage classes",
        &[("Name", ""), ("Nodes", ""), ("Organizations", ""), ACTIONS],
        classes.iter().map(|class| row(class, state)).collect(),
    )
}

/// Returns the nodes of a class as a text: `3 nodes`, or `no node yet`.
fn nodes_text(class: &StorageClass) -> String {
    match class.nodes {
        0 => "no node yet".to_owned(),
        nodes => counted(usize::try_from(nodes).unwrap_or(usize::MAX), "node", "nodes"),
    }
}

/// Returns an organization of a class, with the button that takes the class from it.
fn org_item(class: &str, org: &StorageClassOrg, state: ClassState) -> AnyView {
    let (id, name, class) = (org.org, org.name.clone(), class.to_owned());
    let label = format!("Revoke {class} for {name}");
    let shown = name.clone();
    let revoke = move |_: leptos::ev::MouseEvent| {
        let status = format!("{name}: no new volumes of the storage class {class}.");
        state.revoking.run(api::storage_classes::revoke(&class, id), move |changed: StorageClass| {
            state.status.set(status);
            state.show(changed);
        });
    };
    let button = state.manages.then(|| {
        view! {
            " "
            <button
                class="btn btn--small"
                type="button"
                aria-label=label
                disabled=move || !state.ready.get() || state.revoking.pending.get()
                on:click=revoke
            >
                "Revoke"
            </button>
        }
    });
    view! { <li>{shown}{button}</li> }.into_any()
}

fn row(class: &StorageClass, state: ClassState) -> AnyView {
    let name = class.name.clone();
    let orgs: Vec<AnyView> = class.orgs.iter().map(|org| org_item(&class.name, org, state)).collect();
    let orgs = if orgs.is_empty() { "none".into_any() } else { view! { <ul>{orgs}</ul> }.into_any() };
    let target = name.clone();
    let grant_label = format!("Grant {name}");
    let grant = state.manages.then(|| {
        view! {
            <button
                class="btn btn--small"
                type="button"
                aria-label=grant_label
                disabled=move || !state.ready.get()
                on:click=move |_| {
                    state.granting.one.set(Some(target.clone()));
                    state.granting.open.set(true);
                }
            >
                "Grant"
            </button>
        }
    });
    let delete = state
        .manages
        .then(|| state.deleting.button(name.clone(), "Delete", format!("Delete {name}"), state.ready));
    view! {
        <tr role="row">
            <th role="rowheader" scope="row" class="mono break">{name}</th>
            <td role="cell" data-label="Nodes">{nodes_text(class)}</td>
            <td role="cell" data-label="Organizations">{orgs}</td>
            <td role="cell" class="table__actions"><span class="btn-grid">{grant}{delete}</span></td>
        </tr>
    }
    .into_any()
}

#[component]
fn ClassForm(state: ClassState) -> impl IntoView {
    let call = Call::idle();
    let name = RwSignal::new(String::new());
    let submit = move |()| {
        let typed = name.with_untracked(|name| name.trim().to_owned());
        if typed.is_empty() {
            call.problem.set(Some(Problem::invalid_field("/class", "Enter a name, such as scratch.")));
            return;
        }
        call.run(api::storage_classes::declare(&typed), move |made: StorageClass| {
            state.show(made);
            name.set(String::new());
        });
    };
    view! {
        <CardForm
            title="New storage class"
            call=call
            beside_fields=FIELDS
            verb="Declare class"
            quiet=true
            submit=Callback::new(submit)
        >
            <Field
                label="Name of the class"
                name="storage-class-name"
                kind="text"
                value=name
                hint=Some("The name in --host-mount of the workers.".to_owned())
                error=call.field("/class")
            />
        </CardForm>
    }
}

#[component]
fn GrantDialog(state: ClassState) -> impl IntoView {
    let call = Call::idle();
    let text = RwSignal::new(String::new());
    let title = Signal::derive(move || {
        let name = state.granting.one.get();
        name.map_or_else(|| "Grant storage class".to_owned(), |name| format!("Grant {name}"))
    });
    let submit = move |()| {
        let Some(class) = state.granting.one.get_untracked() else { return };
        let typed = text.with_untracked(|text| text.trim().to_owned());
        let found = api::accounts::suggest_orgs(&typed);
        let answer = async move {
            let org = get_org(&typed, &found.await?.items)?;
            api::storage_classes::grant(&class, org).await
        };
        call.run(answer, move |changed: StorageClass| {
            state.show(changed);
            state.granting.open.set(false);
        });
    };
    view! {
        <DialogForm
            id="storage-class-grant"
            title=title
            open=state.granting.open
            call=call
            keep="Cancel"
            verb="Grant"
            reset=Callback::new(move |()| text.set(String::new()))
            submit=Callback::new(submit)
        >
            <p>"Owners of the organization may then create volumes of the class."</p>
            <CallProblem call=call beside_fields=GRANT_FIELDS/>
            <Field
                label="Organization"
                name="storage-class-org"
                kind="text"
                value=text
                hint=Some("Its name or its slug.".to_owned())
                error=call.field("/org")
            />
        </DialogForm>
    }
}

#[component]
fn DeleteDialog(state: ClassState) -> impl IntoView {
    let call = Call::idle();
    let delete = move |()| {
        let Some(name) = state.deleting.one.get_untracked() else { return };
        let deleted = name.clone();
        call.run(api::storage_classes::delete(&name), move |()| {
            state.classes.update(|classes| classes.retain(|class| class.name != deleted));
            state.deleting.open.set(false);
        });
    };
    view! {
        <ConfirmDialog
            id="delete-storage-class"
            title=state.deleting.title("Delete", "storage class", String::as_str)
            open=state.deleting.open
            call=call
            keep="Keep class"
            verb="Delete class"
            confirm=Callback::new(delete)
        >
            <p>
                "No organization can create volumes of the class afterwards. Files on the nodes stay. A class with volumes cannot be deleted."
            </p>
        </ConfirmDialog>
    }
}
