//! Lists and names from outside with a limit each, checked while they are read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Bytes of a name.
pub const MAX_NAME_BYTES: usize = 255;

/// A name of a service, model, host or prefix: 1 to 255 bytes without white space and control characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Name(String);

/// The reason why a text is no [`Name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a name has 1 to 255 bytes without white space and control characters")]
pub struct NameError;

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for Name {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        let bad = text.is_empty()
            || text.len() > MAX_NAME_BYTES
            || text.chars().any(|c| c.is_control() || c.is_whitespace());
        if bad { Err(NameError) } else { Ok(Self(text)) }
    }
}

impl From<Name> for String {
    fn from(name: Name) -> Self {
        name.0
    }
}

struct ListVisitor<T, const MAX: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for ListVisitor<T, MAX> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {MAX} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Vec<T>, A::Error> {
        let mut out = Vec::new();
        while let Some(item) = items.next_element()? {
            if out.len() >= MAX {
                return Err(A::Error::custom(format_args!("a list has more than {MAX} items")));
            }
            out.push(item);
        }
        Ok(out)
    }
}

/// Reads a list of at most `MAX` items. The number in front of a list reserves no memory.
pub fn list<'de, D, T, const MAX: usize>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    deserializer.deserialize_seq(ListVisitor::<T, MAX>(PhantomData))
}
