//! Menu of actions behind one button. The items are links and buttons of the class `menu__item`.

use leptos::ev::{KeyboardEvent, MouseEvent};
use leptos::prelude::*;

/// A button with a list of actions. The list closes after a selection, at the opening of another menu, and with
/// Escape.
#[component]
pub fn Menu(
    /// The accessible name: `Actions` with the name of the object.
    #[prop(into)]
    label: String,
    /// The items.
    children: Children,
) -> impl IntoView {
    let menu = NodeRef::<leptos::html::Details>::new();
    let head = NodeRef::<leptos::html::Summary>::new();
    // The focus returns first: a dialog of an item restores the focus of its opening.
    let close = move || {
        if let (Some(menu), Some(head)) = (menu.get_untracked(), head.get_untracked())
            && menu.open()
        {
            menu.set_open(false);
            // A failed focus has no further effect.
            let _ = head.focus();
        }
    };
    let keys = move |event: KeyboardEvent| {
        if event.key() == "Escape" {
            close();
        }
    };
    view! {
        <details class="menu" name="menu" node_ref=menu on:keydown=keys>
            <summary class="btn btn--small" aria-label=label node_ref=head>"Actions"</summary>
            <div class="menu__list" on:click=move |_: MouseEvent| close()>{children()}</div>
        </details>
    }
}
