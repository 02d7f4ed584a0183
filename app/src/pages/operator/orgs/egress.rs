//! Dialog of the network policy of an organization: the internet, named networks, and the network of nodes.

use berth_types::accounts::OrgSummary;
use berth_types::egress::{EgressPolicy, PutEgressPolicy};
use futures::future::try_join;
use leptos::prelude::*;
use leptos::task::spawn_local;

use super::super::super::dialog_form::DialogForm;
use super::super::super::limits::network::policy_text;
use super::super::super::parts::{Call, CallProblem};
use super::OrgsState;
use crate::api;

/// The input of the dialog.
#[derive(Clone, Copy)]
struct PolicyForm {
    internet: RwSignal<bool>,
    host_network: RwSignal<bool>,
    /// True for an organization that had the grant at the opening.
    had_grant: RwSignal<bool>,
    /// The named networks of the portal, each with true for a chosen one. Absent before the read.
    networks: RwSignal<Option<Vec<(String, bool)>>>,
}

impl PolicyForm {
    fn new() -> Self {
        Self {
            internet: RwSignal::new(true),
            host_network: RwSignal::new(false),
            had_grant: RwSignal::new(false),
            networks: RwSignal::new(None),
        }
    }

    /// Sets the fields to a policy. The dialog may be gone.
    fn fill(self, policy: &EgressPolicy, names: Vec<String>) {
        let chosen = |name: &String| policy.networks.iter().any(|network| network.name == *name);
        let networks = names.into_iter().map(|name| {
            let is_chosen = chosen(&name);
            (name, is_chosen)
        });
        let _ = self.internet.try_set(policy.internet);
        let _ = self.host_network.try_set(policy.host_network);
        let _ = self.had_grant.try_set(policy.host_network);
        let _ = self.networks.try_set(Some(networks.collect()));
    }

    /// Returns the policy of the fields. `None` before the read.
    fn body(self) -> Option<PutEgressPolicy> {
        let networks = self.networks.get_untracked()?;
        Some(PutEgressPolicy {
            internet: self.internet.get_untracked(),
            networks: networks.into_iter().filter(|(_, chosen)| *chosen).map(|(name, _)| name).collect(),
            host_network: self.host_network.get_untracked(),
        })
    }

    /// True if the form gives the grant for the network of nodes.
    fn grants(self) -> bool {
        self.host_network.get() && !self.had_grant.get()
    }
}

/// A check box with a hint.
fn check(label: &'static str, hint: &'static str, value: RwSignal<bool>, is_read: Memo<bool>) -> AnyView {
    view! {
        <label class="check">
            <input
                type="checkbox"
                prop:checked=move || value.get()
                disabled=move || !is_read.get()
                on:change=move |event| value.set(event_target_checked(&event))
            />
            <span>{label}<span class="check__hint">{hint}</span></span>
        </label>
    }
    .into_any()
}

/// The check boxes of the named networks.
#[component]
fn NetworkChoice(form: PolicyForm) -> impl IntoView {
    let names = move || {
        let all = form.networks.get().unwrap_or_default();
        all.into_iter().map(|(name, _)| name).collect::<Vec<String>>()
    };
    let is_chosen = move |name: &str| {
        form.networks.with(|all| {
            all.as_ref().is_some_and(|all| all.iter().any(|(known, chosen)| known == name && *chosen))
        })
    };
    let choose = move |name: &str, value: bool| {
        form.networks.update(|all| {
            for (_, chosen) in all.iter_mut().flatten().filter(|(known, _)| known == name) {
                *chosen = value;
            }
        });
    };
    let none = Memo::new(move |_| form.networks.with(|all| all.as_ref().is_some_and(Vec::is_empty)));
    view! {
        <fieldset class="field">
            <legend class="field__label">"Named networks"</legend>
            <p class="field__hint" hidden=move || !none.get()>
                "None exist. Add one below the list of organizations."
            </p>
            <For
                each=names
                key=|name| name.clone()
                children=move |name: String| {
                    let (shown, changed) = (name.clone(), name.clone());
                    view! {
                        <label class="check">
                            <input
                                type="checkbox"
                                prop:checked=move || is_chosen(&shown)
                                on:change=move |event| choose(&changed, event_target_checked(&event))
                            />
                            <span class="mono break">{name}</span>
                        </label>
                    }
                }
            />
        </fieldset>
    }
}

/// The dialog with the policy.
#[component]
pub fn EgressDialog(
    /// The signals of the page.
    state: OrgsState,
) -> impl IntoView {
    let call = Call::idle();
    let open = state.networking;
    let form = PolicyForm::new();
    let title = Signal::derive(move || state.title("Network of", "Network"));
    let reset = move |()| {
        form.networks.set(None);
        let Some((org, _)) = state.org() else { return };
        let (policy, networks) = (api::egress::of_org(org), api::egress::list());
        spawn_local(async move {
            let found = try_join(policy, networks).await;
            // The dialog may be that of another organization by now.
            let is_shown =
                |shown: &Option<OrgSummary>| shown.as_ref().is_some_and(|shown| shown.org.id == org);
            if state.chosen.try_with_untracked(is_shown) != Some(true) {
                return;
            }
            match found {
                Ok((policy, networks)) => {
                    form.fill(&policy, networks.items.into_iter().map(|network| network.name).collect());
                }
                Err(problem) => {
                    let _ = call.problem.try_set(Some(problem));
                }
            }
        });
    };
    let is_read = Memo::new(move |_| form.networks.with(Option::is_some));
    let grants = Memo::new(move |_| form.grants());
    let verb = Signal::derive(move || {
        let verb = if grants.get() { "Save and grant host network" } else { "Save" };
        verb.to_owned()
    });
    let submit = move |()| {
        let (Some((org, name)), Some(body)) = (state.org(), form.body()) else { return };
        call.run(api::egress::set(org, &body), move |saved: EgressPolicy| {
            state.status.set(format!("{name}: {}.", policy_text(&saved)));
            open.set(false);
        });
    };
    view! {
        <DialogForm
            id="org-egress"
            title=title
            open=open
            call=call
            keep="Cancel"
            verb=verb
            danger=Signal::derive(move || grants.get())
            reset=Callback::new(reset)
            submit=Callback::new(submit)
        >
            <p>"A change counts for the next starts of jobs. Running jobs keep their network."</p>
            <CallProblem call=call beside_fields=&[]/>
            {check("Internet", "Without it a job reaches only its named networks, and no resolver of names outside of them.", form.internet, is_read)}
            <NetworkChoice form=form/>
            {check("Host network", "Its jobs may ask for the network of their node. Such a job reaches everything that the node reaches: services on 127.0.0.1, private networks and other jobs.", form.host_network, is_read)}
        </DialogForm>
    }
}
