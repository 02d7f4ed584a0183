//! The table of a comparison: a row for each value, a column for each job.

use berth_types::time::Timestamp;
use leptos::prelude::*;

use super::rows::{Column, Row, Section};
use crate::address::org_link;
use crate::ui::*;

/// Returns the sample of a job's line in the charts. `index` is the position of the job from 0.
pub fn line_key(index: usize) -> AnyView {
    let class = format!("compare__key {}", line_class(index));
    view! {
        <svg class=class viewBox="0 0 24 8" width="24" height="8" aria-hidden="true" focusable="false">
            <path class="compare__line" d="M0 4H24"></path>
        </svg>
    }
    .into_any()
}

/// Returns the classes with colour and dashes of a job's line.
pub fn line_class(index: usize) -> String {
    let number = index.saturating_add(1);
    format!("series-{number} dash-{number}")
}

/// Returns the number and the name of a job: `1 train`.
pub fn column_text(index: usize, column: &Column) -> String {
    let number = index.saturating_add(1);
    match &column.job {
        Some((name, _)) => format!("{number} {name}"),
        None => format!("{number} No access or deleted"),
    }
}

fn head((index, column): (usize, &Column)) -> AnyView {
    let (text, id) = (column_text(index, column), column.id.to_string());
    let key = line_key(index);
    let title = match &column.job {
        Some((_, state)) => {
            let path = org_link(&format!("/jobs/{id}"));
            view! { <a class="break" href=path>{text}</a> <StateBadge state=*state/> }.into_any()
        }
        None => view! { <span class="quiet">{text}</span> }.into_any(),
    };
    view! {
        <th scope="col" class="compare__job">
            {key}
            {title}
            <span class="table__sub mono break">{id}</span>
        </th>
    }
    .into_any()
}

fn row(row: &Row, only: RwSignal<bool>) -> AnyView {
    let Row { name, cells, differs, figures, times } = row.clone();
    let time = |text: &str| text.parse::<Timestamp>().ok().filter(|_| times);
    let class = if figures { "num" } else { "compare__text" };
    let cells: Vec<AnyView> = cells
        .into_iter()
        .map(|cell| match cell {
            Some(text) => match time(&text) {
                Some(at) => view! { <td class=class><When at=at/></td> }.into_any(),
                None => view! { <td class=class>{text}</td> }.into_any(),
            },
            None => view! { <td class=class><span class="quiet">"–"</span></td> }.into_any(),
        })
        .collect();
    let mark = differs.then(|| {
        view! {
            <span class="compare__mark" aria-hidden="true">"≠"</span>
            <span class="visually-hidden">" (differs)"</span>
        }
    });
    let class = if differs { "compare__row compare__row--differs" } else { "compare__row" };
    view! {
        <tr class=class hidden=move || only.get() && !differs>
            <th scope="row" class="compare__name">{name}{mark}</th>
            {cells}
        </tr>
    }
    .into_any()
}

fn section(section: &Section, columns: usize, only: RwSignal<bool>) -> AnyView {
    let differs = section.differs();
    let title = section.title.clone();
    let rows: Vec<AnyView> = section.rows.iter().map(|one| row(one, only)).collect();
    let span = columns.to_string();
    view! {
        <tbody hidden=move || only.get() && !differs>
            <tr>
                <th scope="rowgroup" class="compare__name compare__section">{title}</th>
                <td class="compare__section" colspan=span></td>
            </tr>
            {rows}
        </tbody>
    }
    .into_any()
}

/// Returns the table. With `only` it shows the rows that differ.
pub fn table(columns: &[Column], sections: &[Section], only: RwSignal<bool>) -> AnyView {
    let heads: Vec<AnyView> = columns.iter().enumerate().map(head).collect();
    let bodies: Vec<AnyView> = sections.iter().map(|one| section(one, columns.len(), only)).collect();
    let any = sections.iter().any(Section::differs);
    view! {
        // The keyboard scrolls what has the focus.
        <div class="compare" role="region" tabindex="0" aria-label="Comparison, scrolls sideways">
            <table class="compare__table">
                <caption class="visually-hidden">"Values of the jobs"</caption>
                <thead>
                    <tr>
                        <th scope="col" class="compare__name">"Value"</th>
                        {heads}
                    </tr>
                </thead>
                {bodies}
            </table>
        </div>
        <p class="quiet" role="status">
            {move || if only.get() && !any { "No value differs." } else { "" }}
        </p>
    }
    .into_any()
}
