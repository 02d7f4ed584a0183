//! Secrets of a job, one per line.
//!
//! Checks only the format of lines.

use berth_types::problems::FieldError;
use berth_types::secrets::SecretUse;
use leptos::prelude::*;

use super::form::TextBlock;

/// The directory of secrets as files; other names are environment variables.
const SECRET_DIR: &str = "/run/secrets/";

/// Parses lines such as `HF_TOKEN=hf-token` and `/run/secrets/key.pem=deploy-key`, without empty lines.
pub fn parse(text: &str, errors: &mut Vec<FieldError>) -> Vec<SecretUse> {
    let mut out = Vec::new();
    for (number, line) in (1_u32..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let Some((place, name)) = line.split_once('=').map(|(place, name)| (place.trim(), name.trim()))
        else {
            let detail = format!("Line {number}: expected NAME=secret, such as HF_TOKEN=hf-token.");
            errors.push(FieldError::new("/secrets", detail));
            continue;
        };
        let file = place.strip_prefix(SECRET_DIR).map(str::to_owned);
        let env = file.is_none().then(|| place.to_owned());
        out.push(SecretUse { name: name.to_owned(), env, file });
    }
    out
}

/// The field with one secret per line.
#[component]
pub fn SecretLines(
    /// The input.
    value: RwSignal<String>,
    /// The error below the field.
    error: Signal<Option<String>>,
) -> impl IntoView {
    view! {
        <TextBlock
            label="Secrets"
            name="secrets"
            value=value
            rows=2
            hint="One per line: HF_TOKEN=hf-token for an environment variable, /run/secrets/key.pem=deploy-key for a file."
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
        let secrets =
            parse("\n HF_TOKEN = hf-token\r\n/run/secrets/key.pem=deploy-key\nnothing\n", &mut errors);
        let wanted = |name: &str, env: Option<&str>, file: Option<&str>| SecretUse {
            name: name.to_owned(),
            env: env.map(str::to_owned),
            file: file.map(str::to_owned),
        };
        assert_eq!(
            secrets,
            [wanted("hf-token", Some("HF_TOKEN"), None), wanted("deploy-key", None, Some("key.pem"))]
        );
        let details: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
        assert_eq!(details, ["Line 4: expected NAME=secret, such as HF_TOKEN=hf-token."]);
    }
}
