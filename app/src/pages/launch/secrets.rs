//! Secrets of a job: a row with the secret and its variable or file.

use leptos::prelude::*;

use super::super::parts::Call;
use super::lists::{Listing, Lists, entry_select, list_notice, load_for};
use super::rows::{Row, RowFrame, RowKind, Rows, SecretSignals, item_pointer, row_list};
use crate::address::org_link;

static SECRETS: RowKind = RowKind {
    label: "Secrets",
    one: "Secret",
    add: "Add secret",
    id: "secrets",
    pointer: "/secrets",
    hint: "A secret of the organization as an environment variable, or as a file in /run/secrets.",
    max: 32,
};

/// The rows of secrets.
#[component]
pub fn SecretRows(
    /// The rows.
    rows: Rows<SecretSignals>,
    /// The lists of the organization.
    lists: Lists,
    /// The submission.
    call: Call,
) -> impl IntoView {
    load_for(rows, move || lists.load_secrets());
    let none = move || rows.count() > 0 && lists.secrets.with(|list| *list == Listing::Ready(Vec::new()));
    let controls = move |row: Row<SecretSignals>, frame: RowFrame| {
        let SecretSignals { name, as_file, target } = row.fields;
        let (env, file) = (frame.invalid("/env"), frame.invalid("/file"));
        view! {
            {entry_select("Secret", "No secrets", lists.secrets, name, frame)}
            <select
                class="select"
                aria-label="Kind"
                on:change=move |ev| as_file.set(event_target_value(&ev) == "file")
            >
                <option value="env" prop:selected=move || { !as_file.get() }>"Variable"</option>
                <option value="file" prop:selected=move || { as_file.get() }>"File"</option>
            </select>
            <input
                class="input mono"
                aria-label=move || if as_file.get() { "Secret file" } else { "Secret variable" }
                placeholder=move || if as_file.get() { "key.pem" } else { "HF_TOKEN" }
                autocomplete="off"
                spellcheck="false"
                aria-describedby=frame.error_id()
                aria-invalid=move || env.get().or_else(|| file.get())
                prop:value=move || target.get()
                on:input=move |ev| target.set(event_target_value(&ev))
            />
        }
        .into_any()
    };
    view! {
        {row_list(&SECRETS, rows, call, item_pointer, controls)}
        {list_notice(lists.secrets, move || lists.load_secrets())}
        {move || {
            none().then(|| {
                view! { <p class="field__hint">"No secrets yet. " <a href=org_link("/secrets")>"Create secret"</a></p> }
            })
        }}
    }
}
