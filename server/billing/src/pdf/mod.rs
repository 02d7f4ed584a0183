//! Invoices and statements as PDF files: A4 pages with the texts of `berth_types::documents`, tagged for screen
//! readers. The same input has the same bytes.

mod compose;
mod flow;
mod fonts;
mod wrap;
mod writer;

use berth_types::documents::DocumentText;
use berth_types::time::Timestamp;

/// The most rows of all tables of a file.
pub const MAX_ROWS: usize = 10_000;

/// A PDF file could not be written. The text is for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct PdfError(String);

/// Writes a document. `issuer` is the name of the portal; `created_at` becomes the date of the file.
///
/// # Errors
/// A font of the program is broken, or a limit of the format is exceeded.
pub fn write(
    document: &DocumentText,
    issuer: &str,
    created_at: Option<Timestamp>,
) -> Result<Vec<u8>, PdfError> {
    let fonts = fonts::Fonts::new().ok_or_else(|| PdfError("a font of the program is broken".to_owned()))?;
    let layout = compose::compose(document, issuer, &fonts);
    let metadata = writer::metadata(&document.title, issuer, created_at);
    writer::write(&layout, &fonts, metadata).map_err(|error| PdfError(error.to_string()))
}

#[cfg(test)]
mod tests {
    use berth_types::documents::{LabelledText, TableText};

    use super::*;

    fn document(rows: usize) -> DocumentText {
        let row = |index: usize| vec![format!("item {index}"), "1.00".to_owned(), "$1.00".to_owned()];
        DocumentText {
            title: "Invoice 12".to_owned(),
            mark: "paid",
            parties: vec![LabelledText {
                label: "To",
                text: "Ångström Ελλάδα Київ 株式会社 \u{202e}\u{7}".to_owned(),
            }],
            facts: Vec::new(),
            tables: vec![TableText {
                caption: "Invoice lines",
                heads: vec!["Item", "Device-hours", "Amount"],
                rows: (0..rows).map(row).collect(),
                empty: "No charges.",
            }],
            sums: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Reads the pages of a file by another library.
    fn read(bytes: &[u8]) -> Vec<String> {
        let file = lopdf::Document::load_mem(bytes).unwrap();
        file.get_pages().into_keys().map(|number| file.extract_text(&[number]).unwrap()).collect()
    }

    #[test]
    fn a_name_in_any_script_is_written() {
        let bytes = write(&document(1), "Harbour", None).unwrap();
        assert!(bytes.starts_with(b"%PDF-"));
        // Each font is embedded with its used glyphs only.
        assert!(bytes.len() < 100_000, "{} bytes", bytes.len());
        let pages = read(&bytes);
        let [page] = pages.as_slice() else { panic!("{} pages", pages.len()) };
        // The Japanese name has boxes.
        for text in ["Ångström Ελλάδα Київ", "Invoice 12", "Device-hours", "$1.00", "1 of 1"] {
            assert!(page.contains(text), "{text}: {page}");
        }
    }

    #[test]
    fn the_same_input_has_the_same_bytes() {
        let at = Timestamp::from_micros(1_795_214_589_000_000);
        let file = |title: &str, at: Option<Timestamp>| {
            let document = DocumentText { title: title.to_owned(), ..document(3) };
            write(&document, "Harbour", at).unwrap()
        };
        assert_eq!(file("Invoice 12", Some(at)), file("Invoice 12", Some(at)));
        assert_ne!(file("Invoice 12", Some(at)), file("Invoice 13", Some(at)));
        assert_ne!(file("Invoice 12", Some(at)), file("Invoice 12", None));
    }

    #[test]
    fn five_thousand_rows_are_written() {
        let bytes = write(&document(5_000), "Harbour", None).unwrap();
        assert!(bytes.len() < 20_000_000, "{} bytes", bytes.len());
        let pages = read(&bytes);
        assert!(pages.len() > 80, "{} pages", pages.len());
        assert!(pages.iter().all(|page| page.contains("Device-hours")), "a page without the head");
        assert!(pages.last().is_some_and(|page| page.contains("item 4999")));
    }
}
