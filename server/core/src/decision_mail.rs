//! The mail about the decision of an operator on a request for limits or credit.

use berth_types::money::money_text;
use berth_types::quotas::{Limits, QuotaRequest, QuotaRequestState};

/// A requested or granted value.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Value {
    label: String,
    number: i64,
    unit: Unit,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    /// Micro-units of the currency.
    Money,
    /// Thousandths.
    Milli,
    Whole,
}

impl Value {
    /// The value on a line of its own.
    fn line(&self, currency: &str) -> String {
        let text = match self.unit {
            Unit::Money => money_text(self.number, currency),
            Unit::Milli => {
                let digits = format!("{}.{:03}", self.number / 1_000, self.number % 1_000);
                digits.trim_end_matches('0').trim_end_matches('.').to_owned()
            }
            Unit::Whole => self.number.to_string(),
        };
        format!("- {}: {text}\n", self.label)
    }
}

/// The present values, with the labels of the pages.
fn values(credit_micros: Option<i64>, limits: &Limits) -> Vec<Value> {
    let named = [
        ("Credit", credit_micros, Unit::Money),
        ("Boards at once", limits.boards_milli, Unit::Milli),
        ("Running jobs", limits.running_jobs, Unit::Whole),
        ("Cost per hour", limits.spend_per_hour_micros, Unit::Money),
        ("Queued jobs", limits.queued_jobs, Unit::Whole),
        ("Board-hours per month", limits.board_hours_per_month, Unit::Whole),
        ("Reserved boards", limits.reserved_boards_milli, Unit::Milli),
        ("Guaranteed capacity", limits.guaranteed_boards_milli, Unit::Milli),
        ("Fair-share weight", limits.weight_milli, Unit::Milli),
    ];
    let named = named
        .into_iter()
        .filter_map(|(label, number, unit)| Some(Value { label: label.to_owned(), number: number?, unit }));
    let devices = limits.devices.iter().map(|(slug, most)| Value {
        label: format!("Devices of {slug}"),
        number: *most,
        unit: Unit::Whole,
    });
    named.chain(devices).collect()
}

fn requested(request: &QuotaRequest) -> Vec<Value> {
    values(request.credit_micros, &request.limits)
}

/// The granted values; none of a declined request.
fn granted(request: &QuotaRequest) -> Vec<Value> {
    request.granted_limits.as_ref().map_or_else(Vec::new, |limits| values(request.granted_micros, limits))
}

/// True if each granted value is at most the requested one.
fn is_part(granted: &[Value], requested: &[Value]) -> bool {
    let within = |value: &Value| {
        requested.iter().any(|other| other.label == value.label && value.number <= other.number)
    };
    granted.iter().all(within)
}

/// The subject of the mail about a decided request.
pub fn decision_subject(request: &QuotaRequest) -> &'static str {
    let (requested, granted) = (requested(request), granted(request));
    if request.state != QuotaRequestState::Granted {
        "Your request was declined"
    } else if granted == requested {
        "Your request was granted"
    } else if is_part(&granted, &requested) {
        "Your request was granted in part"
    } else {
        "Your request was granted with other values"
    }
}

/// The values on lines of their own.
fn lines(values: &[Value], currency: &str) -> String {
    if values.is_empty() {
        return "- none\n".to_owned();
    }
    values.iter().map(|value| value.line(currency)).collect()
}

/// The text of the mail about a decided request. The text does not quote the name of the organization, which a member
/// chose. `page` is the address of the page with the request.
pub fn decision_text(request: &QuotaRequest, currency: &str, page: &str) -> String {
    let granted = if request.state == QuotaRequestState::Granted {
        format!("\nGranted:\n{}", lines(&granted(request), currency))
    } else {
        String::new()
    };
    let note = request.note.trim();
    let note = if note.is_empty() { String::new() } else { format!("\nThe operator's answer:\n\n{note}\n") };
    format!(
        "{subject}.\n\n\
         Requested at {at}:\n{requested}\
         {granted}{note}\n\
         This page has the request:\n\n\
         {page}",
        subject = decision_subject(request),
        at = request.created_at.minute(),
        requested = lines(&requested(request), currency),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decided request for 3.00 of credit and 50 running jobs.
    fn decided(state: &str, limits: &str, micros: &str) -> serde_json::Result<QuotaRequest> {
        let id = "00000000000000000000000000";
        let request = format!(
            r#"{{"id":"qreq_{id}","org":"org_{id}","org_name":"Lab","limits":{{"running_jobs":50}},
            "credit_micros":3000000,"reason":"a deadline","state":"{state}","created_at":"2026-11-28T12:00:00Z",
            "created_by":"Ada","granted_limits":{limits},"granted_micros":{micros},"note":" Half for now. "}}"#
        );
        serde_json::from_str(&request)
    }

    #[test]
    fn the_subject_has_the_decision() {
        let subject = |state: &str, limits: &str, micros: &str| {
            decision_subject(&decided(state, limits, micros).unwrap())
        };
        assert_eq!(subject("declined", "null", "null"), "Your request was declined");
        assert_eq!(subject("granted", r#"{"running_jobs":50}"#, "3000000"), "Your request was granted");
        for (limits, micros) in
            [(r#"{"running_jobs":7}"#, "3000000"), (r#"{"running_jobs":50}"#, "1"), ("{}", "1")]
        {
            assert_eq!(subject("granted", limits, micros), "Your request was granted in part", "{limits}");
        }
        for (limits, micros) in [(r#"{"running_jobs":51}"#, "1"), (r#"{"queued_jobs":1}"#, "3000000")] {
            assert_eq!(subject("granted", limits, micros), "Your request was granted with other values");
        }
    }

    #[test]
    fn the_text_has_the_values_the_answer_and_the_page() {
        let limits = r#"{"boards_milli":1250,"devices":{"a30-24gb":2}}"#;
        let text = decision_text(
            &decided("granted", limits, "1500000").unwrap(),
            "USD",
            "https://b.example/orgs/lab/limits",
        );
        let wanted = "Your request was granted with other values.\n\n\
                      Requested at 2026-11-28 12:00 UTC:\n- Credit: $3.00\n- Running jobs: 50\n\n\
                      Granted:\n- Credit: $1.50\n- Boards at once: 1.25\n- Devices of a30-24gb: 2\n\n\
                      The operator's answer:\n\nHalf for now.\n\n\
                      This page has the request:\n\nhttps://b.example/orgs/lab/limits";
        assert_eq!(text, wanted);
        let declined = QuotaRequest { note: String::new(), ..decided("declined", "null", "null").unwrap() };
        let text = decision_text(&declined, "USD", "https://b.example");
        assert!(!text.contains("Granted:") && !text.contains("answer"), "{text}");
    }
}
