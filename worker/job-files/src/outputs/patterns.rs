//! Patterns of files: `*` and `?` within a name, `**` for any number of directories, also none. Pure.

/// One part of a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
enum PatternPart {
    /// Any number of directories.
    Any,
    Name(Vec<char>),
}

/// Patterns of relative paths, with `/` between their parts.
#[derive(Debug, Clone)]
pub struct Patterns(Vec<Vec<PatternPart>>);

/// The positions in all patterns after the path of one directory, in the order of the patterns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatternState(Vec<(usize, usize)>);

impl Patterns {
    pub fn new(texts: &[String]) -> Self {
        let part = |text: &str| match text {
            "**" => PatternPart::Any,
            name => PatternPart::Name(name.chars().collect()),
        };
        Self(texts.iter().map(|text| text.split('/').map(part).collect()).collect())
    }

    fn part(&self, (pattern, place): (usize, usize)) -> Option<&PatternPart> {
        self.0.get(pattern).and_then(|parts| parts.get(place))
    }

    /// Adds a position, and the later positions that need no name.
    fn enter(&self, out: &mut Vec<(usize, usize)>, (pattern, mut place): (usize, usize)) {
        // The positions of one pattern are adjacent.
        let known = |out: &[(usize, usize)], place| {
            out.iter().rev().take_while(|(other, _)| *other == pattern).any(|(_, there)| *there == place)
        };
        while !known(out, place) {
            out.push((pattern, place));
            if self.part((pattern, place)) != Some(&PatternPart::Any) {
                return;
            }
            place += 1;
        }
    }

    /// The state in the directory where the patterns begin.
    pub fn root(&self) -> PatternState {
        let mut out = Vec::new();
        (0..self.0.len()).for_each(|pattern| self.enter(&mut out, (pattern, 0)));
        PatternState(out)
    }

    /// The state after one more name.
    pub fn step(&self, from: &PatternState, name: &str) -> PatternState {
        let name: Vec<char> = name.chars().collect();
        let mut out = Vec::new();
        for &(pattern, place) in &from.0 {
            match self.part((pattern, place)) {
                Some(PatternPart::Any) => self.enter(&mut out, (pattern, place)),
                Some(PatternPart::Name(part)) if matches_name(part, &name) => {
                    self.enter(&mut out, (pattern, place + 1))
                }
                _ => {}
            }
        }
        PatternState(out)
    }

    /// The cost of one more name; 1 with few positions.
    pub fn cost(state: &PatternState) -> usize {
        1 + state.0.len() / 16
    }

    /// True if a pattern matches the path.
    pub fn matches(&self, state: &PatternState) -> bool {
        state.0.iter().any(|place| self.part(*place).is_none())
    }

    /// True if a pattern may match a path below.
    pub fn may_match_below(&self, state: &PatternState) -> bool {
        state.0.iter().any(|place| self.part(*place).is_some())
    }
}

/// True if a pattern of one name matches a name. The steps are at most the product of both lengths: only the last `*`
/// is extended.
fn matches_name(pattern: &[char], name: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut stretch: Option<(usize, usize)> = None;
    while let Some(item) = name.get(t) {
        match pattern.get(p) {
            Some('*') => {
                stretch = Some((p, t));
                p += 1;
            }
            Some(part) if *part == '?' || part == item => {
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
    pattern.iter().skip(p).all(|part| *part == '*')
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The state of a pattern after a path.
    fn state_after(pattern: &str, path: &str) -> (Patterns, PatternState) {
        let patterns = Patterns::new(&[pattern.to_owned()]);
        let state = path.split('/').fold(patterns.root(), |state, name| patterns.step(&state, name));
        (patterns, state)
    }

    fn matches(pattern: &str, path: &str) -> bool {
        let (patterns, state) = state_after(pattern, path);
        patterns.matches(&state)
    }

    fn leads_on(pattern: &str, path: &str) -> bool {
        let (patterns, state) = state_after(pattern, path);
        patterns.may_match_below(&state)
    }

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

    #[test]
    fn directories_that_no_pattern_reaches_are_known() {
        for (pattern, dir) in
            [("out/**", "out"), ("out/*.log", "out"), ("*/a", "venv"), ("**/a", "x/y"), ("a/**/z", "a/b/c")]
        {
            assert!(leads_on(pattern, dir), "{pattern} {dir}");
        }
        for (pattern, dir) in [
            ("out/**", "venv"),
            ("out/*.log", "out/deep"),
            ("*.log", "venv"),
            ("a/b/c", "a/c"),
            ("a/**/z", "b"),
        ] {
            assert!(!leads_on(pattern, dir), "{pattern} {dir}");
        }
    }

    proptest! {
        #[test]
        fn a_path_means_itself(path in "[a-z]{1,4}(/[a-z]{1,4}){0,4}") {
            prop_assert!(matches(&path, &path));
            prop_assert!(matches("**", &path));
        }

        #[test]
        fn no_directory_above_a_file_that_is_meant_is_passed_over(
            pattern in "([ab*?]{1,2}|\\*\\*)(/([ab*?]{1,2}|\\*\\*)){0,3}", path in "[ab]{1,2}(/[ab]{1,2}){1,4}",
        ) {
            if matches(&pattern, &path) {
                for (end, _) in path.match_indices('/') {
                    prop_assert!(leads_on(&pattern, &path[..end]), "{} {}", pattern, &path[..end]);
                }
            }
        }

        #[test]
        fn whatever_is_asked_has_an_answer(pattern in "[a*?/]{0,40}", path in "[a/]{0,40}") {
            let _ = matches(&pattern, &path);
        }
    }
}
