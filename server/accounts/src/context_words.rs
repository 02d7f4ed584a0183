//! The words of a portal, its organizations and its people. No password consists of them: strangers know them.

use axum::http::Uri;
use berth_foundation::{Context, Settings};
use berth_store::{self as store, StoreError, Tx};
use berth_types::ids::UserId;

const PRODUCT: &str = "Berth";
/// Shorter parts of names are also parts of other words.
const MIN_WORD_CHARS: usize = 4;
/// Characters of a text that count. Addresses and names have at most as many.
const MAX_TEXT_CHARS: usize = 254;
/// The characters of a password beside the words.
const MIN_OTHER_CHARS: usize = 8;
/// The organizations of a person that count.
const MAX_ORGS: usize = 20;

/// Reads the texts of the portal: the product, the operator's name, and the host.
pub async fn read(tx: &mut Tx<'_>, settings: &Settings) -> Result<Vec<String>, StoreError> {
    let operator = store::accounts::portal_settings(tx).await?.name;
    let url: Option<Uri> = settings.public_url.parse().ok();
    let host = url.as_ref().and_then(Uri::host).unwrap_or_default();
    Ok(vec![PRODUCT.to_owned(), operator, host.to_owned()])
}

/// [`read`], in a transaction of its own.
pub async fn read_at_once(context: &Context) -> Result<Vec<String>, StoreError> {
    let mut conn = context.db.read().await?;
    read(&mut conn.tx(), &context.settings).await
}

/// Reads the texts of the portal, and the names of the organizations of a person.
pub async fn read_of_person(
    tx: &mut Tx<'_>,
    settings: &Settings,
    user: UserId,
) -> Result<Vec<String>, StoreError> {
    let mut texts = read(tx, settings).await?;
    let memberships = store::accounts::list_memberships(tx, user).await?;
    texts.extend(memberships.into_iter().take(MAX_ORGS).map(|membership| membership.org.name));
    Ok(texts)
}

/// The words of a text in lower case, and the whole text as one word.
fn words(text: &str) -> Vec<String> {
    let text: String = text.chars().take(MAX_TEXT_CHARS).flat_map(char::to_lowercase).collect();
    let whole: String = text.chars().filter(|c| c.is_alphanumeric()).collect();
    let counts =
        |word: &String| word.chars().count() >= MIN_WORD_CHARS && word.chars().any(char::is_alphabetic);
    let parts = text.split(|c: char| !c.is_alphanumeric()).map(str::to_owned);
    parts.chain([whole]).filter(counts).collect()
}

/// True for a password with fewer than eight characters beside the words of these texts and white space.
pub fn is_made_of(password: &str, texts: &[&str]) -> bool {
    let mut all: Vec<String> = texts.iter().flat_map(|text| words(text)).collect();
    // The longest first: a word can contain another one.
    all.sort_by_key(|word| std::cmp::Reverse(word.len()));
    let rest = all.iter().fold(password.to_lowercase(), |rest, word| rest.replace(word.as_str(), " "));
    rest.chars().filter(|c| !c.is_whitespace()).count() < MIN_OTHER_CHARS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_has_eight_characters_beside_the_words_of_its_portal() {
        let texts = ["Berth", "Harbour Compute", "gpu.harbour.example", "Deep Lab", "ada@example.org"];
        for made in ["BerthBerth2026!!", "harbourcompute-ada1", "deeplab deeplab 123", "Example.Deep.12345"] {
            assert!(is_made_of(made, &texts), "{made}");
        }
        for other in ["lantern quay seven drizzle", "berth lantern quay", "deeplab-k7rmw2xq"] {
            assert!(!is_made_of(other, &texts), "{other}");
        }
        // Numbers and short words are no words of the portal.
        assert!(!is_made_of("127001127001127", &["127.0.0.1", "a b c"]));
    }
}
