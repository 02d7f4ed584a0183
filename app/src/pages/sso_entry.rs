//! The way to single sign-on on the sign-in page, and the sentences after its failure.

use berth_types::sso::SsoFailure;
use leptos::prelude::*;
use leptos_router::hooks::use_query_map;

use super::parts::{focus_first, open_url, ready};
use crate::api::sso::start_address;

/// Returns the sentences about a failure for the person.
const fn sentences(failure: SsoFailure) -> &'static str {
    match failure {
        SsoFailure::NoProvider => {
            "No organization of this portal has single sign-on for this address. Nothing was changed. Sign in with the password, or ask an owner of your organization."
        }
        SsoFailure::Provider => {
            "The sign-in service of your organization did not answer as expected. You are not signed in; running jobs continue. Try again in a minute, or tell an owner of your organization."
        }
        SsoFailure::Denied => {
            "The sign-in service of your organization refused the sign-in. You are not signed in. Try again, or ask the administrator of that service."
        }
        SsoFailure::Expired => {
            "This sign-in is older than ten minutes, was completed before, or began in another browser. You are not signed in. Begin again."
        }
        SsoFailure::Token => {
            "The answer of the sign-in service could not be verified. You are not signed in. Try again; if the error persists, tell an owner of your organization."
        }
        SsoFailure::Email => {
            "The sign-in service did not confirm your e-mail address. You are not signed in. Verify the address there, then try again."
        }
        SsoFailure::Domain => {
            "Your e-mail address does not belong to a confirmed domain of this organization. You are not signed in. Ask an owner of the organization, or the operator of this portal."
        }
        SsoFailure::AccountExists => {
            "An account with your e-mail address exists, and is not a member of this organization or belongs to another identity of the sign-in service. Nothing was changed. Sign in with the password, and ask an owner of the organization for an invitation."
        }
        SsoFailure::NotMember => {
            "You are not a member of this organization. Nothing was changed. Ask an owner of the organization for an invitation."
        }
        SsoFailure::NoRole => {
            "None of your groups has a role in this organization. You are not signed in. Ask an owner of the organization for a role of one of your groups."
        }
        SsoFailure::Operator => {
            "Operators sign in with the password or with the sign-in service of the operators. You are not signed in."
        }
        SsoFailure::Disabled => {
            "The operator of this portal disabled this account. Jobs, files and credit are unchanged. Write to the operator."
        }
        SsoFailure::Throttled => {
            "Too many sign-ins from your network. You are not signed in. Wait a minute before the next try."
        }
        SsoFailure::Internal => {
            "The portal failed to complete the sign-in. You are not signed in. Try again; if the error persists, tell the operator."
        }
    }
}

/// The notice about a failed single sign-on, whose cause is in the address.
#[component]
pub fn SsoNotice() -> impl IntoView {
    let query = use_query_map();
    let failure =
        Memo::new(move |_| query.with(|query| query.get("sso").and_then(|name| SsoFailure::parse(&name))));
    move || {
        failure.get().map(|failure| {
            view! {
                <div class="banner banner--error" role="alert">
                    <div class="banner__text">
                        <strong class="banner__title">"Single sign-on failed"</strong>
                        {sentences(failure)}
                    </div>
                </div>
            }
        })
    }
}

/// The button to the provider of the organization in the address, or of the domain of the e-mail address.
#[component]
pub fn SsoEntry(
    /// The e-mail address in the form of the page.
    email: RwSignal<String>,
) -> impl IntoView {
    let query = use_query_map();
    let ready = ready();
    let missing = RwSignal::new(false);
    let begin = move |_: leptos::ev::MouseEvent| {
        let org = query.with_untracked(|query| query.get("org")).filter(|slug| !slug.is_empty());
        let address = email.with_untracked(|email| email.trim().to_owned());
        missing.set(org.is_none() && address.is_empty());
        if missing.get_untracked() {
            focus_first("#email");
        } else {
            open_url(&start_address(org.as_deref(), &address));
        }
    };
    view! {
        <div class="field">
            <button class="btn" type="button" disabled=move || !ready.get() on:click=begin>
                "Continue with single sign-on"
            </button>
            <p class="field__hint" role="status">
                {move || {
                    if missing.get() {
                        "Enter your e-mail address first. Its domain names the sign-in service."
                    } else {
                        ""
                    }
                }}
            </p>
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failure_has_its_own_sentences() {
        for (index, failure) in SsoFailure::ALL.into_iter().enumerate() {
            assert!(sentences(failure).ends_with('.'));
            assert!(
                SsoFailure::ALL
                    .into_iter()
                    .skip(index + 1)
                    .all(|other| sentences(other) != sentences(failure))
            );
        }
    }

    #[test]
    fn the_address_of_the_start_names_the_organization_or_the_person() {
        assert_eq!(start_address(Some("lab"), "a@b.c"), "/api/v1/sso/start?org=lab");
        assert!(start_address(None, "a@b.c").starts_with("/api/v1/sso/start?email=a"));
    }
}
