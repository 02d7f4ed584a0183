//! The parts of a document as rows on pages: issuer, title, parties, tables, sums, notes and footers.
//!
//! Pure.

use berth_types::documents::{DocumentText, LabelledText, SumText, TableText};

use super::flow::{
    BODY_WIDTH_PT, Flow, LINE_PT, Line, MARGIN_PT, PAGE_HEIGHT_PT, PAGE_WIDTH_PT, Page, Place, PlacedText,
    Row, Section, height_pt,
};
use super::wrap::{Style, Weight, Widths, wrap};

const PLAIN: Style = Style { size_pt: 9.0, weight: Weight::Regular, is_quiet: false };
const STRONG: Style = Style { weight: Weight::Bold, ..PLAIN };
const LABEL: Style = Style { size_pt: 7.5, weight: Weight::Regular, is_quiet: true };
const TITLE: Style = Style { size_pt: 13.0, weight: Weight::Bold, is_quiet: false };

/// The distance of two columns.
const GAP_PT: f32 = 14.0;
/// The distance of two parts.
const PART_PT: f32 = 16.0;
/// The greatest width of a column of numbers.
const MAX_NUMBER_PT: f32 = 170.0;
/// The greatest width of all columns of numbers of a table.
const MAX_NUMBERS_PT: f32 = 350.0;
/// The baseline of the footers.
const FOOTER_PT: f32 = PAGE_HEIGHT_PT - 36.0;

/// The pages of a document, and the meaning of its sections.
pub(super) struct Layout {
    pub pages: Vec<Page>,
    pub sections: Vec<Section>,
}

/// The rows of a document so far.
struct Composer<'a, W> {
    widths: &'a W,
    flow: Flow,
    sections: Vec<Section>,
}

/// A column of a row: its ends, and the side of its texts.
#[derive(Clone, Copy)]
struct Column {
    left_pt: f32,
    right_pt: f32,
    is_right: bool,
}

impl Column {
    fn width_pt(self) -> f32 {
        self.right_pt - self.left_pt
    }
}

/// Places a document on pages.
pub(super) fn compose(document: &DocumentText, issuer: &str, widths: &impl Widths) -> Layout {
    let mut composer = Composer { widths, flow: Flow::new(), sections: Vec::new() };
    composer.put_issuer(issuer, document.mark);
    composer.put_title(&document.title);
    composer.put_facts(document);
    for table in &document.tables {
        composer.put_table(table);
    }
    composer.put_sums(&document.sums);
    composer.put_notes(&document.notes);
    let Composer { flow, sections, .. } = composer;
    let mut pages = flow.finish();
    put_footers(&mut pages, &document.title, widths);
    Layout { pages, sections }
}

/// Puts the title and the number of the page below each page.
fn put_footers(pages: &mut [Page], title: &str, widths: &impl Widths) {
    let count = pages.len();
    for (index, page) in pages.iter_mut().enumerate() {
        let number = format!("{} of {count}", index + 1);
        let number_pt = PAGE_WIDTH_PT - MARGIN_PT - widths.width_pt(&number, LABEL);
        for (x_pt, text) in [(MARGIN_PT, title.to_owned()), (number_pt, number)] {
            page.texts.push(PlacedText { x_pt, y_pt: FOOTER_PT, style: LABEL, text, place: None });
        }
    }
}

