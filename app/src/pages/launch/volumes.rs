//! The volumes that a job asks for, as lines of text.
//!
//! Must not decide what the portal accepts: only what asks for nothing at all is refused here.

use berth_types::problems::FieldError;
use berth_types::volumes::{VolumeMode, VolumeUse};
use leptos::prelude::*;

use super::form::TextBlock;

/// What lines such as `/data=training-set` and `runs=results rw` ask for; lines without anything in them do
/// not count.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<VolumeUse> {
    let mut out = Vec::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let asked = line.split_once('=').and_then(|(path, rest)| {
            let mut words = rest.split_whitespace();
            let name = words.next()?.to_owned();
            let mode = match (words.next(), words.next()) {
                (None, _) | (Some("ro"), None) => VolumeMode::Ro,
                (Some("rw"), None) => VolumeMode::Rw,
                _ => return None,
            };
            Some(VolumeUse { name, path: path.trim().to_owned(), mode })
        });
        match asked {
            Some(asked) => out.push(asked),
            None => {
                let detail =
                    format!("Line {number} says nothing such as /data=training-set or runs=results rw.");
                errors.push(FieldError::new("/volumes", detail));
            }
        }
    }
    out
}

/// The text with a volume on each line.
#[component]
pub fn VolumeLines(
    /// The text.
    value: RwSignal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Volumes"
            name="volumes"
            value=value
            rows=2
            hint="Place and name, one on each line: /data=training-set to read, runs=results rw to write too."
            error=error
        />
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_volume() {
        let mut errors = Vec::new();
        let asked = parse("\n /data = set-1\nruns=out rw\r\nx=y ro\nnone\na=b no\nc=\n", &mut errors);
        let told: Vec<(&str, &str, VolumeMode)> =
            asked.iter().map(|v| (v.path.as_str(), v.name.as_str(), v.mode)).collect();
        assert_eq!(
            told,
            [("/data", "set-1", VolumeMode::Ro), ("runs", "out", VolumeMode::Rw), ("x", "y", VolumeMode::Ro)]
        );
        assert_eq!(errors.len(), 3);
        assert!(errors.iter().all(|error| error.pointer == "/volumes"));
    }
}
