//! Short texts of the browsers of sessions.

/// Names in the header `User-Agent` with the names of their browsers. The names of later rows are in the headers of
/// browsers of earlier rows too.
const BROWSERS: [(&str, &str); 7] = [
    ("Edg", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("Chrome/", "Chrome"),
    ("CriOS/", "Chrome"),
    ("Safari/", "Safari"),
    ("curl/", "curl"),
];

/// The same for systems.
const SYSTEMS: [(&str, &str); 7] = [
    ("Android", "Android"),
    ("iPhone", "iOS"),
    ("iPad", "iPadOS"),
    ("CrOS", "ChromeOS"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
];

/// The most characters of the name of an unknown program.
const MAX_NAME_CHARS: usize = 40;

/// Returns the name of the browser and its system for a header `User-Agent`: `Firefox on Linux`.
pub fn browser_text(header: &str) -> String {
    let find = |names: &[(&str, &'static str)]| {
        names.iter().find(|(part, _)| header.contains(part)).map(|(_, name)| *name)
    };
    let known = find(&BROWSERS).map(str::to_owned);
    // The first word of another program is its name.
    let other = || header.split_whitespace().next().map(|word| word.chars().take(MAX_NAME_CHARS).collect());
    let browser: String = known.or_else(other).unwrap_or_else(|| "unknown browser".to_owned());
    match find(&SYSTEMS) {
        Some(system) => format!("{browser} on {system}"),
        None => browser,
    }
}

#[cfg(test)]
mod tests {
    use super::browser_text;

    #[test]
    fn a_browser_has_a_short_name() {
        for (header, text) in [
            ("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"),
            (
                "Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Safari/537.36 Edg/140.0",
                "Edge on Windows",
            ),
            (
                "Mozilla/5.0 (Linux; Android 15) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0 Mobile Safari/537.36",
                "Chrome on Android",
            ),
            (
                "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1 Version/18.0 Mobile/15E148 Safari/604.1",
                "Safari on iOS",
            ),
            ("curl/8.5.0", "curl"),
            ("python-requests/2.32", "python-requests/2.32"),
            ("", "unknown browser"),
        ] {
            assert_eq!(browser_text(header), text);
        }
        assert_eq!(browser_text(&"x".repeat(100)).len(), 40);
    }
}
