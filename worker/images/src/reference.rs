//! Names of images. The portal has checked them; this check makes sure that a name is no file of this host and no
//! option of a program.

/// The full name of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageReference {
    text: String,
}

impl ImageReference {
    /// `registry/path`, with `:tag` or `@sha256:…` after it. `None`: another text.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let hex = |d: &str| d.len() == 64 && d.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digest.is_some_and(|d| !d.strip_prefix("sha256:").is_some_and(hex)) {
            return None;
        }
        let (registry, path) = name.split_once('/')?;
        let (host, port) = registry.split_once(':').map_or((registry, None), |(h, p)| (h, Some(p)));
        let numbered = port.is_none_or(|p| p.parse::<u16>().is_ok_and(|n| n > 0));
        let named = host == "localhost" || host.contains('.') || port.is_some();
        let fits = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-:".contains(c))
        };
        let good = numbered && named && text.len() <= 512 && fits(host) && path.split('/').all(fits);
        good.then(|| Self { text: text.to_owned() })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// True if the operator put the image on this host; no registry has it.
    pub fn is_local(&self) -> bool {
        self.text.starts_with("localhost/")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_of_images_are_told_from_everything_else() {
        let digest = format!("docker.io/library/alpine@sha256:{}", "0f".repeat(32));
        for good in ["docker.io/library/alpine:3.20", "localhost/tiny:1", "r.example:5000/a/b-c_d", &digest] {
            let found = ImageReference::parse(good).unwrap();
            assert_eq!(found.as_str(), good);
            assert_eq!(found.is_local(), good.starts_with("localhost/"));
        }
        for bad in [
            "",
            "alpine",
            "library/alpine",
            "-v.x/y",
            "dir:/etc",
            "oci-archive:/root/x.tar",
            "docker://docker.io/library/alpine",
            "docker.io//alpine",
            "docker.io/../alpine",
            "r.example:/alpine",
            "r.example:99999/alpine",
            "docker.io/alpine latest",
            "docker.io/alpine@sha256:00",
            "docker.io/alpine@md5:00",
            "docker.io/al\npine",
            "docker.io/--privileged",
        ] {
            assert_eq!(ImageReference::parse(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_one_plain_word(text in "[a-z./:@ -]{0,30}") {
            if let Some(found) = ImageReference::parse(&text) {
                prop_assert!(!found.as_str().contains("//") && !found.as_str().contains(' '));
                prop_assert!(!found.as_str().starts_with(['-', '/', '.']));
            }
        }
    }
}
