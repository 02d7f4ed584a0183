//! Patterns of texts in the schemas, equal to the checks of the portal.
//!
//! The classes of control characters and of white space are those of Rust, written out because the dialects
//! of regular expressions differ in `\s`.

/// Printable characters only.
pub const PRINTABLE: &str = r"^[^\u0000-\u001F\u007F-\u009F]*$";

/// Printable characters and line feeds.
pub const LINES: &str = r"^[^\u0000-\u0009\u000B-\u001F\u007F-\u009F]*$";

/// Printable characters, with at least one that is not white space. The portal also refuses names with invisible
/// characters and with those that turn the direction of a line.
pub const NAME: &str = concat!(
    r"^[^\u0000-\u001F\u007F-\u009F]*",
    r"[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]",
    r"[^\u0000-\u001F\u007F-\u009F]*$",
);

/// At least one character that is not white space.
pub const NOT_BLANK: &str =
    r"[^\u0009-\u000D\u0020\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]";

/// One e-mail address.
pub const EMAIL: &str = concat!(
    r#"^[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000<>()\[\],;:"\\@]+@"#,
    r#"[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000<>()\[\],;:"\\@]+$"#,
);

/// One e-mail address with white space around it.
pub const PADDED_EMAIL: &str = concat!(
    r"^[\u0009-\u000D\u0020\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]*",
    r#"[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000<>()\[\],;:"\\@]+@"#,
    r#"[^\u0000-\u0020\u007F-\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000<>()\[\],;:"\\@]+"#,
    r"[\u0009-\u000D\u0020\u0085\u00A0\u1680\u2000-\u200A\u2028\u2029\u202F\u205F\u3000]*$",
);

/// An address with https in printable ASCII characters.
pub const HTTPS: &str = "^https://[!-~]+$";

/// The key of a label, in printable characters.
pub const LABEL_KEY: &str = r"^[^=\u0000-\u001F\u007F-\u009F]+$";

/// A label as `key=value`, in printable characters.
pub const LABEL: &str = r"^[^=\u0000-\u001F\u007F-\u009F]+=[^\u0000-\u001F\u007F-\u009F]*$";

/// The name of an environment variable.
pub const VARIABLE: &str = "^[A-Za-z_][A-Za-z0-9_]*$";

/// The name of a secret, or of its file.
pub const SECRET_NAME: &str = "^[A-Za-z0-9][A-Za-z0-9._-]*$";

/// The slug of an organization.
pub const ORG_SLUG: &str = "^[a-z0-9]+(-[a-z0-9]+)*$";

/// The name of a volume.
pub const VOLUME_NAME: &str = "^[a-z0-9][a-z0-9-]*$";
