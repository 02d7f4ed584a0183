//! Nodes that do not speak: what that means for what runs there, and an operator's word that it is over.

use berth_types::ids::NodeId;
use berth_types::nodes::{Node, Silence, SilenceState};
use leptos::prelude::*;

use super::super::super::confirm::ConfirmDialog;
use super::super::super::parts::Call;
use super::super::super::words::counted;
use crate::api;
use crate::ui::*;

/// What the banners and the dialog share.
#[derive(Clone, Copy)]
pub struct Loss {
    /// The nodes of the page.
    pub nodes: RwSignal<Vec<Node>>,
    /// The one that the dialog is about.
    pub chosen: RwSignal<Option<NodeId>>,
    /// Whether the dialog is open.
    pub open: RwSignal<bool>,
}

impl Loss {
    /// What asks about a node, of one that is silent with something that may run there.
    pub fn button(self, node: &Node, class: &'static str, ready: ReadSignal<bool>) -> Option<AnyView> {
        let silence = node.silence.as_ref()?;
        if silence.state == SilenceState::Lost || silence.attempts == 0 {
            return None;
        }
        let id = node.id;
        let label = format!("Declare {} lost", node.name);
        let ask = move |_: leptos::ev::MouseEvent| {
            self.chosen.set(Some(id));
            self.open.set(true);
        };
        Some(
            view! {
                <button
                    class=class
                    type="button"
                    aria-label=label
                    disabled=move || !ready.get()
                    on:click=ask
                >
                    "Declare lost"
                </button>
            }
            .into_any(),
        )
    }
}

/// How many attempts are meant.
fn attempts_text(silence: &Silence) -> String {
    counted(usize::try_from(silence.attempts).unwrap_or(usize::MAX), "attempt", "attempts")
}

/// What it means that a node is silent or lost.
fn meaning(silence: &Silence) -> AnyView {
    let at = silence.lost_at.map(|at| view! { <When at=at/> });
    match (silence.state, silence.attempts, at) {
        (SilenceState::Lost, _, at) => {
            let why = silence.why.clone().unwrap_or_default();
            view! {
                {why}
                " Since "
                {at}
                " what ran there counts as ended, and jobs whose retry policy says so run elsewhere. When its worker comes back, what it still has of them is stopped and its devices are proved clean first."
            }
            .into_any()
        }
        (SilenceState::Suspect, 0, _) => {
            "Nothing of any job is there, and nothing new is placed there.".into_any()
        }
        (SilenceState::Suspect, _, Some(at)) => {
            let attempts = attempts_text(silence);
            view! {
                {attempts}
                " may still run there and will not be started elsewhere before "
                {at}
                ": by then, if the node stays silent, its worker has ended them. They are charged for proved use only, and nothing new is placed there."
            }
            .into_any()
        }
        (SilenceState::Suspect, _, None) => {
            let attempts = attempts_text(silence);
            view! {
                {attempts}
                " may still run there. They were started without a lease, so they are left alone until the node is back or you declare it lost. They are charged for proved use only, and nothing new is placed there."
            }
            .into_any()
        }
    }
}

/// A banner for a node that does not speak.
pub fn silent(node: &Node, loss: Loss, ready: ReadSignal<bool>) -> Option<AnyView> {
    let silence = node.silence.as_ref()?;
    let lost = silence.state == SilenceState::Lost;
    let title = format!("{} is {}", node.name, if lost { "lost" } else { "silent" });
    let seen = node.last_seen_at.map(|at| view! { " It was last seen " <When at=at/> "." });
    let name = node.id.to_string();
    let button = loss.button(node, "btn", ready);
    Some(
        view! {
            <div class="banner banner--error" role="alert">
                <div class="banner__text">
                    <strong class="banner__title">{title}</strong>
                    {meaning(silence)}
                    {seen}
                    <span class="banner__id">{name}</span>
                </div>
                {button}
            </div>
        }
        .into_any(),
    )
}

/// Asks once more before a node's work is taken for ended.
#[component]
pub fn LostDialog(
    /// What the page shares with it.
    loss: Loss,
) -> impl IntoView {
    let call = Call::idle();
    let Loss { nodes, chosen, open } = loss;
    let node = Memo::new(move |_| {
        let id = chosen.get()?;
        nodes.with(|nodes| nodes.iter().find(|node| node.id == id).cloned())
    });
    let title = Signal::derive(move || match node.get() {
        Some(node) => format!("Declare {} lost?", node.name),
        None => "Declare a node lost?".to_owned(),
    });
    let ends = move || {
        let silence = node.get().and_then(|node| node.silence);
        silence.map(|silence| {
            let (end, are) = if silence.attempts == 1 { ("ends", "is") } else { ("end", "are") };
            format!(
                "{} there {end} now and {are} charged for what was proved. Jobs that are to be tried again when a node is lost start elsewhere at once.",
                attempts_text(&silence)
            )
        })
    };
    let until = move || {
        let at = node.get().and_then(|node| node.silence).and_then(|silence| silence.lost_at);
        match at {
            Some(at) => {
                view! { " By itself that happens at " <When at=at/> ", when it is certain." }.into_any()
            }
            None => ().into_any(),
        }
    };
    let declare = move |()| {
        let Some(id) = chosen.get_untracked() else { return };
        call.run(api::nodes::declare_lost(id), move |fresh: Node| {
            open.set(false);
            nodes.update(|nodes| {
                if let Some(known) = nodes.iter_mut().find(|known| known.id == fresh.id) {
                    *known = fresh;
                }
            });
        });
    };
    view! {
        <ConfirmDialog
            id="node-lost"
            title=title
            open=open
            call=call
            keep="Wait"
            verb="Declare lost"
            confirm=Callback::new(declare)
        >
            <p>{ends} {until}</p>
            <p>
                "Do it only when you know that nothing runs on its host any more, because it is off. If it still runs, a job may run twice for as long as its lease lasts there. The audit log says that it was you."
            </p>
        </ConfirmDialog>
    }
}
