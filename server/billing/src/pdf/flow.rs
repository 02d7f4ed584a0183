//! Rows of texts on pages: each row goes below the row before it, or on the next page.
//!
//! Pure. Lengths are in points, 1/72 inch. The origin is the upper left corner of a page, and `y_pt` of a text is
//! its baseline.

use super::wrap::Style;

/// The size of A4.
pub(super) const PAGE_WIDTH_PT: f32 = 595.0;
pub(super) const PAGE_HEIGHT_PT: f32 = 842.0;
pub(super) const MARGIN_PT: f32 = 51.0;
/// The width between the margins.
pub(super) const BODY_WIDTH_PT: f32 = PAGE_WIDTH_PT - 2.0 * MARGIN_PT;
/// The end of the rows of a page, above the footer.
pub(super) const BODY_END_PT: f32 = PAGE_HEIGHT_PT - 62.0;
/// The distance of two baselines.
pub(super) const LINE_PT: f32 = 13.0;
/// A distance below this length is an error of rounding.
const ROUNDING_PT: f32 = 0.01;

/// The place of a text in the order of reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub section: usize,
    pub row: usize,
    pub column: usize,
}

/// The meaning of the texts of a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Section {
    Title,
    /// Each place is a paragraph.
    Paragraphs,
    /// The first column names the row. With `has_head` the first row names the columns.
    Table {
        has_head: bool,
    },
}

/// A line of text on a page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlacedText {
    pub x_pt: f32,
    pub y_pt: f32,
    pub style: Style,
    pub text: String,
    /// Absent for repeated heads and footers.
    pub place: Option<Place>,
}

/// A horizontal line on a page.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Rule {
    pub x_pt: f32,
    pub y_pt: f32,
    pub width_pt: f32,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Page {
    pub texts: Vec<PlacedText>,
    pub rules: Vec<Rule>,
}

/// A line of a cell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
    pub text: String,
    pub style: Style,
    pub place: Place,
    /// The left end of the line.
    pub x_pt: f32,
}

/// A row: for each column its lines.
pub(super) type Row = Vec<Vec<Line>>;

/// Returns the height of a row.
pub(super) fn height_pt(row: &Row) -> f32 {
    let lines = row.iter().map(Vec::len).max().unwrap_or(0);
    (0..lines).map(|_| LINE_PT).sum()
}

/// Pages with the end of the last row.
pub(super) struct Flow {
    finished: Vec<Page>,
    page: Page,
    end_pt: f32,
}

impl Flow {
    pub(super) fn new() -> Self {
        Self { finished: Vec::new(), page: Page::default(), end_pt: MARGIN_PT }
    }

    fn fits(&self, height_pt: f32) -> bool {
        self.end_pt + height_pt <= BODY_END_PT + ROUNDING_PT
    }

    fn break_page(&mut self, head: Option<&Row>) {
        self.finished.push(std::mem::take(&mut self.page));
        self.end_pt = MARGIN_PT;
        if let Some(head) = head {
            self.put_head(head, true);
        }
    }

    /// Leaves a distance below the last row, unless it is at the end of a page.
    pub(super) fn skip(&mut self, distance_pt: f32) {
        if self.end_pt > MARGIN_PT {
            self.end_pt += distance_pt;
        }
    }

    /// Begins a page if the present one has less than `height_pt`. A height of more than a page has no effect.
    pub(super) fn keep_together(&mut self, height_pt: f32) {
        if !self.fits(height_pt) && MARGIN_PT + height_pt <= BODY_END_PT {
            self.break_page(None);
        }
    }

    /// Draws a line across the width of the body, at most from `x_pt` on.
    pub(super) fn rule(&mut self, x_pt: f32) {
        let width_pt = PAGE_WIDTH_PT - MARGIN_PT - x_pt;
        self.page.rules.push(Rule { x_pt, y_pt: self.end_pt, width_pt });
    }

    /// Puts one line of each column of a row. A repeated line has no place.
    fn put_line(&mut self, row: &Row, index: usize, is_repeated: bool) {
        let y_pt = self.end_pt + LINE_PT - 4.0;
        let lines = row.iter().filter_map(|lines| lines.get(index));
        for line in lines.filter(|line| !line.text.is_empty()) {
            self.page.texts.push(PlacedText {
                x_pt: line.x_pt,
                y_pt,
                style: line.style,
                text: line.text.clone(),
                place: (!is_repeated).then_some(line.place),
            });
        }
        self.end_pt += LINE_PT;
    }

    fn put_head(&mut self, head: &Row, is_repeated: bool) {
        let lines = head.iter().map(Vec::len).max().unwrap_or(0);
        for index in 0..lines {
            self.put_line(head, index, is_repeated);
        }
        self.rule(MARGIN_PT);
        self.end_pt += 2.0;
    }

