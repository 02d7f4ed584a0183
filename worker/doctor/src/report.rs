//! Findings as text for people.

use std::fmt::Write;

use super::finding::{Finding, FindingState};

/// The code of a terminal for the colour of a state; empty without a colour.
const fn colour(state: FindingState) -> &'static str {
    match state {
        FindingState::Problem => "\u{1b}[31m",
        FindingState::Warning => "\u{1b}[33m",
        FindingState::Unknown | FindingState::Ok => "",
    }
}

fn count(findings: &[Finding], state: FindingState) -> usize {
    findings.iter().filter(|finding| finding.state == state).count()
}

/// One aligned line for each finding, problems first, with the next command in an indented line. The last line has
/// the numbers. With `coloured` the states have colours for a terminal.
#[must_use]
pub fn report_text(findings: &[Finding], coloured: bool) -> String {
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| finding.state);
    let width = sorted.iter().map(|finding| finding.code.len()).max().unwrap_or(0);
    let mut text = String::new();
    for Finding { code, state, found, next } in sorted {
        let (begin, end) = match colour(*state) {
            begin if coloured && !begin.is_empty() => (begin, "\u{1b}[0m"),
            _ => ("", ""),
        };
        let name = state.name();
        // A write into a text does not fail.
        let _ = writeln!(text, "{begin}{name:<7}{end}  {code:<width$}  {found}");
        if let Some(next) = next {
            let _ = writeln!(text, "{:indent$}{next}", "", indent = width + 11);
        }
    }
    let number = |state: FindingState| count(findings, state);
    let _ = writeln!(
        text,
        "{} checks: {} with a problem, {} with a warning, {} without an answer.",
        findings.len(),
        number(FindingState::Problem),
        number(FindingState::Warning),
        number(FindingState::Unknown)
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_come_first_and_commands_are_indented() {
        let findings = [
            Finding::ok("kernel.clock", "The clock is synchronized."),
            Finding::problem("driver.nouveau", "nouveau is loaded.", "rmmod nouveau"),
        ];
        let expected = [
            "problem  driver.nouveau  nouveau is loaded.".to_owned(),
            format!("{}rmmod nouveau", " ".repeat(25)),
            "ok       kernel.clock    The clock is synchronized.".to_owned(),
            "2 checks: 1 with a problem, 0 with a warning, 0 without an answer.".to_owned(),
        ];
        let text = report_text(&findings, false);
        assert_eq!(text.lines().collect::<Vec<&str>>(), expected);
        assert!(report_text(&findings, true).starts_with("\u{1b}[31mproblem\u{1b}[0m  driver"));
    }
}
