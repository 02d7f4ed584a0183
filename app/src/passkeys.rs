//! Passkeys of the browser: a new one, or a signature by one. `js/passkeys.js` asks the browser.

use berth_types::problems::Problem;

pub use inner::{create, sign};

/// Returns the problem for the name of an exception of the browser.
fn problem_of(exception: &str) -> Problem {
    match exception {
        "NotAllowedError" | "AbortError" => Problem::new(
            400,
            "passkey.cancelled",
            "No passkey",
            "The browser gave no passkey: the request was cancelled or took too long, or this device has no passkey for this portal. Nothing was changed. Try again, or use another way to sign in.",
        ),
        "InvalidStateError" => Problem::new(
            400,
            "passkey.exists",
            "Passkey exists",
            "This device has a passkey of your account already. Nothing was changed. Use another device.",
        ),
        _ => Problem::new(
            400,
            "passkey.unsupported",
            "Passkeys not supported",
            "This browser or device has no passkeys in the form that the portal needs. Nothing was changed. Use a current browser, or another way to sign in.",
        ),
    }
}

#[cfg(feature = "hydrate")]
mod inner {
    use berth_types::problems::Problem;
    use js_sys::{Promise, Reflect};
    use wasm_bindgen::JsValue;
    use wasm_bindgen::prelude::wasm_bindgen;
    use wasm_bindgen_futures::JsFuture;

    use super::problem_of;

    #[wasm_bindgen(module = "/js/passkeys.js")]
    extern "C" {
        #[wasm_bindgen(js_name = createPasskey)]
        fn create_passkey(options: &str) -> Promise;

        #[wasm_bindgen(js_name = signByPasskey)]
        fn sign_by_passkey(options: &str) -> Promise;
    }

    async fn text_of(answer: Promise) -> Result<String, Problem> {
        let named = |error: JsValue| {
            let name =
                Reflect::get(&error, &JsValue::from_str("name")).ok().and_then(|name| name.as_string());
            problem_of(&name.unwrap_or_default())
        };
        let answer = JsFuture::from(answer).await.map_err(named)?;
        answer.as_string().ok_or_else(|| problem_of(""))
    }

    /// Makes a passkey. Returns the answer of the browser as a JSON text.
    pub async fn create(options: &str) -> Result<String, Problem> {
        text_of(create_passkey(options)).await
    }

    /// Signs by a passkey. Returns the answer of the browser as a JSON text.
    pub async fn sign(options: &str) -> Result<String, Problem> {
        text_of(sign_by_passkey(options)).await
    }
}

#[cfg(not(feature = "hydrate"))]
mod inner {
    use berth_types::problems::Problem;

    use super::problem_of;

    /// Outside of a browser there is no passkey.
    pub async fn create(_options: &str) -> Result<String, Problem> {
        Err(problem_of(""))
    }

    /// Outside of a browser there is no passkey.
    pub async fn sign(_options: &str) -> Result<String, Problem> {
        Err(problem_of(""))
    }
}
