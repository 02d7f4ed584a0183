//! Slugs of organizations, which name them in the addresses of pages.

use berth_store::{self as store, StoreError, Tx};
use berth_types::accounts::Org;
use berth_types::ids::OrgId;

/// The maximum length of a slug in bytes.
const MAX_BYTES: usize = 40;
/// The slug of a name without ASCII letters and digits.
const NAMELESS: &str = "org";
/// The highest number behind a slug. A stranger can take all of these, so the search stops here.
const MAX_NUMBER: u32 = 20;
/// The characters of the organization's id behind a slug; the last ones of an id are random.
const ID_CHARS: usize = 10;

/// Returns the slug of a name: its ASCII letters in lower case and its digits, with one hyphen for all that is
/// between them.
fn from_name(name: &str) -> String {
    let mut slug = String::new();
    for c in name.chars() {
        if slug.len() == MAX_BYTES {
            break;
        }
        if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        } else if !slug.is_empty() && !slug.ends_with('-') {
            slug.push('-');
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { NAMELESS.to_owned() } else { slug.to_owned() }
}

/// Returns the slug with a suffix, within the maximum length.
fn with_suffix(slug: &str, suffix: &str) -> String {
    let room = MAX_BYTES.saturating_sub(suffix.len() + 1);
    let start: String = slug.chars().take(room).collect();
    format!("{}-{suffix}", start.trim_end_matches('-'))
}

/// Returns the slugs of an organization in the order of preference: `slug`, `slug-2` up to `slug-20`, and at last
/// one with characters of the id, which no other organization has.
fn candidates(slug: &str, org: OrgId) -> impl Iterator<Item = String> {
    let id = org.to_string();
    let end = id.get(id.len().saturating_sub(ID_CHARS)..).unwrap_or_default();
    let last = with_suffix(slug, end);
    let numbered = (2..=MAX_NUMBER).map(move |number| with_suffix(slug, &number.to_string()));
    std::iter::once(slug.to_owned()).chain(numbered).chain(std::iter::once(last))
}

/// Returns a free slug for a new organization. The same transaction inserts the organization.
///
/// # Errors
/// A failure of the store.
pub async fn free_slug(tx: &mut Tx<'_>, org: &Org) -> Result<String, StoreError> {
    let wanted = from_name(&org.name);
    let mut slug = String::new();
    for candidate in candidates(&wanted, org.id) {
        slug = candidate;
        if !store::accounts::has_slug(tx, &slug).await? {
            break;
        }
    }
    Ok(slug)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn org() -> OrgId {
        "org_01h455vb4pex5vsknk084sn02q".parse().unwrap()
    }

    #[test]
    fn a_slug_has_the_letters_and_digits_of_the_name() {
        for (name, slug) in [
            ("Acme", "acme"),
            ("  Harbour Lab 2 ", "harbour-lab-2"),
            ("a -- b__c", "a-b-c"),
            ("Müller & Söhne", "m-ller-s-hne"),
            ("港", "org"),
            ("---", "org"),
            ("", "org"),
        ] {
            assert_eq!(from_name(name), slug, "{name:?}");
        }
        assert_eq!(from_name(&"x".repeat(100)), "x".repeat(40));
        assert_eq!(from_name(&format!("{} y", "x".repeat(39))), "x".repeat(39));
    }

    #[test]
    fn a_taken_slug_gets_a_number_and_at_last_characters_of_the_id() {
        let all: Vec<String> = candidates("acme", org()).collect();
        assert_eq!(all.iter().take(3).collect::<Vec<_>>(), ["acme", "acme-2", "acme-3"]);
        assert_eq!(all.iter().rev().take(2).collect::<Vec<_>>(), ["acme-nk084sn02q", "acme-20"]);
        let long: Vec<String> = candidates(&"x".repeat(40), org()).take(2).collect();
        assert_eq!(long, ["x".repeat(40), format!("{}-2", "x".repeat(38))]);
    }

    proptest! {
        #[test]
        fn every_slug_is_1_to_40_characters_without_a_hyphen_at_an_end(name in "\\PC{0,100}") {
            for slug in candidates(&from_name(&name), org()) {
                prop_assert!((1..=MAX_BYTES).contains(&slug.len()), "{slug}");
                prop_assert!(slug.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{slug}");
                prop_assert!(!slug.starts_with('-') && !slug.ends_with('-') && !slug.contains("--"), "{slug}");
            }
        }
    }
}
