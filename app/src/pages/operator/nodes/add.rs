//! The form for a join token: the approval of the new node, its labels, and the command for the host.

use berth_types::nodes::{ExpectedBoards, JoinToken, NewJoinToken};
use berth_types::problems::{FieldError as Wrong, Problem};
use leptos::prelude::*;

use super::super::super::card_form::CardForm;
use super::super::super::parts::{Call, ready};
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/expected/model", "/expected/boards"];

/// The approval of the new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Approval {
    /// By the join token, for the expected boards.
    Expected,
    /// By the join token, for any boards.
    Any,
    /// By an operator after the first report.
    ByHand,
}

/// The text of the form.
struct Draft {
    approval: Approval,
    model: String,
    boards: String,
    adopt_labels: bool,
}

impl Draft {
    /// Parses the form.
    ///
    /// # Errors
    /// One error for each invalid field.
    fn request(self) -> Result<NewJoinToken, Vec<Wrong>> {
        let Self { approval, model, boards, adopt_labels } = self;
        let token =
            NewJoinToken { approve: approval != Approval::ByHand, adopt_labels, ..NewJoinToken::default() };
        if approval != Approval::Expected {
            return Ok(token);
        }
        let model = model.trim().to_owned();
        let boards = boards.trim().parse::<u32>().ok().filter(|boards| (1..=64).contains(boards));
        let mut errors = Vec::new();
        if model.is_empty() {
            errors.push(Wrong::new("/expected/model", "Enter the model of the boards, such as H100-80GB."));
        }
        if boards.is_none() {
            errors.push(Wrong::new("/expected/boards", "Enter 1 to 64 boards."));
        }
        match boards {
            Some(boards) if errors.is_empty() => {
                Ok(NewJoinToken { expected: Some(ExpectedBoards { model, boards }), ..token })
            }
            _ => Err(errors),
        }
    }
}

/// The button that shows the form, the form, and the command with the new join token.
#[component]
pub fn AddNode() -> impl IntoView {
    let ready = ready();
    let open = RwSignal::new(false);
    let token = RwSignal::new(None::<JoinToken>);
    view! {
        <p>
            <button
                class="btn btn--primary"
                type="button"
                aria-expanded=move || if open.get() { "true" } else { "false" }
                aria-controls="add-node"
                disabled=move || !ready.get()
                on:click=move |_| open.update(|open| *open = !*open)
            >
                "Add node"
            </button>
        </p>
        <div id="add-node" class="stack" hidden=move || !open.get()>
            <TokenForm token=token ready=ready/>
            {move || token.get().map(command)}
        </div>
    }
}

/// Returns the command with a new join token.
fn command(token: JoinToken) -> AnyView {
    let JoinToken { command, expires_at, .. } = token;
    view! {
        <section class="secret" role="status">
            <p>
                <strong>"Run this command on the GPU host."</strong>
                " Its join token is valid once, until " <When at=expires_at/>
                ", and is shown only now. The node appears below after its first connection."
            </p>
            <CopyBlock
                text=Signal::derive(move || command.clone())
                label="Join command".to_owned()
            />
        </section>
    }
    .into_any()
}

#[component]
fn TokenForm(
    /// The latest join token.
    token: RwSignal<Option<JoinToken>>,
    /// True after hydration.
    ready: ReadSignal<bool>,
) -> impl IntoView {
    let call = Call::idle();
    let approval = RwSignal::new(Approval::Expected);
    let model = RwSignal::new(String::new());
    let boards = RwSignal::new(String::new());
    let adopt = RwSignal::new(false);
    let submit = move |()| {
        let draft = Draft {
            approval: approval.get_untracked(),
            model: model.get_untracked(),
            boards: boards.get_untracked(),
            adopt_labels: adopt.get_untracked(),
        };
        match draft.request() {
            Err(errors) => call.problem.set(Some(Problem::invalid(errors))),
            Ok(body) => {
                call.run(api::nodes::join_token(&body), move |created: JoinToken| token.set(Some(created)));
            }
        }
    };
    let choice = move |one: Approval, value: &'static str, label: &'static str, hint: &'static str| {
        let at_first = approval.get_untracked() == one;
        view! {
            <label class="check">
                <input
                    type="radio"
                    name="node-approval"
                    value=value
                    checked=at_first
                    prop:checked=move || approval.get() == one
                    disabled=move || !ready.get()
                    on:change=move |_| approval.set(one)
                />
                <span>{label} <span class="check__hint">{hint}</span></span>
            </label>
        }
        .into_any()
    };
    view! {
        <CardForm
            title="Join token"
            call=call
            beside_fields=FIELDS
            verb="Create join token"
            submit=Callback::new(submit)
        >
            <fieldset class="field field--wide">
                <legend class="field__label">"Approval"</legend>
                {choice(Approval::Expected, "expected", "Approve these boards", "A node with other boards waits for you.")}
                {choice(Approval::Any, "any", "Approve any boards", "The host takes jobs at once, whatever it reports.")}
                {choice(Approval::ByHand, "by_hand", "Approve by hand", "The node waits for you after its first report.")}
            </fieldset>
            <div class="field-row" hidden=move || approval.get() != Approval::Expected>
                <Field
                    label="Expected model"
                    name="expected-model"
                    kind="text"
                    value=model
                    hint=Some("Such as H100-80GB.".to_owned())
                    error=call.field("/expected/model")
                />
                <Field
                    label="Expected boards"
                    name="expected-boards"
                    kind="number"
                    value=boards
                    hint=Some("1 to 64.".to_owned())
                    error=call.field("/expected/boards")
                />
            </div>
            <label class="check">
                <input
                    type="checkbox"
                    prop:checked=move || adopt.get()
                    disabled=move || !ready.get()
                    on:change=move |event| adopt.set(event_target_checked(&event))
                />
                <span>
                    "Adopt the labels of the worker"
                    <span class="check__hint">"Its rack and switch then decide about placements."</span>
                </span>
            </label>
        </CardForm>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(approval: Approval, model: &str, boards: &str) -> Draft {
        Draft { approval, model: model.to_owned(), boards: boards.to_owned(), adopt_labels: false }
    }

    #[test]
    fn only_the_expected_boards_need_a_model_and_a_number() {
        let token = draft(Approval::Expected, " H100-80GB", " 8 ").request().unwrap();
        let expected = ExpectedBoards { model: "H100-80GB".to_owned(), boards: 8 };
        assert_eq!((token.approve, token.expected), (true, Some(expected)));
        for (boards, wrong) in [("", 2), ("0", 2), ("65", 2), ("8", 1)] {
            assert_eq!(
                draft(Approval::Expected, " ", boards).request().unwrap_err().len(),
                wrong,
                "{boards}"
            );
        }
        let token = draft(Approval::Any, "A30", "x").request().unwrap();
        assert_eq!((token.approve, token.expected), (true, None));
        assert!(!draft(Approval::ByHand, "", "").request().unwrap().approve);
    }
}
