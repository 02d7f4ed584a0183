//! Calendar of single boards: the boards of a model, a page of them at a time.

use berth_types::ids::OrgId;
use leptos::prelude::*;

use super::boards_state::{BoardsState, PAGE_BOARDS};
use super::calendar_state::{poll, refresh_warning};
use super::capacity_state::CapacityState;
use super::grid::Grid;
use super::rows::Rows;
use super::table::CalendarTable;
use crate::api;
use crate::pages::text::{counted, number};

/// The grid of a page of boards, with a filter by model, a legend and a table.
#[component]
pub fn BoardCalendar(
    /// The organization.
    org: OrgId,
    /// The capacity, with the models.
    state: CapacityState,
) -> impl IntoView {
    let calendar = state.calendar;
    let boards = BoardsState::new(calendar);
    let query = Memo::new(move |_| calendar.period().map(|period| (period, boards.model.get())));
    let request = move |(period, model)| api::reservations::calendar(org, period, model);
    poll(query, boards.updates, request, move |fresh| boards.set_answer(fresh));
    view! {
        <div class="stack">
            <Pages state=state boards=boards/>
            <Grid rows=Rows::Boards(boards)/>
            <div class="row">
                <Legend/>
                <span class="row__end">
                    {move || refresh_warning(boards.updates.get(), boards.is_loading())}
                </span>
            </div>
            <CalendarTable state=boards/>
        </div>
    }
}

/// Returns the range of a page: `Boards 33 to 64 of 256`, `1 board`.
fn range_text(first: usize, all: usize) -> String {
    if all <= PAGE_BOARDS {
        return counted(all, "board", "boards");
    }
    let text = |count: usize| number(u64::try_from(count).unwrap_or(u64::MAX));
    let last = first.saturating_add(PAGE_BOARDS).min(all);
    format!("Boards {} to {} of {}", text(first.saturating_add(1)), text(last), text(all))
}

/// The filter by model and the pages.
#[component]
fn Pages(state: CapacityState, boards: BoardsState) -> impl IntoView {
    let all = Memo::new(move |_| boards.boards.with(Vec::len));
    let first = Memo::new(move |_| boards.first());
    let at_start = move || first.get() == 0;
    let at_end = move || first.get().saturating_add(PAGE_BOARDS) >= all.get();
    // A disabled button would lose the focus on the first or the last page.
    let go = move |forward: bool| {
        if untrack(move || if forward { at_end() } else { at_start() }) {
            return;
        }
        let page = first.get_untracked() / PAGE_BOARDS;
        boards.page.set(if forward { page.saturating_add(1) } else { page.saturating_sub(1) });
    };
    let models =
        state.models.with_untracked(|rows| rows.iter().map(|row| row.model.clone()).collect::<Vec<String>>());
    let option = |model: String| {
        let text = model.clone();
        view! { <option value=model>{text}</option> }
    };
    let choose = move |event| {
        boards.page.set(0);
        boards.model.set(Some(event_target_value(&event)).filter(|model| !model.is_empty()));
    };
    view! {
        <div class="row">
            <label class="filters__field" for="boards-model">
                "Board model"
                <select class="select" id="boards-model" on:change=choose>
                    <option value="">"any"</option>
                    {models.into_iter().map(option).collect_view()}
                </select>
            </label>
            <p role="status">{move || range_text(first.get(), all.get())}</p>
            <div class="btn-row row__end">
                <button
                    class="btn btn--small"
                    type="button"
                    aria-disabled=move || at_start().then_some("true")
                    on:click=move |_| go(false)
                >
                    "Previous boards"
                </button>
                <button
                    class="btn btn--small"
                    type="button"
                    aria-disabled=move || at_end().then_some("true")
                    on:click=move |_| go(true)
                >
                    "Next boards"
                </button>
            </div>
        </div>
    }
}

/// The legend of the tiles.
#[component]
fn Legend() -> impl IntoView {
    let entry = |class: &'static str, hue: Option<&'static str>, text: &'static str| {
        let pattern = hue.map(|_| "plain");
        view! {
            <li>
                <span class="berth-bar berth-bar--inline berth-bar--time" aria-hidden="true" data-cells="1">
                    <span class=class data-start="0" data-size="1" data-hue=hue data-pattern=pattern></span>
                </span>
                " "
                {text}
            </li>
        }
    };
    view! {
        <ul class="legend">
            {entry("tile tile--own", Some("1"), "your active reservation")}
            {entry("tile tile--own tile--reserved", Some("1"), "your upcoming reservation")}
            {entry("tile tile--own tile--job", Some("1"), "your jobs")}
            {entry("tile tile--foreign", None, "taken")}
            {entry("tile tile--maintenance", None, "maintenance")}
            {entry("cell", None, "free")}
        </ul>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_range() {
        assert_eq!(range_text(0, 1), "1 board");
        assert_eq!(range_text(0, 32), "32 boards");
        assert_eq!(range_text(32, 1_256), "Boards 33 to 64 of 1,256");
        assert_eq!(range_text(64, 70), "Boards 65 to 70 of 70");
    }
}
