//! The HTML document of all pages with its content security policy.

use http::HeaderValue;
use http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY};
use leptos::nonce::use_nonce;
use leptos::prelude::*;
use leptos_axum::ResponseOptions;
use leptos_meta::MetaTags;

use crate::App;
use crate::hydration::NOTICE_ID;
use crate::identity::{META_NAME, page_identity};
use crate::theme::{Theme, page_theme};
use crate::ui::zone::rendered_zone;

/// Returns the origin of a gateway as a source of the policy; none for an address with other characters than those of
/// a host and a port, which could end the directive.
fn gateway_source(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
    let host = rest.split('/').next().filter(|host| !host.is_empty())?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    host.chars().all(plain).then(|| format!(" {scheme}://{host}"))
}

/// Sets the headers: scripts by nonce only, no inline code, no frames, and no other origins than the gateways.
fn set_policy(nonce: &str, gateways: &[String]) {
    let Some(options) = use_context::<ResponseOptions>() else { return };
    let gateways: String = gateways.iter().filter_map(|url| gateway_source(url)).collect();
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}' 'strict-dynamic' 'wasm-unsafe-eval'; style-src 'self'; \
         connect-src 'self'{gateways}; img-src 'self' data:; font-src 'self'; form-action 'self'; base-uri 'none'; \
         frame-ancestors 'none'"
    );
    if let Ok(value) = HeaderValue::from_str(&policy) {
        options.insert_header(CONTENT_SECURITY_POLICY, value);
    }
    // Pages contain private data.
    options.insert_header(CACHE_CONTROL, HeaderValue::from_static("no-store"));
}

const ICON: &str = "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='-3 -9 32 32'%3E%3Cpath d='M.75 1.75h3.5v10.5H.75zM21.75 1.75h3.5v10.5h-3.5z' fill='none' stroke='%230d7a6b' stroke-width='1.5'/%3E%3Cpath d='M6 1h14v12H6z' fill='%230d7a6b'/%3E%3C/svg%3E";

/// Returns the document. `build` is the name of the assets; an empty name leaves plain HTML.
pub fn shell(build: String) -> impl IntoView {
    let nonce = use_nonce();
    let (identity, theme) = (page_identity(), page_theme());
    if let Some(nonce) = &nonce {
        set_policy(nonce, &identity.gateways);
    }
    let assets = (!build.is_empty()).then(|| {
        let start = format!(
            "import init, {{ hydrate }} from '/pkg/{build}/berth_app.js';\n\
             init({{ module_or_path: '/pkg/{build}/berth_app_bg.wasm' }}).then(() => hydrate());"
        );
        view! {
            <link rel="stylesheet" href=format!("/pkg/{build}/berth.css")/>
            <link rel="modulepreload" href=format!("/pkg/{build}/berth_app.js") nonce=nonce.clone()/>
            <link
                rel="preload"
                href=format!("/pkg/{build}/berth_app_bg.wasm")
                r#as="fetch"
                r#type="application/wasm"
                crossorigin="anonymous"
            />
            <script type="module" nonce=nonce>{start}</script>
        }
    });
    let json = serde_json::to_string(&identity).unwrap_or_default();
    let scheme = match theme {
        Theme::System => "light dark",
        Theme::Light | Theme::Dark => theme.name(),
    };
    view! {
        <!DOCTYPE html>
        <html lang="en" data-theme=theme.attribute() data-accent=identity.accent.name() data-zone=rendered_zone().text()>
            <head>
                <meta charset="utf-8"/>
                <meta name="viewport" content="width=device-width, initial-scale=1"/>
                <meta name="color-scheme" content=scheme/>
                <meta name=META_NAME content=json/>
                <link rel="icon" href=ICON/>
                {assets}
                <MetaTags/>
            </head>
            <body>
                <App/>
                <p class="waking" id=NOTICE_ID role="status"></p>
                <noscript>
                    <p class="noscript">
                        "JavaScript is off. Pages show their data as of their loading. Forms, buttons, live values, charts, logs and terminals do not work. Turn on JavaScript for this site, or use the API with a token."
                    </p>
                </noscript>
            </body>
        </html>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_origin_of_a_gateway_is_in_the_policy() {
        for (url, source) in [
            ("https://models.example.org", Some(" https://models.example.org")),
            ("http://127.0.0.1:9000/", Some(" http://127.0.0.1:9000")),
            ("https://[2001:db8::1]:443/gateway", Some(" https://[2001:db8::1]:443")),
            ("https://a.example;script-src *", None),
            ("https://a.example 'unsafe-inline'", None),
            ("https://user@a.example", None),
            ("javascript://a.example", None),
            ("https:///path", None),
            ("a.example", None),
            ("", None),
        ] {
            assert_eq!(gateway_source(url).as_deref(), source, "{url}");
        }
    }
}
