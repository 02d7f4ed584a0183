//! Input of a model file in a volume, and the server that it starts. Pure.

use super::super::shell_words::quote;

/// The directory of the volume with a model.
pub const MODEL_DIR: &str = "/models";
/// The longest name of a service.
const MAX_NAME: usize = 40;

/// A model file in a volume.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ModelDraft {
    /// The name of the volume.
    pub volume: String,
    /// The path of the file in the volume.
    pub path: String,
    /// The name of the model in requests; empty for that of the file.
    pub name: String,
    /// The most tokens of a prompt and its completion together.
    pub context: String,
}

impl ModelDraft {
    /// Returns the name of the file without its directories and its extension.
    fn stem(&self) -> &str {
        let path = self.path.trim();
        let file = path.rsplit('/').next().unwrap_or(path);
        file.rsplit_once('.').map_or(file, |(stem, _)| stem)
    }

    /// Returns the name of the model in requests. Without input it is that of the file.
    pub fn model_name(&self) -> String {
        let name = self.name.trim();
        if !name.is_empty() {
            return name.to_owned();
        }
        self.stem().chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect()
    }

    /// Returns a name for the service from the name of the file; empty without a letter in it.
    pub fn service_name(&self) -> String {
        let lower = self.stem().to_ascii_lowercase();
        let plain: String = lower.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let name: String =
            plain.trim_start_matches(|c: char| !c.is_ascii_lowercase()).chars().take(MAX_NAME).collect();
        name.trim_end_matches('-').to_owned()
    }

    /// Returns the script that starts the server.
    pub fn script(&self) -> String {
        let file = format!("{MODEL_DIR}/{}", self.path.trim().trim_start_matches('/'));
        let name = self.model_name();
        let name = if name.is_empty() { String::new() } else { format!(" --model_alias {}", quote(&name)) };
        let context = self.context.trim();
        let context = if context.is_empty() { String::new() } else { format!(" --n_ctx {}", quote(context)) };
        format!(
            "exec python3 -m llama_cpp.server --model {}{name}{context} --n_gpu_layers -1 --host 127.0.0.1 --port \"$PORT\"\n",
            quote(&file)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_names_its_model_and_its_service() {
        for (path, model, service) in [
            ("qwen2.5-7b-q4.gguf", "qwen2.5-7b-q4", "qwen2-5-7b-q4"),
            (" /dir/Llama 3.gguf ", "Llama-3", "llama-3"),
            ("7b", "7b", "b"),
            ("a.b/9-.gguf", "9-", ""),
            ("", "", ""),
        ] {
            let draft = ModelDraft { path: path.to_owned(), ..ModelDraft::default() };
            assert_eq!(
                (draft.model_name().as_str(), draft.service_name().as_str()),
                (model, service),
                "{path}"
            );
        }
        let named =
            ModelDraft { name: " chat ".to_owned(), path: "q.gguf".to_owned(), ..ModelDraft::default() };
        assert_eq!((named.model_name().as_str(), named.service_name().as_str()), ("chat", "q"));
        let long = ModelDraft { path: "a".repeat(39) + "--b", ..ModelDraft::default() };
        assert_eq!(long.service_name(), "a".repeat(39), "40 characters without a hyphen at the end");
    }
}