    /// Begins a table with its head. The head stays with the first line of the first row.
    pub(super) fn begin_table(&mut self, head: &Row) {
        self.keep_together(height_pt(head) + 2.0 + LINE_PT);
        self.put_head(head, false);
    }

    /// Puts a row. It stays on one page, unless it is higher than a page. `head` begins each further page.
    pub(super) fn put_row(&mut self, row: &Row, head: Option<&Row>) {
        let whole_pt = height_pt(row);
        let head_pt = head.map_or(0.0, |head| height_pt(head) + 2.0);
        if !self.fits(whole_pt) && MARGIN_PT + head_pt + whole_pt <= BODY_END_PT {
            self.break_page(head);
        }
        let lines = row.iter().map(Vec::len).max().unwrap_or(0);
        for index in 0..lines {
            if !self.fits(LINE_PT) {
                self.break_page(head);
            }
            self.put_line(row, index, false);
        }
    }

    /// Returns all pages, at least one.
    pub(super) fn finish(mut self) -> Vec<Page> {
        self.finished.push(self.page);
        self.finished
    }
}

#[cfg(test)]
mod tests {
    use super::super::wrap::Weight;
    use super::*;

    /// A row of one column.
    fn row(number: usize, lines: usize) -> Row {
        let line = |index: usize| Line {
            text: format!("{number}.{index}"),
            style: Style { size_pt: 9.0, weight: Weight::Regular, is_quiet: false },
            place: Place { section: 0, row: number, column: 0 },
            x_pt: MARGIN_PT,
        };
        vec![(0..lines).map(line).collect()]
    }

    /// The lines of a page without a head.
    fn capacity() -> usize {
        (1..).take_while(|lines| MARGIN_PT + height_pt(&row(0, *lines)) <= BODY_END_PT).count()
    }

    /// The number of lines of each page, for rows with these numbers of lines.
    fn lines_of_pages(rows: &[usize]) -> Vec<usize> {
        let mut flow = Flow::new();
        for (number, lines) in rows.iter().enumerate() {
            flow.put_row(&row(number, *lines), None);
        }
        flow.finish().iter().map(|page| page.texts.len()).collect()
    }

    #[test]
    fn pages_break_where_they_are_full() {
        let full = capacity();
        assert_eq!(full, 56);
        for (rows, pages) in [
            (0, vec![0]),
            (1, vec![1]),
            (full - 1, vec![full - 1]),
            (full, vec![full]),
            (full + 1, vec![full, 1]),
            (2 * full, vec![full, full]),
            (2 * full + 1, vec![full, full, 1]),
        ] {
            assert_eq!(lines_of_pages(&vec![1; rows]), pages, "{rows}");
        }
    }

    #[test]
    fn a_row_stays_on_one_page_unless_it_is_higher() {
        let full = capacity();
        let mut rows = vec![1; full - 1];
        rows.push(2);
        assert_eq!(lines_of_pages(&rows), [full - 1, 2]);
        assert_eq!(lines_of_pages(&[1, full]), [1, full]);
        assert_eq!(lines_of_pages(&[1, full + 1]), [full, 2]);
    }

    #[test]
    fn each_page_of_a_table_begins_with_its_head() {
        let head = row(0, 1);
        for rows in 0..=200 {
            let mut flow = Flow::new();
            flow.begin_table(&head);
            for number in 1..=rows {
                flow.put_row(&row(number, 1), Some(&head));
            }
            let pages = flow.finish();
            let mut seen = Vec::new();
            for (index, page) in pages.iter().enumerate() {
                let first = page.texts.first().unwrap();
                assert_eq!((first.text.as_str(), first.place.is_none()), ("0.0", index > 0), "{rows}");
                assert_eq!(page.rules.len(), 1, "{rows}");
                assert!(page.texts.iter().all(|text| text.y_pt <= BODY_END_PT), "{rows}");
                assert!(index == 0 || page.texts.len() > 1, "{rows}: a page without rows");
                seen.extend(page.texts.iter().skip(1).map(|text| text.text.clone()));
            }
            let expected: Vec<String> = (1..=rows).map(|number| format!("{number}.0")).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn a_head_is_never_the_last_line_of_a_page() {
        let full = capacity();
        let mut flow = Flow::new();
        (0..full - 1).for_each(|number| flow.put_row(&row(number, 1), None));
        flow.begin_table(&row(7, 1));
        flow.put_row(&row(8, 1), None);
        let lines: Vec<usize> = flow.finish().iter().map(|page| page.texts.len()).collect();
        assert_eq!(lines, [full - 1, 2]);
    }
}
