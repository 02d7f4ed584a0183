//! Volumes of a job, one per line.
//!
//! Checks only the format of lines.

use berth_types::problems::FieldError;
use berth_types::volumes::{VolumeMode, VolumeUse};
use leptos::prelude::*;

use super::form::TextBlock;

/// Parses lines such as `/data=training-set` and `runs=results rw`, without empty lines.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<VolumeUse> {
    let mut out = Vec::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let volume = line.split_once('=').and_then(|(path, rest)| {
            let mut parts = rest.split_whitespace();
            let name = parts.next()?.to_owned();
            let mode = match (parts.next(), parts.next()) {
                (None, _) | (Some("ro"), None) => VolumeMode::Ro,
                (Some("rw"), None) => VolumeMode::Rw,
                _ => return None,
            };
            Some(VolumeUse { name, path: path.trim().to_owned(), mode })
        });
        match volume {
            Some(volume) => out.push(volume),
            None => {
                let detail = format!(
                    "Line {number}: expected path=volume, such as /data=training-set or runs=results rw."
                );
                errors.push(FieldError::new("/volumes", detail));
            }
        }
    }
    out
}

/// The field with one volume per line.
#[component]
pub fn VolumeLines(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Volumes"
            name="volumes"
            value=value
            rows=2
            hint="Path and volume, one per line: /data=training-set for read-only, runs=results rw for read-write."
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
        let volumes = parse("\n /data = set-1\nruns=out rw\r\nx=y ro\nnone\na=b no\nc=\n", &mut errors);
        let parsed: Vec<(&str, &str, VolumeMode)> =
            volumes.iter().map(|v| (v.path.as_str(), v.name.as_str(), v.mode)).collect();
        assert_eq!(
            parsed,
            [("/data", "set-1", VolumeMode::Ro), ("runs", "out", VolumeMode::Rw), ("x", "y", VolumeMode::Ro)]
        );
        assert_eq!(errors.len(), 3);
        assert!(errors.iter().all(|error| error.pointer == "/volumes"));
    }
}
