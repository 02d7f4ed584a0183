//! Conversion of a command line to a program with arguments and back.
//!
//! Quotes and backslashes work as in a shell. Variables, globs and pipes stay plain text, because no shell
//! runs.

/// A syntax error of a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitError {
    /// A quote without its end.
    OpenQuote,
    /// A backslash at the end of the line.
    OpenEscape,
}

impl SplitError {
    /// Returns the error as a sentence.
    pub const fn text(self) -> &'static str {
        match self {
            Self::OpenQuote => "A quotation mark is not closed.",
            Self::OpenEscape => {
                "The line ends with an incomplete escape: add a character after the backslash."
            }
        }
    }
}

/// Splits a line into words.
///
/// # Errors
/// An open quote or escape.
pub fn split(line: &str) -> Result<Vec<String>, SplitError> {
    let mut words = Vec::new();
    // `None` between words: an empty pair of quotes is a word, white space is not.
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        None => return Err(SplitError::OpenQuote),
                        Some('\'') => break,
                        Some(c) => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        None => return Err(SplitError::OpenQuote),
                        Some('"') => break,
                        Some('\\') => match rest.next() {
                            None => return Err(SplitError::OpenQuote),
                            Some('\n') => {}
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some(c) => {
                                word.push('\\');
                                word.push(c);
                            }
                        },
                        Some(c) => word.push(c),
                    }
                }
            }
            '\\' => match rest.next() {
                None => return Err(SplitError::OpenEscape),
                // A backslash at the end of a line joins the next line.
                Some('\n') => {}
                Some(c) => word.get_or_insert_default().push(c),
            },
            c if c.is_whitespace() => words.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    Ok(words)
}

/// Quotes a word for a shell and for [`split`].
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Joins words to one line.
pub fn join(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        split(line).unwrap()
    }

    #[test]
    fn words_are_split_as_by_a_shell() {
        assert_eq!(words("python3 train.py  --epochs 4"), ["python3", "train.py", "--epochs", "4"]);
        assert_eq!(words("  \n "), Vec::<String>::new());
        assert_eq!(words(r#"sh -c 'echo "hi there"'"#), ["sh", "-c", r#"echo "hi there""#]);
        assert_eq!(words(r#"a"b c"'d e'f"#), ["ab cd ef"]);
        assert_eq!(words(r"a\ b \\ \'"), ["a b", r"\", "'"]);
        assert_eq!(words(r#""\$HOME \n" ''"#), [r"$HOME \n", ""]);
        assert_eq!(words("one \\\ntwo"), ["one", "two"]);
        assert_eq!(words("echo $HOME | wc *"), ["echo", "$HOME", "|", "wc", "*"]);
    }

    #[test]
    fn open_quotes_and_escapes_are_refused() {
        assert_eq!(split("echo 'a"), Err(SplitError::OpenQuote));
        assert_eq!(split(r#"echo "a\"#), Err(SplitError::OpenQuote));
        assert_eq!(split(r"echo a\"), Err(SplitError::OpenEscape));
    }

    #[test]
    fn joined_words_split_into_the_same_words() {
        let cases: [&[&str]; 4] = [
            &["nvidia-smi", "-L"],
            &["", "it's"],
            &["a b", "\"", "\\"],
            &["$x", "é\n", "!!", "'", "🚢 `id`"],
        ];
        for case in cases {
            let case: Vec<String> = case.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(split(&join(&case)).unwrap(), case);
        }
        assert_eq!(join(&["nvidia-smi".to_owned(), "-L".to_owned()]), "nvidia-smi -L");
    }
}
