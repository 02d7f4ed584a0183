//! The parameters that all lists share.

use std::hash::{DefaultHasher, Hasher};
use std::str::FromStr;

use berth_types::lists::{Binding, ListOptions, NameCursor};
use berth_types::problems::Problem;
use berth_types::{Page, Sort};
use serde::{Deserialize, Serialize};

use crate::failed::Failed;

/// Bytes of a cursor. A list has no key past 2,000 bytes, and a cursor has two digits for each of them, then a
/// digest of the order and the filter.
const MAX_CURSOR_BYTES: usize = 4_096;

/// The query of a list without filters. A query with filters has the same three fields.
#[derive(Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuery {
    /// The most items of a page, 1 to 200; 50 when absent.
    #[schemars(range(min = 1, max = 200))]
    pub limit: Option<u32>,
    /// The `next_cursor` of the page before.
    #[schemars(length(min = 1, max = 4_096))]
    pub cursor: Option<String>,
    /// The order of the list. When absent, `desc` for lists by creation and `asc` for all other lists.
    pub sort: Option<Sort>,
}

impl ListQuery {
    /// The options of a list by creation: newest first, unless the query has another order.
    ///
    /// # Errors
    /// The limit is out of range, or the text is no cursor of this list.
    pub fn by_creation<C: FromStr>(self) -> Result<ListOptions<C>, Failed> {
        self.by_creation_with(&())
    }

    /// [`by_creation`](Self::by_creation) for a list with a filter. `filter` has all other parameters that
    /// choose the items or their order.
    ///
    /// # Errors
    /// The limit is out of range, or the text is no cursor of this list with this filter and order.
    pub fn by_creation_with<C: FromStr>(self, filter: &impl Serialize) -> Result<ListOptions<C>, Failed> {
        self.options(Sort::Desc, filter)
    }

    /// The options of a list by name: ascending, unless the query has another order.
    ///
    /// # Errors
    /// The limit is out of range, or the text is no cursor of this list.
    pub fn by_name(self) -> Result<ListOptions<NameCursor>, Failed> {
        self.by_name_with(&())
    }

    /// [`by_name`](Self::by_name) for a list with a filter. `filter` has all other parameters that choose the
    /// items or their order.
    ///
    /// # Errors
    /// The limit is out of range, or the text is no cursor of this list with this filter and order.
    pub fn by_name_with(self, filter: &impl Serialize) -> Result<ListOptions<NameCursor>, Failed> {
        self.options(Sort::Asc, filter)
    }

    fn options<C: FromStr>(self, default: Sort, filter: &impl Serialize) -> Result<ListOptions<C>, Failed> {
        let sort = self.sort.unwrap_or(default);
        let binding = binding(sort, filter)?;
        Ok(ListOptions {
            cursor: self.cursor.map(|text| bound_cursor(&text, binding)).transpose()?,
            limit: limit(self.limit)?,
            sort,
            binding: Some(binding),
        })
    }
}

/// The digest of an order and a filter.
fn binding(sort: Sort, filter: &impl Serialize) -> Result<Binding, Failed> {
    let text = serde_json::to_vec(&(sort, filter)).map_err(|_| Failed(Problem::internal()))?;
    let mut hasher = DefaultHasher::new();
    hasher.write(&text);
    Ok(Binding(hasher.finish()))
}

/// Parses a cursor with the digest of its order and filter.
fn bound_cursor<C: FromStr>(text: &str, binding: Binding) -> Result<C, Failed> {
    let (key, bound) = text.rsplit_once('.').unwrap_or((text, ""));
    if text.len() > MAX_CURSOR_BYTES || bound.is_empty() {
        return Err(foreign_cursor());
    }
    let key = parse_cursor(key.to_owned())?;
    if bound != binding.to_string() {
        return Err(Failed(Problem::malformed(
            "The cursor is from a list with another `sort` or other filters. Send the cursor with the parameters of its own page, or read the list from the start without a cursor.",
        )));
    }
    Ok(key)
}

