//! Which files a pattern means: `*` and `?` within a name, `**` for any directories, none included. Pure.

/// Whether a pattern means this path. Both are relative, with `/` between their parts.
pub fn matches(pattern: &str, path: &str) -> bool {
    let pattern: Vec<&str> = pattern.split('/').collect();
    let path: Vec<&str> = path.split('/').collect();
    wild(
        &pattern,
        &path,
        |part| *part == "**",
        |part, name| {
            let (part, name): (Vec<char>, Vec<char>) = (part.chars().collect(), name.chars().collect());
            wild(&part, &name, |c| *c == '*', |c, other| *c == '?' || c == other)
        },
    )
}

/// Matches a list with stretches of any length in it. Takes as many steps as the lists have pairs at most:
/// only the last stretch is ever made longer.
fn wild<T, U>(pattern: &[T], text: &[U], any: impl Fn(&T) -> bool, one: impl Fn(&T, &U) -> bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut stretch: Option<(usize, usize)> = None;
    while let Some(item) = text.get(t) {
        match pattern.get(p) {
            Some(part) if any(part) => {
                stretch = Some((p, t));
                p += 1;
            }
            Some(part) if one(part, item) => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((begin, taken)) = stretch else { return false };
                stretch = Some((begin, taken + 1));
                (p, t) = (begin + 1, taken + 1);
            }
        }
    }
    pattern.iter().skip(p).all(any)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn patterns_mean_what_people_expect() {
        for (pattern, path) in [
            ("out/**", "out/a"),
            ("out/**", "out/a/b/c.png"),
            ("**", "a/b"),
            ("**/*.png", "x.png"),
            ("**/*.png", "a/b/x.png"),
            ("a/**/z", "a/z"),
            ("a/**/b/**/z", "a/x/b/b/z"),
            ("model-?.pt", "model-7.pt"),
            ("*.t*t", "a.ttt"),
            ("plain", "plain"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("out/*", "out/a/b"),
            ("out", "out/a"),
            ("out/**", "outer/a"),
            ("*.png", "a/x.png"),
            ("model-?.pt", "model-77.pt"),
            ("a/**/z", "a/zz"),
            ("A", "a"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }

    proptest! {
        #[test]
        fn a_path_means_itself(path in "[a-z]{1,4}(/[a-z]{1,4}){0,4}") {
            prop_assert!(matches(&path, &path));
            prop_assert!(matches("**", &path));
        }

        #[test]
        fn whatever_is_asked_has_an_answer(pattern in "[a*?/]{0,40}", path in "[a/]{0,40}") {
            let _ = matches(&pattern, &path);
        }
    }
}
