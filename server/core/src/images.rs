//! What an image may be called: the names that registries use, and nothing that a program could take for a
//! file, an address or an option.

/// Characters of a whole name.
const MOST: usize = 400;
/// Where names without a registry are looked for.
const USUAL: &str = "docker.io";

/// The name of an image in its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    path: String,
    tag: Option<String>,
    /// `sha256:` and 64 digits.
    digest: Option<String>,
}

/// `name` in pieces of `kind`, parted by single dots, one or two underscores, or hyphens.
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
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if text.len() > MOST || !text.is_ascii() || text.contains(char::is_whitespace) {
            return Err(
                "An image has a name of at most 400 plain characters, such as docker.io/library/alpine:3.20.",
            );
        }
        if text.contains("://") {
            return Err("Give the image by its registry and name, without a scheme before it.");
        }
        let (name, digest) = text.split_once('@').map_or((text, None), |(name, digest)| (name, Some(digest)));
        let hex = |d: &str| d.len() == 64 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digest.is_some_and(|d| !d.strip_prefix("sha256:").is_some_and(hex)) {
            return Err("A digest is sha256: and 64 digits from 0 to f.");
        }
        let (registry, rest) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (USUAL, name),
        };
        let (host, port) = registry.split_once(':').map_or((registry, None), |(h, p)| (h, Some(p)));
        if !is_host(host) || port.is_some_and(|p| !p.parse::<u16>().is_ok_and(|n| n > 0)) {
            return Err("The registry is a host name, with a port if it needs one.");
        }
        let (path, tag) = rest.split_once(':').map_or((rest, None), |(path, tag)| (path, Some(tag)));
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err("A tag has up to 128 letters, digits, dots, hyphens and underscores.");
        }
        if path.is_empty() || !path.split('/').all(is_component) {
            return Err("The name of an image has small letters and digits, parted by . _ - or /.");
        }
        let path = if registry == USUAL && !path.contains('/') {
            format!("library/{path}")
        } else {
            path.to_owned()
        };
        let owned = |part: &str| part.to_owned();
        Ok(Self { registry: owned(registry), path, tag: tag.map(owned), digest: digest.map(owned) })
    }

    /// Host, and port where it has one.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// It is the operator's own and on the node already; no registry has it.
    pub fn is_local(&self) -> bool {
        self.registry == "localhost"
    }

    /// In full, as a worker is told it: what has a digest needs no tag, what has neither means `latest`.
    pub fn in_full(&self) -> String {
        let Self { registry, path, tag, digest } = self;
        match (digest, tag) {
            (Some(digest), _) => format!("{registry}/{path}@{digest}"),
            (None, tag) => format!("{registry}/{path}:{}", tag.as_deref().unwrap_or("latest")),
        }
    }
}

/// A text as the user and password that a registry asks for; `None` when it can be no such thing.
pub fn credentials(text: &str) -> Option<(&str, &str)> {
    // What ends the line was written by whoever made the text, not chosen for the password.
    let (user, password) = text.trim_end_matches(['\r', '\n']).split_once(':')?;
    let plain = |part: &str| !part.is_empty() && !part.contains(char::is_control);
    (plain(user) && plain(password)).then_some((user, password))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_are_told_in_full() {
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
            assert_eq!(Reference::parse(text).map(|r| r.in_full()), Ok(full), "{text}");
        }
    }

    #[test]
    fn a_registry_is_told_from_the_nodes_own_images() {
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
        assert_eq!(credentials("ada:pw:1 x\n"), Some(("ada", "pw:1 x")));
        for bad in ["", "ada", "ada:", ":password", "ada:pw\nnext", "a\0da:pw", "ada:\n"] {
            assert_eq!(credentials(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn whatever_else_is_refused() {
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
        fn what_is_told_in_full_means_itself(text in "[a-z0-9A-Z./:@_-]{0,40}") {
            if let Ok(found) = Reference::parse(&text) {
                let full = found.in_full();
                prop_assert!(full.starts_with(|c: char| c.is_ascii_alphanumeric()) && !full.contains("//"));
                prop_assert_eq!(Reference::parse(&full).map(|r| r.in_full()), Ok(full));
            }
        }
    }
}
