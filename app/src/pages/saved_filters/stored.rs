//! The saved filters of a list in the local storage of the browser, by user and list. Pure, except for the storage.

use berth_types::ids::UserId;
use serde::{Deserialize, Serialize};

/// The maximum number of filters of a list.
pub const MAX_FILTERS: usize = 20;
/// The maximum number of characters of a name.
pub const MAX_NAME_CHARS: usize = 60;
/// The maximum number of bytes of a query.
const MAX_QUERY_BYTES: usize = 4_000;
/// The maximum number of bytes of a stored text.
const MAX_BYTES: usize = 256 << 10;

const WRONG_NAME: &str = "Enter a name of 1 to 60 characters on one line.";
const KNOWN_NAME: &str = "Another filter has this name: enter another name, or delete that filter first.";
const TOO_MANY: &str = "Not saved: a list has at most 20 saved filters. Delete one first.";
const WRONG_QUERY: &str = "Not saved: the list has no filter, or its filter is too long.";
const NOT_STORED: &str = "Not saved: the browser refused, because its storage is full or off. The address of the page has the filter too.";

/// A saved filter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedFilter {
    /// The name, once in a list.
    pub name: String,
    /// The query of the address without `?`.
    pub query: String,
}

/// The saved filters of a list in the order of their creation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters(Vec<SavedFilter>);

/// Returns a valid name without spaces around it.
fn valid_name(name: &str) -> Result<String, &'static str> {
    let name = name.trim();
    let valid =
        !name.is_empty() && name.chars().count() <= MAX_NAME_CHARS && !name.contains(char::is_control);
    if valid { Ok(name.to_owned()) } else { Err(WRONG_NAME) }
}

impl Filters {
    /// Parses a stored text. Invalid filters and those beyond the limits are left out.
    pub fn parse(text: &str) -> Self {
        let mut filters = Self::default();
        if text.len() > MAX_BYTES {
            return filters;
        }
        for one in serde_json::from_str::<Vec<SavedFilter>>(text).unwrap_or_default() {
            // An invalid filter of another version is lost.
            let _ = filters.add(&one.name, &one.query);
        }
        filters
    }

    /// Returns the text for the storage.
    pub fn text(&self) -> String {
        serde_json::to_string(&self.0).unwrap_or_default()
    }

    /// Returns all filters.
    pub fn list(&self) -> &[SavedFilter] {
        &self.0
    }

    /// Finds the filter with a name.
    pub fn find(&self, name: &str) -> Option<&SavedFilter> {
        self.0.iter().find(|one| one.name == name)
    }

    /// Adds a filter at the end.
    ///
    /// # Errors
    /// The name or the query is invalid, the name is taken, or the list is full.
    pub fn add(&mut self, name: &str, query: &str) -> Result<(), &'static str> {
        self.insert(self.0.len(), name, query)
    }

    /// Adds a filter at a place, at most at the end.
    ///
    /// # Errors
    /// The name or the query is invalid, the name is taken, or the list is full.
    pub fn insert(&mut self, place: usize, name: &str, query: &str) -> Result<(), &'static str> {
        let name = valid_name(name)?;
        if self.find(&name).is_some() {
            return Err(KNOWN_NAME);
        }
        if self.0.len() >= MAX_FILTERS {
            return Err(TOO_MANY);
        }
        if query.is_empty() || query.len() > MAX_QUERY_BYTES {
            return Err(WRONG_QUERY);
        }
        self.0.insert(place.min(self.0.len()), SavedFilter { name, query: query.to_owned() });
        Ok(())
    }

    /// Renames a filter. An unknown filter is ignored, because another tab may have deleted it.
    ///
    /// # Errors
    /// The new name is invalid or taken.
    pub fn rename(&mut self, from: &str, to: &str) -> Result<(), &'static str> {
        let to = valid_name(to)?;
        if to != from && self.find(&to).is_some() {
            return Err(KNOWN_NAME);
        }
        if let Some(one) = self.0.iter_mut().find(|one| one.name == from) {
            one.name = to;
        }
        Ok(())
    }

    /// Removes a filter and returns it with its place.
    pub fn remove(&mut self, name: &str) -> Option<(usize, SavedFilter)> {
        let place = self.0.iter().position(|one| one.name == name)?;
        Some((place, self.0.remove(place)))
    }
}

/// Returns the key of a user's filters for a list.
fn storage_key(user: UserId, list: &str) -> String {
    format!("berth.filters.{user}.{list}")
}

