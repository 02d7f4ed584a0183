//! Tables of lists, and the empty state of a list.

use leptos::prelude::*;

/// The text and the class of a column head, `""` for no class.
pub type Head = (&'static str, &'static str);

/// The head of a column of buttons, for screen readers only.
pub const ACTIONS: Head = ("Actions", "table__actions");

/// The class of a column of check boxes, with a head for screen readers only.
pub const SELECT: &str = "table__select";

/// The head of a column of states.
pub const STATE: Head = ("State", "table__state");

fn head((text, class): Head) -> AnyView {
    if class == ACTIONS.1 || class == SELECT {
        view! {
            <th role="columnheader" scope="col" class=class><span class="visually-hidden">{text}</span></th>
        }
        .into_any()
    } else if class.is_empty() {
        view! { <th role="columnheader" scope="col">{text}</th> }.into_any()
    } else {
        view! { <th role="columnheader" scope="col" class=class>{text}</th> }.into_any()
    }
}

/// Returns a table with a caption for screen readers.
pub fn table_of(caption: &'static str, heads: &[Head], rows: Vec<AnyView>) -> AnyView {
    live_table(caption, heads, rows.into_any())
}

/// Returns a table like [`table_of`] that scrolls by keyboard where it is wider than the page: its rows can be without
/// links.
pub fn scroll_table(caption: &'static str, heads: &[Head], rows: Vec<AnyView>) -> AnyView {
    let table = table(caption, heads, rows.into_any());
    view! { <div class="table-wrap" tabindex="0" role="region" aria-label=caption>{table}</div> }.into_any()
}

/// Returns a table whose rows change, with a caption for screen readers.
pub fn live_table(caption: &'static str, heads: &[Head], rows: AnyView) -> AnyView {
    view! { <div class="table-wrap">{table(caption, heads, rows)}</div> }.into_any()
}

fn table(caption: &'static str, heads: &[Head], rows: AnyView) -> AnyView {
    let heads: Vec<AnyView> = heads.iter().copied().map(head).collect();
    view! {
        <table class="table" role="table">
            <caption class="visually-hidden">{caption}</caption>
            <thead role="rowgroup">
                <tr role="row">{heads}</tr>
            </thead>
            <tbody role="rowgroup">{rows}</tbody>
        </table>
    }
    .into_any()
}

/// Returns the empty state of a filtered list: a sentence, and the link to the list without a filter.
pub fn empty_filtered(text: &'static str, all: &'static str) -> AnyView {
    empty_linked(text, all, "Clear filters")
}

/// Returns the empty state of a list with its next step: a sentence and a link.
pub fn empty_linked(text: &'static str, path: &'static str, link: &'static str) -> AnyView {
    view! {
        <div class="empty">
            <p class="empty__text">{text}</p>
            <a class="btn" href=path>{link}</a>
        </div>
    }
    .into_any()
}

/// Returns the empty state of a list, a sentence.
pub fn empty(text: &'static str) -> AnyView {
    view! { <div class="empty"><p class="empty__text">{text}</p></div> }.into_any()
}
