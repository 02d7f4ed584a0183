//! Splits a command line into a program and its arguments, and writes it back.
//!
//! Quotes and backslashes work as in a shell. Nothing is expanded: a variable, a glob or a pipe
//! stays the text it is, because no shell will see it.

/// Why a line cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsplit {
    /// A quote is opened and never closed.
    OpenQuote,
    /// The line ends with a backslash.
    OpenEscape,
}

impl Unsplit {
    /// What to tell the person who wrote the line.
    pub const fn text(self) -> &'static str {
        match self {
            Self::OpenQuote => "A quote is opened and never closed.",
            Self::OpenEscape => "The line ends with a backslash, which waits for one more character.",
        }
    }
}

/// The words of a line.
pub fn split(line: &str) -> Result<Vec<String>, Unsplit> {
    let mut words = Vec::new();
    // `None` between words: an empty pair of quotes is a word, white space alone is not.
    let mut word: Option<String> = None;
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        None => return Err(Unsplit::OpenQuote),
                        Some('\'') => break,
                        Some(c) => word.push(c),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next() {
                        None => return Err(Unsplit::OpenQuote),
                        Some('"') => break,
                        Some('\\') => match rest.next() {
                            None => return Err(Unsplit::OpenQuote),
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
                None => return Err(Unsplit::OpenEscape),
                // A backslash at the end of a line joins it with the next one.
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

/// One word so that a shell, and [`split`], read it back as it is.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The words as one line.
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
    fn words_are_what_a_shell_would_make_of_them() {
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
    fn what_is_not_closed_is_refused() {
        assert_eq!(split("echo 'a"), Err(Unsplit::OpenQuote));
        assert_eq!(split(r#"echo "a\"#), Err(Unsplit::OpenQuote));
        assert_eq!(split(r"echo a\"), Err(Unsplit::OpenEscape));
    }

    #[test]
    fn joined_words_split_into_the_same_words() {
        let cases: [&[&str]; 4] =
            [&["nvidia-smi", "-L"], &["", "it's"], &["a b", "\"", "\\"], &["$x", "é\n"]];
        for case in cases {
            let case: Vec<String> = case.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(split(&join(&case)).unwrap(), case);
        }
        assert_eq!(join(&["nvidia-smi".to_owned(), "-L".to_owned()]), "nvidia-smi -L");
    }
}
