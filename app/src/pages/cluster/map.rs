//! Map of all boards, grouped by rack and node, with one element for each board.

use berth_types::cluster::{ClusterMap, MapBoard, MapNode};
use leptos::prelude::*;
use leptos::web_sys;

use super::super::parts::focus_first;
use super::choice::Choice;
use super::layout::{NodeGroup, Place, RackGroup, order, racks, step};
use super::panel::OpenBoard;
use super::text::{board_class, board_title, node_text};

/// The most boards that are drawn large.
const FEW_BOARDS: usize = 64;

/// The signals of the map.
#[derive(Clone, Copy)]
struct MapState {
    map: RwSignal<ClusterMap>,
    choice: Memo<Choice>,
    /// The places of all boards by their numbers.
    order: Memo<Vec<Place>>,
    /// The number of the board that had the focus last.
    focused: RwSignal<usize>,
    opened: RwSignal<Option<OpenBoard>>,
}

impl MapState {
    /// Reads a board. The default for a place without a board.
    fn read<T: Default>(self, place: Place, read: impl FnOnce(&ClusterMap, &MapNode, &MapBoard) -> T) -> T {
        self.map.with(|map| {
            let node = map.nodes.get(place.node);
            let board = node.and_then(|node| node.boards.get(place.board));
            match (node, board) {
                (Some(node), Some(board)) => read(map, node, board),
                _ => T::default(),
            }
        })
    }

    fn is_shown(self, place: Place) -> bool {
        self.read(place, |map, node, board| {
            self.choice.with(|choice| choice.filter.matches(&map.facts(node, board)))
        })
    }

    fn class(self, place: Place) -> String {
        self.read(place, |map, node, board| {
            self.choice.with(|choice| {
                board_class(board, choice.by_use, choice.filter.matches(&map.facts(node, board)))
            })
        })
    }

    /// Opens the board with a number.
    fn open(self, number: usize) {
        let Some(place) = self.order.with_untracked(|order| order.get(number).copied()) else { return };
        let uuid = untrack(|| self.read(place, |_, _, board| board.uuid.clone()));
        self.opened.set(Some(OpenBoard { uuid, from: board_id(number) }));
    }

    /// Moves the focus by a key. Returns true if the key has a meaning.
    fn walk(self, key: &str) -> bool {
        let next = untrack(|| {
            let from = self.focused.get();
            self.order.with(|order| step(order, from, key, |place| self.is_shown(place)))
        });
        if let Some(number) = next {
            self.focused.set(number);
            focus_first(&format!("#{}", board_id(number)));
        }
        matches!(key, "ArrowRight" | "ArrowLeft" | "ArrowDown" | "ArrowUp" | "Home" | "End")
    }
}

fn board_id(number: usize) -> String {
    format!("board-{number}")
}

/// Returns the number of the board of an event.
fn event_board(event: &web_sys::Event) -> Option<usize> {
    let target = event_target::<web_sys::Element>(event);
    target.closest("[data-board]").ok()??.get_attribute("data-board")?.parse().ok()
}

/// The map of all boards.
#[component]
pub fn BoardMap(
    /// The boards.
    map: RwSignal<ClusterMap>,
    /// The parameters of the address.
    choice: Memo<Choice>,
    /// The open board.
    opened: RwSignal<Option<OpenBoard>>,
) -> impl IntoView {
    let groups = Memo::new(move |_| map.with(racks));
    let order = Memo::new(move |_| groups.with(|groups| order(groups)));
    let state = MapState { map, choice, order, focused: RwSignal::new(0), opened };
    // The board with the focus may be filtered out: then the first shown board is the stop of the Tab key.
    let tab_stop = Memo::new(move |_| {
        let focused = state.focused.get();
        order.with(|order| {
            let is_shown = |number: &usize| order.get(*number).is_some_and(|place| state.is_shown(*place));
            if is_shown(&focused) { Some(focused) } else { (0..order.len()).find(is_shown) }
        })
    });
    let click = move |event: leptos::ev::MouseEvent| {
        if let Some(number) = event_board(&event) {
            state.open(number);
        }
    };
    let focus = move |event: leptos::ev::FocusEvent| {
        if let Some(number) = event_board(&event) {
            state.focused.set(number);
        }
    };
    let key = move |event: leptos::ev::KeyboardEvent| {
        if event.key() == "Escape" {
            state.opened.set(None);
        } else if state.walk(&event.key()) {
            event.prevent_default();
        }
    };
    let few = move || state.order.with(|order| order.len() <= FEW_BOARDS);
    view! {
        <div
            class="boards"
            class:boards--large=few
            role="group"
            aria-label="Boards by rack and node"
            aria-describedby="boards-keys"
            on:click=click
            on:focusin=focus
            on:keydown=key
        >
            {move || groups.get().iter().map(|rack| rack_view(rack, state, tab_stop)).collect::<Vec<_>>()}
        </div>
        <p class="quiet small" id="boards-keys">
            "Arrow keys move between boards, Enter shows a board, Escape closes it."
        </p>
    }
}

fn rack_view(rack: &RackGroup, state: MapState, tab_stop: Memo<Option<usize>>) -> AnyView {
    let nodes: Vec<AnyView> = rack.nodes.iter().map(|node| node_view(node, state, tab_stop)).collect();
    let name = rack.name.as_ref().map_or_else(|| "No rack".to_owned(), |name| format!("Rack {name}"));
    let places: Vec<Place> = rack.nodes.iter().flat_map(places).collect();
    let class = move || {
        if places.iter().any(|place| state.is_shown(*place)) {
            "boards__rack"
        } else {
            "boards__rack boards__rack--out"
        }
    };
    view! { <section class=class><h2 class="boards__name">{name}</h2>{nodes}</section> }.into_any()
}

fn places(node: &NodeGroup) -> Vec<Place> {
    (0..node.boards.len()).map(|board| Place { node: node.node, board }).collect()
}

fn node_view(node: &NodeGroup, state: MapState, tab_stop: Memo<Option<usize>>) -> AnyView {
    let places = places(node);
    let board = |(place, number): (&Place, usize)| board_view(*place, number, state, tab_stop);
    let boards: Vec<AnyView> = places.iter().zip(node.first..).map(board).collect();
    let class = move || {
        if places.iter().any(|place| state.is_shown(*place)) {
            "boards__node"
        } else {
            "boards__node boards__node--out"
        }
    };
    let at = node.node;
    let name = move || state.map.with(|map| map.nodes.get(at).map(node_text));
    // The style shows the name, so that a node is one element.
    view! { <div class=class role="group" aria-label=name data-name=name>{boards}</div> }.into_any()
}

fn board_view(place: Place, number: usize, state: MapState, tab_stop: Memo<Option<usize>>) -> AnyView {
    view! {
        <button
            type="button"
            id=board_id(number)
            class=move || state.class(place)
            title=move || state.read(place, board_title)
            tabindex=move || if tab_stop.get() == Some(number) { "0" } else { "-1" }
            data-board=number.to_string()
        ></button>
    }
    .into_any()
}