fn foreign_cursor() -> Failed {
    Failed(Problem::malformed("The cursor is not from this list. Send a `next_cursor` of this list."))
}

/// The `limit` of a list: 1 to 200, or 50 when absent.
fn limit(asked: Option<u32>) -> Result<u32, Failed> {
    match asked.unwrap_or(50) {
        limit @ 1..=200 => Ok(limit),
        _ => Err(Failed(Problem::malformed("`limit` is between 1 and 200."))),
    }
}

/// Parses a cursor without a digest, as the pages inside the portal have it.
///
/// # Errors
/// The text is no cursor of this list.
pub fn parse_cursor<C: FromStr>(text: String) -> Result<C, Failed> {
    let parsed = if text.len() > MAX_CURSOR_BYTES { None } else { text.parse().ok() };
    parsed.ok_or_else(foreign_cursor)
}

/// The page of a list that is complete in memory, in the order of its keys. The keys must be unique. The page
/// begins at the next key after the cursor, so the removal of an item loses no other item.
pub fn page_in_memory<T>(
    items: Vec<T>,
    options: &ListOptions<NameCursor>,
    key: impl Fn(&T) -> String,
) -> Page<T> {
    let mut keyed: Vec<(String, T)> = items.into_iter().map(|item| (key(&item), item)).collect();
    keyed.sort_by(|(one, _), (other, _)| match options.sort {
        Sort::Asc => one.cmp(other),
        Sort::Desc => other.cmp(one),
    });
    if let Some(NameCursor(after)) = &options.cursor {
        keyed.retain(|(key, _)| match options.sort {
            Sort::Asc => key > after,
            Sort::Desc => key < after,
        });
    }
    options.page(keyed, |(key, _)| NameCursor(key.clone())).map(|(_, item)| item)
}

