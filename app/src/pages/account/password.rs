//! Form of a new password.

use berth_types::people::{ChangePassword, EndedSessions};
use leptos::ev::SubmitEvent;
use leptos::prelude::*;

use super::super::parts::{Call, CallProblem, Submit};
use super::super::text::counted;
use crate::api;
use crate::ui::*;

const FIELDS: &[&str] = &["/current", "/new"];

/// Returns the result of a changed password.
fn status_text(ended: u64) -> String {
    match usize::try_from(ended).unwrap_or(usize::MAX) {
        0 => "Password changed. There was no other session.".to_owned(),
        others => format!("Password changed. Ended: {}.", counted(others, "other session", "other sessions")),
    }
}

/// The form with the present and the new password.
#[component]
pub fn PasswordForm(
    /// Runs after a change, which ends the other sessions.
    changed: Callback<()>,
) -> impl IntoView {
    let call = Call::idle();
    let current = RwSignal::new(String::new());
    let new = RwSignal::new(String::new());
    let status = RwSignal::new(String::new());
    let submit = move |event: SubmitEvent| {
        event.prevent_default();
        status.set(String::new());
        let body = ChangePassword { current: current.get_untracked(), new: new.get_untracked() };
        call.run(api::people::change_password(&body), move |done: EndedSessions| {
            current.set(String::new());
            new.set(String::new());
            status.set(status_text(done.ended_sessions));
            // The page may have been left.
            let _ = changed.try_run(());
        });
    };
    view! {
        <form class="form card" method="post" on:submit=submit>
            <h2 class="card__title">"Password"</h2>
            <CallProblem call=call beside_fields=FIELDS/>
            <div class="field-row">
                <Field
                    label="Current password"
                    name="current-password"
                    kind="password"
                    value=current
                    error=call.field("/current")
                    autocomplete=Some("current-password")
                />
                <Field
                    label="New password"
                    name="new-password"
                    kind="password"
                    value=new
                    hint=Some("At least 15 characters; a sentence is fine.".to_owned())
                    error=call.field("/new")
                    autocomplete=Some("new-password")
                />
            </div>
            <p class="quiet">
                "A change ends all other sessions with their terminals and ports. API tokens stay valid: revoke them on the page Tokens."
            </p>
            <div class="form__actions">
                <Submit call=call>"Change password"</Submit>
            </div>
            <p class="quiet said" role="status">{move || status.get()}</p>
        </form>
    }
}

#[cfg(test)]
mod tests {
    use super::status_text;

    #[test]
    fn the_status_counts_the_ended_sessions() {
        assert_eq!(status_text(0), "Password changed. There was no other session.");
        assert_eq!(status_text(1), "Password changed. Ended: 1 other session.");
        assert_eq!(status_text(3), "Password changed. Ended: 3 other sessions.");
    }
}