#[cfg(feature = "hydrate")]
fn read(key: &str) -> Option<String> {
    web_sys::window()?.local_storage().ok()??.get_item(key).ok()?
}

/// The portal renders without a storage.
#[cfg(not(feature = "hydrate"))]
fn read(_key: &str) -> Option<String> {
    None
}

#[cfg(feature = "hydrate")]
fn write(key: &str, text: &str) -> Option<()> {
    web_sys::window()?.local_storage().ok()??.set_item(key, text).ok()
}

#[cfg(not(feature = "hydrate"))]
fn write(_key: &str, _text: &str) -> Option<()> {
    None
}

/// Reads the filters of a list. The list is empty without a storage.
pub fn stored(user: UserId, list: &str) -> Filters {
    read(&storage_key(user, list)).map(|text| Filters::parse(&text)).unwrap_or_default()
}

/// Changes the stored filters of a list, which another tab may have changed, and returns them.
///
/// # Errors
/// The change is refused, or the browser does not store it.
pub fn change<T>(
    user: UserId,
    list: &str,
    change: impl FnOnce(&mut Filters) -> Result<T, &'static str>,
) -> Result<(Filters, T), &'static str> {
    let mut filters = stored(user, list);
    let result = change(&mut filters)?;
    write(&storage_key(user, list), &filters.text()).ok_or(NOT_STORED)?;
    Ok((filters, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(filters: &Filters) -> Vec<&str> {
        filters.list().iter().map(|one| one.name.as_str()).collect()
    }

    #[test]
    fn a_name_is_once_in_a_list() {
        let mut filters = Filters::default();
        assert_eq!(filters.add(" failed ", "state=failed"), Ok(()));
        assert_eq!(filters.add("failed", "state=queued"), Err(KNOWN_NAME));
        assert_eq!(filters.add("mine", "created_by=a"), Ok(()));
        assert_eq!(filters.rename("mine", "failed"), Err(KNOWN_NAME));
        assert_eq!(filters.rename("mine", "mine"), Ok(()));
        assert_eq!(filters.rename("mine", "own"), Ok(()));
        assert_eq!(filters.rename("absent", "other"), Ok(()));
        assert_eq!(names(&filters), ["failed", "own"]);
        assert_eq!(filters.find("own").map(|one| one.query.as_str()), Some("created_by=a"));
    }

    #[test]
    fn names_and_queries_have_limits() {
        let mut filters = Filters::default();
        for name in ["", " ", "a\nb", "x".repeat(61).as_str()] {
            assert_eq!(filters.add(name, "a=b"), Err(WRONG_NAME), "{name}");
        }
        assert_eq!(filters.add(&"ü".repeat(60), "a=b"), Ok(()));
        assert_eq!(filters.add("a", ""), Err(WRONG_QUERY));
        assert_eq!(filters.add("a", &"x".repeat(MAX_QUERY_BYTES + 1)), Err(WRONG_QUERY));
        for number in 1..MAX_FILTERS {
            assert_eq!(filters.add(&number.to_string(), "a=b"), Ok(()));
        }
        assert_eq!(filters.add("one more", "a=b"), Err(TOO_MANY));
    }

    #[test]
    fn a_removed_filter_returns_to_its_place() {
        let mut filters = Filters::default();
        for name in ["a", "b", "c"] {
            assert_eq!(filters.add(name, "x=y"), Ok(()));
        }
        let (place, one) = filters.remove("b").unwrap();
        assert_eq!((place, names(&filters)), (1, vec!["a", "c"]));
        assert_eq!(filters.insert(place, &one.name, &one.query), Ok(()));
        assert_eq!(names(&filters), ["a", "b", "c"]);
        assert_eq!(filters.remove("absent"), None);
    }

    #[test]
    fn a_stored_text_is_parsed_within_the_limits() {
        let mut filters = Filters::default();
        assert_eq!(filters.add("failed", "state=failed"), Ok(()));
        assert_eq!(Filters::parse(&filters.text()), filters);
        for text in ["", "{}", "null", "[1]", "x".repeat(MAX_BYTES + 1).as_str()] {
            assert_eq!(Filters::parse(text), Filters::default());
        }
        let many: Vec<SavedFilter> =
            (0..30).map(|number| SavedFilter { name: number.to_string(), query: "a=b".to_owned() }).collect();
        assert_eq!(Filters::parse(&serde_json::to_string(&many).unwrap()).list().len(), MAX_FILTERS);
    }
}
