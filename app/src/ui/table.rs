//! A list as a table, and what stands in its place while nothing is in it.
//!
//! Must not know what is listed: the words of the head are given, and the rows come drawn.

use leptos::prelude::*;

/// What stands over a column, and its class, `""` for none.
pub type Head = (&'static str, &'static str);

/// Over a column of buttons; only those read it who do not see them.
pub const ACTIONS: Head = ("Actions", "table__actions");

/// Over the state of each thing.
pub const STATE: Head = ("State", "table__state");

fn head((words, class): Head) -> AnyView {
    if (words, class) == ACTIONS {
        view! {
            <th role="columnheader" scope="col" class=class><span class="visually-hidden">{words}</span></th>
        }
        .into_any()
    } else if class.is_empty() {
        view! { <th role="columnheader" scope="col">{words}</th> }.into_any()
    } else {
        view! { <th role="columnheader" scope="col" class=class>{words}</th> }.into_any()
    }
}

/// The rows below their head; the caption says what they are to those who do not see where they stand.
pub fn table_of(caption: &'static str, heads: &[Head], rows: Vec<AnyView>) -> AnyView {
    let heads: Vec<AnyView> = heads.iter().copied().map(head).collect();
    view! {
        <div class="table-wrap">
            <table class="table" role="table">
                <caption class="visually-hidden">{caption}</caption>
                <thead role="rowgroup">
                    <tr role="row">{heads}</tr>
                </thead>
                <tbody role="rowgroup">{rows}</tbody>
            </table>
        </div>
    }
    .into_any()
}

/// One sentence in the place of a list that has nothing in it.
pub fn empty(words: &'static str) -> AnyView {
    view! { <div class="empty"><p class="empty__text">{words}</p></div> }.into_any()
}
