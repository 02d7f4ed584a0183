//! Names of container images. Accepts the names that registries use, and no text that a program could read as
//! a file, an address or an option.

/// Characters of a whole name.
const MAX_CHARS: usize = 400;
/// The registry of a name that has none.
const DEFAULT_REGISTRY: &str = "docker.io";

/// The name of an image, split into its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    /// `sha256:` and 64 digits.
    digest: Option<String>,
}

/// True if a text is one component of a path: lower-case letters and digits, separated by one dot, one or two
/// underscores, or hyphens.
fn is_component(part: &str) -> bool {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let parted = part.split(plain).all(|gap| {
        matches!(gap, "" | "." | "_" | "__") || (!gap.is_empty() && gap.chars().all(|c| c == '-'))
    });
    part.starts_with(plain) && part.ends_with(plain) && parted
}

fn is_host(host: &str) -> bool {
    let label = |l: &str| {
        !l.is_empty()
            && l.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    host.len() <= 253 && host.split('.').all(label)
}

fn is_tag(tag: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (1..=128).contains(&tag.len()) && tag.chars().all(good) && !tag.starts_with(['.', '-'])
}

impl Reference {
    /// Parses a name. The registry is `docker.io` and its path begins with `library/` if the text has
    /// neither.
    ///
    /// # Errors
    /// A sentence that says how the text differs from a name of an image.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_CHARS || !text.is_ascii() || text.contains(char::is_whitespace) {
            return Err(
                "Enter an image name of at most 400 plain characters, such as docker.io/library/alpine:3.20.",
            );
        }
        if text.contains("://") {
            return Err("Enter the registry and the name of the image without a scheme such as https://.");
        }
        let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
        let hex = |d: &str| d.len() == 64 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digest.is_some_and(|d| !d.strip_prefix("sha256:").is_some_and(hex)) {
            return Err("A digest is sha256: and 64 digits from 0 to f.");
        }
        let (registry, rest) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (DEFAULT_REGISTRY, name),
        };
        let (host, port) = registry.split_once(':').map_or((registry, None), |(h, p)| (h, Some(p)));
        if !is_host(host) || port.is_some_and(|p| !p.parse::<u16>().is_ok_and(|n| n > 0)) {
            return Err("A registry is a host name, with a port if necessary.");
        }
        let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err("A tag has up to 128 letters, digits, dots, hyphens and underscores.");
        }
        if path.is_empty() || !path.split('/').all(is_component) {
            return Err("The name of an image has lower-case letters and digits, separated by . _ - or /.");
        }
        let path = if registry == DEFAULT_REGISTRY && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let owned = |part: &str| part.to_owned();
        Ok(Self { registry: owned(registry), path, tag: tag.map(owned), digest: digest.map(owned) })
    }

    /// The registry: a host, with its port if it has one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// True for an image of the operator that is on the node already and in no registry.
    pub fn is_local(&self) -> bool {
        self.registry == "localhost"
    }

    /// The complete name, as it is sent to a worker. A name with a digest has no tag; a name with neither
    /// gets the tag `latest`.
    pub fn full_name(&self) -> String {
        let Self { registry, path, tag, digest } = self;
        match (digest, tag) {
            (Some(digest), _) => format!("{registry}/{path}@{digest}"),
            (None, tag) => format!("{registry}/{path}:{}", tag.as_deref().unwrap_or("latest")),
        }
    }
}

/// Splits `USER:PASSWORD` for a registry. `None` if the text does not have that form.
pub fn parse_credentials(text: &str) -> Option<(&str, &str)> {
    // Line ends at the end come from the tool that wrote the text and are not part of the password.
    let (user, password) = text.trim_end_matches(['\r', '\n']).split_once(':')?;
    let plain = |part: &str| !part.is_empty() && !part.contains(char::is_control);
    (plain(user) && plain(password)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_completed() {
        let digest = format!("sha256:{}", "0f".repeat(32));
        let tagged = format!("nvcr.io/nvidia/pytorch:24.05-py3@{digest}");
        for (text, full) in [
            ("docker.io/library/alpine:3.20", "docker.io/library/alpine:3.20".to_owned()),
            ("alpine", "docker.io/library/alpine:latest".to_owned()),
            ("pytorch/pytorch:2.4.0-cuda12.1", "docker.io/pytorch/pytorch:2.4.0-cuda12.1".to_owned()),
            ("ghcr.io/a/b/c__d", "ghcr.io/a/b/c__d:latest".to_owned()),
            ("r.example:5000/x:V_1", "r.example:5000/x:V_1".to_owned()),
            ("localhost/own:1", "localhost/own:1".to_owned()),
            (&tagged, format!("nvcr.io/nvidia/pytorch@{digest}")),
        ] {
            assert_eq!(Reference::parse(text).map(|r| r.full_name()), Ok(full), "{text}");
        }
    }

    #[test]
    fn a_registry_is_distinguished_from_the_nodes_own_images() {
        for (text, registry, local) in [
            ("alpine", "docker.io", false),
            ("r.example:5000/x:1", "r.example:5000", false),
            ("localhost/own:1", "localhost", true),
            ("localhost:5000/x", "localhost:5000", false),
        ] {
            let found = Reference::parse(text).unwrap();
            assert_eq!((found.registry(), found.is_local()), (registry, local), "{text}");
        }
    }

    #[test]
    fn credentials_are_a_user_and_a_password() {
        assert_eq!(parse_credentials("ada:pw:1 x\n"), Some(("ada", "pw:1 x")));
        for bad in ["", "ada", "ada:", ":password", "ada:pw\nnext", "a\0da:pw", "ada:\n"] {
            assert_eq!(parse_credentials(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn other_names_are_refused() {
        for bad in [
            "",
            "docker://alpine",
            "dir:/etc",
            "oci-archive:/root/x.tar",
            "Alpine",
            "alpine:",
            "alpine:a b",
            "alpine:-x",
            "-v",
            "--privileged",
            "/etc/passwd",
            "../x",
            "a//b",
            "a/./b",
            "a/../b",
            "a___b",
            "r.example:0/x",
            "r.example:70000/x",
            "-r.example/x",
            "r..example/x",
            "alpine@sha256:00",
            "alpine@md5:0",
            "alpine@",
            "al\npine",
            "alpïne",
            &"a".repeat(401),
        ] {
            assert!(Reference::parse(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn a_full_name_is_its_own_full_name(text in "[a-z0-9A-Z./:@_-]{0,40}") {
            if let Ok(found) = Reference::parse(&text) {
                let full = found.full_name();
                prop_assert!(full.starts_with(|c: char| c.is_ascii_alphanumeric()) && !full.contains("//"));
                prop_assert_eq!(Reference::parse(&full).map(|r| r.full_name()), Ok(full));
            }
        }
    }
}
