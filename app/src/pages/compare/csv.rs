//! A comparison as CSV. Pure.

use super::rows::{Column, Section};

/// Returns a quoted cell that no spreadsheet program takes for a formula.
fn cell(text: &str) -> String {
    let plain = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    format!("\"{plain}{}\"", text.replace('"', "\"\""))
}

fn line<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells: Vec<String> = cells.into_iter().map(cell).collect();
    cells.join(",") + "\r\n"
}

/// Returns all rows with a column for each job. A job that cannot be read has its id and empty cells.
pub fn csv(columns: &[Column], sections: &[Section]) -> String {
    let ids: Vec<String> = columns.iter().map(|column| column.id.to_string()).collect();
    let names = columns.iter().zip(&ids).map(|(column, id)| match &column.job {
        Some((name, _)) => name.as_str(),
        None => id.as_str(),
    });
    let mut csv = line(["Section", "Value", "Differs"].into_iter().chain(names));
    csv += &line(["", "Job", "yes"].into_iter().chain(ids.iter().map(String::as_str)));
    for section in sections {
        for row in &section.rows {
            let differs = if row.differs { "yes" } else { "no" };
            let cells = row.cells.iter().map(|cell| cell.as_deref().unwrap_or_default());
            csv += &line([section.title.as_str(), row.name.as_str(), differs].into_iter().chain(cells));
        }
    }
    csv
}

#[cfg(test)]
mod tests {
    use super::super::rows::Row;
    use super::*;
    use berth_types::jobs::JobState;

    #[test]
    fn a_cell_is_quoted_and_no_formula() {
        let id = |number: u32| format!("job_{number:0>26}").parse().unwrap();
        let columns = [
            Column { id: id(1), job: Some(("=a,\"b\"".to_owned(), JobState::Failed)) },
            Column { id: id(2), job: None },
        ];
        let rows = vec![
            Row {
                name: "Command".to_owned(),
                cells: vec![Some("a\nb".to_owned()), None],
                differs: false,
                figures: false,
                times: false,
            },
            Row {
                name: "Cost".to_owned(),
                cells: vec![Some("-1".to_owned()), Some("2".to_owned())],
                differs: true,
                figures: true,
                times: false,
            },
        ];
        let sections = [Section { title: "Program".to_owned(), rows }];
        let (first, second) = (columns[0].id, columns[1].id);
        let expected = [
            format!("\"Section\",\"Value\",\"Differs\",\"'=a,\"\"b\"\"\",\"{second}\"\r\n"),
            format!("\"\",\"Job\",\"yes\",\"{first}\",\"{second}\"\r\n"),
            "\"Program\",\"Command\",\"no\",\"a\nb\",\"\"\r\n".to_owned(),
            "\"Program\",\"Cost\",\"yes\",\"'-1\",\"2\"\r\n".to_owned(),
        ];
        assert_eq!(csv(&columns, &sections), expected.concat());
    }
}
