//! What can be done to one thing, behind one button.
//!
//! Must not know what that is: its items are given, links and buttons of the class `menu__item`.

use leptos::ev::{KeyboardEvent, MouseEvent};
use leptos::prelude::*;

/// A button that opens a short list. It shuts when one of it is chosen, when another menu is opened, and with
/// Escape.
#[component]
pub fn Menu(
    /// What it is called: `Actions` and of what.
    #[prop(into)]
    label: String,
    /// The items.
    children: Children,
) -> impl IntoView {
    let menu = NodeRef::<leptos::html::Details>::new();
    let head = NodeRef::<leptos::html::Summary>::new();
    // The focus goes back first: a dialog that an item opens gives it back to where it was.
    let shut = move || {
        if let (Some(menu), Some(head)) = (menu.get_untracked(), head.get_untracked())
            && menu.open()
        {
            menu.set_open(false);
            // What cannot be focused is only not focused.
            let _ = head.focus();
        }
    };
    let keys = move |event: KeyboardEvent| {
        if event.key() == "Escape" {
            shut();
        }
    };
    view! {
        <details class="menu" name="menu" node_ref=menu on:keydown=keys>
            <summary class="btn btn--small" aria-label=label node_ref=head>"Actions"</summary>
            <div class="menu__list" on:click=move |_: MouseEvent| shut()>{children()}</div>
        </details>
    }
}
