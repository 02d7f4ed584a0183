//! The secrets that a job asks for, as lines of text.
//!
//! Must not decide what the portal accepts: only what asks for nothing at all is refused here.

use berth_types::problems::FieldError;
use berth_types::secrets::SecretUse;
use leptos::prelude::*;

use super::form::TextBlock;

/// Begins a line that asks for a file, not for a variable.
const FILES: &str = "/run/secrets/";

/// What lines such as `HF_TOKEN=hf-token` and `/run/secrets/key.pem=deploy-key` ask for; lines without
/// anything in them do not count.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<SecretUse> {
    let mut out = Vec::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let Some((place, name)) = line.split_once('=').map(|(place, name)| (place.trim(), name.trim()))
        else {
            let detail = format!("Line {number} says nothing such as HF_TOKEN=hf-token.");
            errors.push(FieldError::new("/secrets", detail));
            continue;
        };
        let file = place.strip_prefix(FILES).map(str::to_owned);
        let env = file.is_none().then(|| place.to_owned());
        out.push(SecretUse { name: name.to_owned(), env, file });
    }
    out
}

/// The text with a secret on each line.
#[component]
pub fn SecretLines(
    /// The text.
    value: RwSignal<String>,
    /// What is wrong with it.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Secrets"
            name="secrets"
            value=value
            rows=2
            hint="By name, one on each line: HF_TOKEN=hf-token for a variable, /run/secrets/key.pem=deploy-key for a file."
            error=error
        />
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_variable_or_a_file() {
        let mut errors = Vec::new();
        let asked =
            parse("\n HF_TOKEN = hf-token\r\n/run/secrets/key.pem=deploy-key\nnothing\n", &mut errors);
        let wanted = |name: &str, env: Option<&str>, file: Option<&str>| SecretUse {
            name: name.to_owned(),
            env: env.map(str::to_owned),
            file: file.map(str::to_owned),
        };
        assert_eq!(
            asked,
            [wanted("hf-token", Some("HF_TOKEN"), None), wanted("deploy-key", None, Some("key.pem"))]
        );
        let told: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        assert_eq!(told, ["Line 4 says nothing such as HF_TOKEN=hf-token."]);
    }
}