impl<W: Widths> Composer<'_, W> {
    /// Begins a section and returns its number.
    fn begin(&mut self, section: Section) -> usize {
        self.sections.push(section);
        self.sections.len() - 1
    }

    /// Returns the lines of a text in a column.
    fn lines(&self, text: &str, style: Style, column: Column, place: Place) -> Vec<Line> {
        let line = |text: String| {
            let x_pt = if column.is_right {
                column.right_pt - self.widths.width_pt(&text, style)
            } else {
                column.left_pt
            };
            Line { text, style, place, x_pt }
        };
        wrap(self.widths, text, style, column.width_pt()).into_iter().map(line).collect()
    }

    /// Puts the name of the portal and the mark of the document.
    fn put_issuer(&mut self, issuer: &str, mark: &str) {
        let section = self.begin(Section::Paragraphs);
        let [left, right] = split(self.widths.width_pt(mark, PLAIN).min(MAX_NUMBER_PT));
        let mut row = vec![self.lines(issuer, STRONG, left, Place { section, row: 0, column: 0 })];
        if !mark.is_empty() {
            row.push(self.lines(mark, PLAIN, right, Place { section, row: 0, column: 1 }));
        }
        self.flow.put_row(&row, None);
        self.flow.rule(MARGIN_PT);
    }

    fn put_title(&mut self, title: &str) {
        let section = self.begin(Section::Title);
        self.flow.skip(PART_PT);
        let lines = self.lines(title, TITLE, whole(), Place { section, row: 0, column: 0 });
        self.flow.put_row(&vec![lines], None);
    }

    /// Puts parties and facts side by side, each with its label above it.
    fn put_facts(&mut self, document: &DocumentText) {
        let section = self.begin(Section::Paragraphs);
        self.flow.skip(PART_PT);
        let parties = document.parties.iter().map(std::slice::from_ref);
        let columns: Vec<&[LabelledText]> = parties.chain(document.facts.iter().map(Vec::as_slice)).collect();
        let width_pt = BODY_WIDTH_PT / columns.iter().map(|_| 1.0_f32).sum::<f32>().max(1.0);
        let mut left_pt = MARGIN_PT;
        let mut row: Row = Vec::new();
        for (number, facts) in columns.into_iter().enumerate() {
            let column = Column { left_pt, right_pt: left_pt + width_pt - GAP_PT, is_right: false };
            let mut lines = Vec::new();
            for (index, fact) in facts.iter().enumerate() {
                let place = Place { section, row: number, column: index };
                lines.extend(self.lines(fact.label, LABEL, column, place));
                lines.extend(self.lines(&fact.text, PLAIN, column, place));
            }
            row.push(lines);
            left_pt += width_pt;
        }
        // An address can have more lines than a page.
        self.flow.put_row(&row, None);
    }

    /// Returns the columns of a table: those of numbers as wide as their widest text, and the rest for the first one.
    fn columns(&self, table: &TableText) -> Vec<Column> {
        let numbers = table.heads.iter().skip(1).map(|_| 1.0_f32).sum::<f32>().max(1.0);
        let max_pt = MAX_NUMBER_PT.min(MAX_NUMBERS_PT / numbers);
        let mut rest = whole();
        let mut columns = Vec::new();
        for (index, head) in table.heads.iter().enumerate().skip(1).rev() {
            let cells = table.rows.iter().filter_map(|row| row.get(index));
            let cells_pt = cells.map(|cell| self.widths.width_pt(cell, PLAIN));
            let widest_pt = cells_pt.fold(self.widths.width_pt(head, STRONG), f32::max);
            let left_pt = rest.right_pt - widest_pt.min(max_pt);
            columns.push(Column { left_pt, is_right: true, ..rest });
            rest.right_pt = left_pt - GAP_PT;
        }
        columns.push(rest);
        columns.reverse();
        columns
    }

    fn put_table(&mut self, table: &TableText) {
        self.flow.skip(PART_PT);
        if table.rows.is_empty() {
            let section = self.begin(Section::Paragraphs);
            let lines = self.lines(table.empty, PLAIN, whole(), Place { section, row: 0, column: 0 });
            self.flow.put_row(&vec![lines], None);
            return;
        }
        let section = self.begin(Section::Table { has_head: true });
        let columns = self.columns(table);
        let head = self.table_row(&table.heads, STRONG, &columns, (section, 0));
        self.flow.begin_table(&head);
        for (index, cells) in table.rows.iter().enumerate() {
            let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
            let row = self.table_row(&cells, PLAIN, &columns, (section, index + 1));
            self.flow.put_row(&row, Some(&head));
        }
        self.flow.rule(MARGIN_PT);
    }

    /// Returns a row of a table.
    fn table_row(&self, cells: &[&str], style: Style, columns: &[Column], at: (usize, usize)) -> Row {
        let (section, row) = at;
        let cell = |(column, (text, place)): (usize, (&&str, &Column))| {
            // A cell without text has a space, so that each row has all cells for a screen reader.
            let is_empty = text.trim().is_empty();
            let mut lines = self.lines(text, style, *place, Place { section, row, column });
            if let Some(line) = lines.first_mut().filter(|_| is_empty) {
                line.text.push(' ');
            }
            lines
        };
        cells.iter().zip(columns).enumerate().map(cell).collect()
    }

    /// Puts the sums on one page.
    fn put_sums(&mut self, sums: &[SumText]) {
        let section = self.begin(Section::Table { has_head: false });
        self.flow.skip(PART_PT);
        let style = |sum: &SumText| if sum.is_total { STRONG } else { PLAIN };
        let amount_pt = |sum: &SumText| self.widths.width_pt(&sum.amount, style(sum));
        let widest_pt = sums.iter().map(amount_pt).fold(0.0, f32::max);
        let [label, amount] = split(widest_pt.min(MAX_NUMBER_PT));
        let label = Column { is_right: true, left_pt: MARGIN_PT + BODY_WIDTH_PT / 3.0, ..label };
        let row = |(row, sum): (usize, &SumText)| {
            let name = self.lines(&sum.label, style(sum), label, Place { section, row, column: 0 });
            let number = self.lines(&sum.amount, style(sum), amount, Place { section, row, column: 1 });
            (vec![name, number], sum.is_total)
        };
        let rows: Vec<(Row, bool)> = sums.iter().enumerate().map(row).collect();
        self.flow.keep_together(rows.iter().map(|(row, _)| height_pt(row)).sum::<f32>() + 4.0);
        for (row, is_total) in &rows {
            if *is_total {
                self.flow.skip(2.0);
                self.flow.rule(label.left_pt);
                self.flow.skip(2.0);
            }
            self.flow.put_row(row, None);
        }
    }

    fn put_notes(&mut self, notes: &[String]) {
        let section = self.begin(Section::Paragraphs);
        for (row, note) in notes.iter().enumerate() {
            self.flow.skip(LINE_PT);
            let lines = self.lines(note, PLAIN, whole(), Place { section, row, column: 0 });
            self.flow.put_row(&vec![lines], None);
        }
    }
}

