//! The options of a list for the layers of the portal: position, length and order.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use crate::{Page, Sort};

/// The options for one page of a list. `C` is the key of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListOptions<C> {
    /// The key of the last item of the page before; absent for the first page.
    pub cursor: Option<C>,
    /// The most items of the page.
    pub limit: u32,
    pub sort: Sort,
    /// The order and the filter of the list, which its cursors carry; absent inside the portal.
    pub binding: Option<Binding>,
}

/// A digest of the order and the filter of a list. A cursor with another digest belongs to another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Binding(pub u64);

impl Display for Binding {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl<C> ListOptions<C> {
    /// The options for the first page, newest first.
    pub const fn newest(limit: u32) -> Self {
        Self { cursor: None, limit, sort: Sort::Desc, binding: None }
    }

    /// The number of rows to read: one more than the limit, which shows that another page follows.
    pub fn rows(&self) -> i64 {
        i64::from(self.limit) + 1
    }

    /// The page of the first items. `items` are the items after the cursor, or the first
    /// [`rows`](Self::rows) of them.
    pub fn page<T>(&self, mut items: Vec<T>, key: impl FnOnce(&T) -> C) -> Page<T>
    where
        C: Display,
    {
        let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
        let is_last = items.len() <= limit;
        items.truncate(limit);
        let next_cursor = items.last().filter(|_| !is_last).map(|item| {
            let key = key(item);
            self.binding.map_or_else(|| key.to_string(), |binding| format!("{key}.{binding}"))
        });
        Page { items, next_cursor }
    }

    /// The cursor of a list by id as text; empty for the first page.
    pub fn cursor_text(&self) -> String
    where
        C: Display,
    {
        self.cursor.as_ref().map_or_else(String::new, ToString::to_string)
    }
}

impl ListOptions<NameCursor> {
    /// The name after which the page begins; empty for the first page.
    pub fn cursor_name(&self) -> &str {
        self.cursor.as_ref().map_or("", |cursor| cursor.0.as_str())
    }
}

/// The key of a list by name. Its text is the name in hexadecimal after a prefix, so it needs no escape in an
/// address and no list by id accepts it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameCursor(pub String);

const PREFIX: &str = "name_";

impl Display for NameCursor {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(PREFIX)?;
        self.0.bytes().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The text is no cursor of a list by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid cursor of a list by name")]
pub struct NoNameCursor;

impl FromStr for NameCursor {
    type Err = NoNameCursor;

    fn from_str(text: &str) -> Result<Self, NoNameCursor> {
        let digits = text.strip_prefix(PREFIX).ok_or(NoNameCursor)?;
        let is_hex = digits.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if digits.is_empty() || !digits.len().is_multiple_of(2) || !is_hex {
            return Err(NoNameCursor);
        }
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).map_err(|_| NoNameCursor)?;
            u8::from_str_radix(pair, 16).map_err(|_| NoNameCursor)
        };
        let bytes = digits.as_bytes().chunks(2).map(byte).collect::<Result<Vec<u8>, NoNameCursor>>()?;
        // No name has a NUL, and Postgres does not accept it.
        let name = String::from_utf8(bytes).ok().filter(|name| !name.contains('\0'));
        name.map(Self).ok_or(NoNameCursor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_cursor_only_if_more_items_follow() {
        let options: ListOptions<u32> = ListOptions::newest(2);
        assert_eq!(options.rows(), 3);
        let page = |items: &[u32]| options.page(items.to_vec(), |item| *item);
        assert_eq!(page(&[]), Page::whole(Vec::new()));
        assert_eq!(page(&[3]), Page::whole(vec![3]));
        assert_eq!(page(&[3, 2]), Page::whole(vec![3, 2]));
        assert_eq!(page(&[3, 2, 1]), Page { items: vec![3, 2], next_cursor: Some("2".to_owned()) });
        assert_eq!(options.cursor_text(), "");
        let bound = ListOptions { binding: Some(Binding(0xab)), ..ListOptions::<u32>::newest(1) };
        let cursor = bound.page(vec![3, 2], |item| *item).next_cursor;
        assert_eq!(cursor.as_deref(), Some("3.00000000000000ab"));
        assert_eq!(ListOptions { cursor: Some(7u32), ..options }.cursor_text(), "7");
    }

    #[test]
    fn a_name_cursor_keeps_every_name_and_refuses_other_texts() {
        for name in ["a", "sets/a b&c.bin", "ü\u{1f}node_1", "name_"] {
            let text = NameCursor(name.to_owned()).to_string();
            assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'), "{text}");
            assert_eq!(text.parse::<NameCursor>(), Ok(NameCursor(name.to_owned())));
        }
        for text in [
            "",
            "name_",
            "name_6",
            "name_6G",
            "name_+6",
            "name_ff",
            "name_6A",
            "name_00",
            "name_6100",
            "data",
            "job_61",
        ] {
            assert_eq!(text.parse::<NameCursor>(), Err(NoNameCursor), "{text}");
        }
    }
}
