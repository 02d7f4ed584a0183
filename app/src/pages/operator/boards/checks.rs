//! The checks of a node's host: problems and warnings with their next steps, and all other checks on request.

use berth_types::diagnosis::{Finding, FindingState, NodeDiagnosis};
use leptos::prelude::*;

use super::super::super::text::counted;
use crate::ui::When;

/// Returns the word and the class of the banner of a finding; `None` for a check without a fault.
const fn tone(state: FindingState) -> Option<(&'static str, &'static str)> {
    match state {
        FindingState::Ok => None,
        FindingState::Problem => Some(("Problem", "banner banner--error")),
        FindingState::Warning => Some(("Warning", "banner banner--warn")),
        FindingState::Unknown => Some(("Unknown", "banner")),
    }
}

/// The place of a state among the banners.
const fn rank(state: FindingState) -> u8 {
    match state {
        FindingState::Problem => 0,
        FindingState::Warning => 1,
        FindingState::Unknown => 2,
        FindingState::Ok => 3,
    }
}

/// Returns the numbers of findings: `24 checks: 1 problem, 2 warnings.`
fn summary(findings: &[Finding]) -> String {
    let number = |state: FindingState| findings.iter().filter(|finding| finding.state == state).count();
    let part = |count: usize, one: &str, many: &str| (count > 0).then(|| counted(count, one, many));
    let parts = [
        part(number(FindingState::Problem), "problem", "problems"),
        part(number(FindingState::Warning), "warning", "warnings"),
        part(number(FindingState::Unknown), "check without an answer", "checks without an answer"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let checks = counted(findings.len(), "check", "checks");
    if parts.is_empty() { format!("{checks}: no fault.") } else { format!("{checks}: {}.", parts.join(", ")) }
}

fn fault(finding: &Finding) -> Option<AnyView> {
    let (word, class) = tone(finding.state)?;
    let Finding { code, found, next, .. } = finding.clone();
    let next = next.map(|next| view! { <p><strong>"Next step: "</strong>{next}</p> });
    let banner = view! {
        <div class=class>
            <div class="banner__text banner__text--foreign">
                <strong class="banner__title">{word} ": " {code}</strong>
                <p>{found}</p>
                {next}
            </div>
        </div>
    };
    Some(banner.into_any())
}

/// Returns the checks without a fault, collapsed.
fn good_checks(findings: &[Finding]) -> Option<AnyView> {
    let good: Vec<Finding> =
        findings.iter().filter(|finding| finding.state == FindingState::Ok).cloned().collect();
    if good.is_empty() {
        return None;
    }
    let label = format!("{} without a fault", counted(good.len(), "check", "checks"));
    let row = |Finding { code, found, .. }: Finding| {
        view! { <dt class="break">{code}</dt><dd>{found}</dd> }.into_any()
    };
    let rows: Vec<AnyView> = good.into_iter().map(row).collect();
    let details = view! {
        <details class="more">
            <summary>{label}</summary>
            <dl class="kv">{rows}</dl>
        </details>
    };
    Some(details.into_any())
}

/// The checks of a node's host by its worker.
#[component]
pub fn HostChecks(
    /// The latest checks.
    diagnosis: NodeDiagnosis,
) -> impl IntoView {
    let NodeDiagnosis { reported_at, mut findings } = diagnosis;
    findings.sort_by_key(|finding| rank(finding.state));
    let text = match reported_at {
        Some(_) => summary(&findings),
        None => {
            "The worker has not reported the checks of its host since the start of the portal. On the host, berth-worker doctor shows them."
                .to_owned()
        }
    };
    let reported =
        reported_at.map(|at| view! { <span class="card__aside small">"Reported " <When at=at/></span> });
    let faults: Vec<AnyView> = findings.iter().filter_map(fault).collect();
    let good = good_checks(&findings);
    // Root on the host decides about these texts, so a command in them is no word of the portal.
    let source = (!faults.is_empty()).then(|| {
        view! { <p class="quiet">"The worker wrote these texts and commands. Run them on its host only."</p> }
    });
    view! {
        <section class="card" aria-labelledby="host-checks">
            <div class="card__head">
                <h2 class="card__title" id="host-checks">"Host checks"</h2>
                {reported}
            </div>
            <p>{text}</p>
            {source}
            {faults}
            {good}
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(state: FindingState) -> Finding {
        Finding { code: "driver.nodes".to_owned(), state, found: "Found.".to_owned(), next: None }
    }

    #[test]
    fn the_summary_has_the_number_of_each_fault() {
        let all = [FindingState::Ok, FindingState::Problem, FindingState::Warning, FindingState::Warning];
        let findings: Vec<Finding> = all.into_iter().map(finding).collect();
        assert_eq!(summary(&findings), "4 checks: 1 problem, 2 warnings.");
        assert_eq!(summary(&[finding(FindingState::Ok)]), "1 check: no fault.");
        assert_eq!(summary(&[finding(FindingState::Unknown)]), "1 check: 1 check without an answer.");
    }

    #[test]
    fn problems_come_before_all_others() {
        let mut all = [FindingState::Ok, FindingState::Unknown, FindingState::Warning, FindingState::Problem];
        all.sort_by_key(|state| rank(*state));
        assert_eq!(
            all.map(|state| tone(state).map(|(word, _)| word)),
            [Some("Problem"), Some("Warning"), Some("Unknown"), None]
        );
    }
}
