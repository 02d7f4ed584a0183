//! The refusals of a sign-in.

use berth_types::problems::Problem;

/// The refusal of a sign-in with a wrong address or password.
pub fn wrong_password() -> Problem {
    Problem::new(
        401,
        "auth.wrong_password",
        "Wrong address or password",
        "No account has this address with this password. Check both and try again.",
    )
}

/// The refusal of a sign-in beyond the limits of its account or its network.
pub fn too_many_sign_ins(wait_s: u64) -> Problem {
    let detail = "Too many sign-ins to this account or from your network. Wait before the next try. The account is not locked.";
    Problem::throttled(detail, wait_s)
}

/// The refusal of a sign-in to a disabled account.
pub fn account_disabled(reason: &str) -> Problem {
    let detail = format!(
        "The operator of this portal disabled this account. The reason: “{reason}”. Jobs, files and credit are unchanged. Write to the operator."
    );
    Problem::new(403, "account.disabled", "Account disabled", detail)
}

/// The refusal of the answer of a browser with a passkey.
pub fn passkey_refused() -> Problem {
    Problem::new(
        401,
        "auth.passkey",
        "Passkey refused",
        "The portal does not accept this passkey: it was removed, it belongs to another account, or its request is more than five minutes old. You are not signed in by it. Try again, or use another way to sign in.",
    )
}