/// The key of an object with a name that is not unique: the name, then the id.
pub fn name_and_id(name: &str, id: impl std::fmt::Display) -> String {
    // No name has a control character, so a name sorts before its own extensions.
    format!("{name}\u{1f}{id}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Item = (&'static str, u32);

    /// Two items have the same name.
    const ITEMS: [Item; 6] = [("b", 1), ("a b", 2), ("c", 3), ("a", 5), ("c", 4), ("a", 6)];
    const ASCENDING: [Item; 6] = [("a", 5), ("a", 6), ("a b", 2), ("b", 1), ("c", 3), ("c", 4)];

    fn page(items: &[Item], cursor: Option<String>, limit: u32, sort: Sort) -> Page<Item> {
        let cursor = cursor.map(|text| text.parse().unwrap());
        let options = ListOptions { cursor, limit, sort, binding: None };
        page_in_memory(items.to_vec(), &options, |(name, id)| name_and_id(name, id))
    }

    #[test]
    fn pages_of_every_size_have_each_item_once_in_both_directions() {
        for (sort, reversed) in [(Sort::Asc, false), (Sort::Desc, true)] {
            let mut expected = ASCENDING.to_vec();
            if reversed {
                expected.reverse();
            }
            for limit in 1..=7 {
                let (mut seen, mut cursor) = (Vec::new(), None);
                loop {
                    let next = page(&ITEMS, cursor, limit, sort);
                    assert!(next.items.len() <= limit as usize);
                    seen.extend(next.items);
                    cursor = next.next_cursor;
                    if cursor.is_none() {
                        break;
                    }
                }
                assert_eq!(seen, expected, "{sort:?}, {limit} a page");
            }
        }
    }

    #[test]
    fn a_removed_item_at_the_cursor_loses_no_other_item() {
        let ascending = vec![("b", 1), ("c", 3), ("c", 4)];
        let descending = vec![("a b", 2), ("a", 6), ("a", 5)];
        for (sort, rest) in [(Sort::Asc, ascending), (Sort::Desc, descending)] {
            let first = page(&ITEMS, None, 3, sort);
            let removed = *first.items.last().unwrap();
            let left: Vec<Item> = ITEMS.into_iter().filter(|item| *item != removed).collect();
            let second = page(&left, first.next_cursor, 3, sort);
            assert_eq!(second, Page::whole(rest), "{sort:?}");
        }
    }

    #[test]
    fn an_empty_list_has_one_empty_page() {
        assert_eq!(page(&[], None, 1, Sort::Asc), Page::whole(Vec::new()));
    }

    #[test]
    fn a_query_has_defaults_and_limits() {
        let query =
            |limit, cursor: Option<&str>, sort| ListQuery { limit, cursor: cursor.map(str::to_owned), sort };
        let options = |query: ListQuery| query.by_creation::<u32>().ok();
        let digest = |sort: Sort| binding(sort, &()).ok();
        let newest = ListOptions { binding: digest(Sort::Desc), ..ListOptions::newest(50) };
        assert_eq!(options(query(None, None, None)), Some(newest));
        let bound = digest(Sort::Asc);
        let cursor = format!("7.{}", bound.unwrap());
        let expected = ListOptions { cursor: Some(7), limit: 200, sort: Sort::Asc, binding: bound };
        assert_eq!(options(query(Some(200), Some(&cursor), Some(Sort::Asc))), Some(expected));
        assert_eq!(query(None, None, None).by_name().ok().map(|options| options.sort), Some(Sort::Asc));
        for (limit, cursor) in
            [(Some(0), None), (Some(201), None), (None, Some("seven")), (None, Some("7")), (None, Some(""))]
        {
            assert_eq!(options(query(limit, cursor, None)), None, "{limit:?} {cursor:?}");
        }
    }

    #[test]
    fn a_cursor_longer_than_any_of_a_list_is_refused() {
        let parsed = |bytes: usize| {
            let digest = binding(Sort::Asc, &()).ok().unwrap();
            let cursor = Some(format!("{}.{digest}", NameCursor("n".repeat(bytes))));
            ListQuery { limit: None, cursor, sort: None }.by_name().ok().and_then(|list| list.cursor)
        };
        assert_eq!(parsed(2_000), Some(NameCursor("n".repeat(2_000))));
        assert_eq!(parsed(2_048), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        #[test]
        fn a_text_that_is_a_cursor_is_written_so(
            text in prop_oneof!["name_[0-9a-f]{0,40}", "name_[0-9a-zA-Z_.]{0,20}", "(?s).{0,40}"],
        ) {
            if let Ok(cursor) = parse_cursor::<NameCursor>(text.clone()) {
                prop_assert_eq!(cursor.to_string(), text);
            }
        }

        #[test]
        fn a_cursor_of_any_name_is_valid_for_its_own_filter_only(
            name in "[^\\x00]{1,60}",
            own in ".{0,8}",
            other in ".{0,8}",
        ) {
            let digest = binding(Sort::Asc, &own).ok().unwrap();
            let text = format!("{}.{digest}", NameCursor(name.clone()));
            let read = |filter: &str| {
                let query = ListQuery { limit: None, cursor: Some(text.clone()), sort: None };
                query.by_name_with(&filter).ok().and_then(|list| list.cursor)
            };
            prop_assert_eq!(read(&own), Some(NameCursor(name)));
            prop_assert!(other == own || read(&other).is_none());
        }
    }

    #[test]
    fn a_cursor_with_another_order_or_filter_is_refused() {
        let read = |cursor: Option<&str>, sort, filter: &str| {
            let cursor = cursor.map(str::to_owned);
            ListQuery { limit: Some(1), cursor, sort: Some(sort) }.by_creation_with::<u32>(&filter)
        };
        let first = read(None, Sort::Asc, "a").ok().unwrap();
        let next = first.page(vec![3, 4], |item| *item).next_cursor;
        let next = next.as_deref();
        assert_eq!(read(next, Sort::Asc, "a").ok().and_then(|options| options.cursor), Some(3));
        let detail = |sort, filter| read(next, sort, filter).err().map(|Failed(problem)| problem.detail);
        for (sort, filter) in [(Sort::Desc, "a"), (Sort::Asc, "b")] {
            assert!(detail(sort, filter).is_some_and(|detail| detail.contains("another `sort`")), "{filter}");
        }
    }
}