/// Returns the column of the whole width.
fn whole() -> Column {
    Column { left_pt: MARGIN_PT, right_pt: MARGIN_PT + BODY_WIDTH_PT, is_right: false }
}

/// Returns a column of `width_pt` at the right, and the rest at the left of it.
fn split(width_pt: f32) -> [Column; 2] {
    let whole = whole();
    let left_pt = whole.right_pt - width_pt;
    [Column { right_pt: left_pt - GAP_PT, ..whole }, Column { left_pt, is_right: true, ..whole }]
}

#[cfg(test)]
mod tests {
    use super::super::flow::BODY_END_PT;
    use super::super::wrap::tests::HalfWidths;
    use super::*;

    fn document(rows: usize) -> DocumentText {
        let row = |index: usize| {
            vec![format!("item {index}"), String::new(), String::new(), format!("${index}.00")]
        };
        let sum = |label: &str, is_total: bool| SumText {
            label: label.to_owned(),
            amount: "$5.00".to_owned(),
            is_total,
        };
        DocumentText {
            title: "Invoice 12".to_owned(),
            mark: "open",
            parties: vec![
                LabelledText { label: "From", text: "Harbour\nPier 1".to_owned() },
                LabelledText { label: "To", text: "Kelda Lab".to_owned() },
            ],
            facts: vec![vec![LabelledText { label: "Number", text: "12".to_owned() }]],
            tables: vec![TableText {
                caption: "Invoice lines",
                heads: vec!["Item", "Device-hours", "Price per hour", "Amount"],
                rows: (0..rows).map(row).collect(),
                empty: "No charges.",
            }],
            sums: vec![sum("Net", false), sum("Total", true)],
            notes: vec!["Paid.".to_owned()],
        }
    }

    /// The texts of a page.
    fn texts(page: &Page) -> Vec<&str> {
        page.texts.iter().map(|text| text.text.as_str()).collect()
    }

    /// The page of a text.
    fn page_of(layout: &Layout, text: &str) -> Option<usize> {
        layout.pages.iter().position(|page| texts(page).contains(&text))
    }

    #[test]
    fn each_text_is_on_a_page_between_the_margins() {
        for rows in 0..=150 {
            let layout = compose(&document(rows), "Berth", &HalfWidths);
            let count = layout.pages.len();
            for (index, page) in layout.pages.iter().enumerate() {
                let seen = texts(page);
                assert_eq!(seen.last(), Some(&format!("{} of {count}", index + 1).as_str()), "{rows}");
                assert!(seen.contains(&"Invoice 12"), "{rows}");
                for text in page.texts.iter().filter(|text| text.place.is_some()) {
                    let end_pt = text.x_pt + HalfWidths.width_pt(&text.text, text.style);
                    // The space of an empty cell is beyond its end.
                    let end_pt = if text.text == " " { text.x_pt } else { end_pt };
                    assert!(text.x_pt >= MARGIN_PT && end_pt <= PAGE_WIDTH_PT - MARGIN_PT + 0.1, "{text:?}");
                    assert!(text.y_pt <= BODY_END_PT, "{text:?}");
                }
            }
            let all: Vec<&str> = layout.pages.iter().flat_map(texts).collect();
            let times = |wanted: &str| all.iter().filter(|text| **text == wanted).count();
            for index in 0..rows {
                assert_eq!(times(&format!("item {index}")), 1, "{rows} {index}");
            }
            assert_eq!(
                (times("Total"), times("Paid."), times("No charges.")),
                (1, 1, usize::from(rows == 0))
            );
            assert_eq!(page_of(&layout, "Net"), page_of(&layout, "Total"), "{rows}");
        }
    }

    #[test]
    fn the_page_of_the_sums_follows_a_full_page() {
        let pages = |rows: usize| compose(&document(rows), "Berth", &HalfWidths).pages.len();
        let full = (0..100).take_while(|rows| pages(*rows) == 1).count() - 1;
        assert!(full > 20, "{full}");
        assert_eq!((pages(0), pages(1), pages(full), pages(full + 1)), (1, 1, 1, 2));
    }

    #[test]
    fn long_texts_wrap_and_long_addresses_continue_on_the_next_page() {
        let mut long = document(1);
        if let Some(seller) = long.parties.first_mut() {
            seller.text = "x\n".repeat(250);
        }
        let row = long.tables.first_mut().and_then(|table| table.rows.first_mut());
        if let Some(name) = row.and_then(|row| row.first_mut()) {
            *name = "word ".repeat(100);
        }
        let layout = compose(&long, "Berth", &HalfWidths);
        let all: Vec<&str> = layout.pages.iter().flat_map(texts).collect();
        assert_eq!(all.iter().filter(|text| **text == "x").count(), 250);
        assert!(all.iter().filter(|text| text.starts_with("word word")).count() > 4);
        assert!(layout.pages.len() > 4, "{} pages", layout.pages.len());
    }

    #[test]
    fn places_are_unique_for_a_cell_and_within_the_sections() {
        let layout = compose(&document(60), "Berth", &HalfWidths);
        assert_eq!(layout.sections.iter().filter(|section| **section == Section::Title).count(), 1);
        let mut heads = 0;
        for text in layout.pages.iter().flat_map(|page| &page.texts) {
            let Some(place) = text.place else { continue };
            assert!(place.section < layout.sections.len(), "{text:?}");
            heads += usize::from(text.text == "Device-hours");
        }
        // The repeated head is no part of the text.
        assert_eq!(heads, 1);
    }
}
