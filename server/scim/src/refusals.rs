//! The refusals of SCIM. `forms` gives each code its kind in RFC 7644.

use berth_types::problems::Problem;

pub(crate) fn no_service_account() -> Problem {
    Problem::forbidden(
        "Only a service account of the organization uses SCIM. Nothing was changed. Create a token with the scope scim for a service account.",
    )
}

pub(crate) fn no_scope() -> Problem {
    let detail =
        "The token lacks the scope scim. Nothing was changed. Create a token that names this scope itself.";
    Problem::new(403, "token.scope", "Missing scope", detail)
}

pub(crate) fn no_provider() -> Problem {
    Problem::conflict(
        "sso.missing",
        "No single sign-on",
        "The organization has no single sign-on, so its people have no role. Nothing was changed. Set the provider of single sign-on first.",
    )
}

/// A value that does not fit; `detail` is one sentence about it.
pub(crate) fn invalid_value(detail: &str) -> Problem {
    Problem::new(400, "scim.value", "Invalid value", format!("{detail} Nothing was changed."))
}

pub(crate) fn invalid_path() -> Problem {
    let detail = "The path of an operation is not readable, or its attribute cannot be removed. Nothing was changed. Name one attribute.";
    Problem::new(400, "scim.path", "Invalid path", detail)
}

/// A filter beyond those of a list; `forms` has the readable ones.
pub(crate) fn invalid_filter(forms: &str) -> Problem {
    Problem::new(400, "scim.filter", "Invalid filter", format!("The filter is not readable. Use {forms}."))
}

pub(crate) fn fixed_address() -> Problem {
    Problem::new(
        400,
        "scim.mutability",
        "Address cannot change",
        "The e-mail address belongs to the account of the person, so the provider cannot change it. Nothing was changed. Delete the person here and create the person with the other address.",
    )
}

pub(crate) fn unproved_domain() -> Problem {
    Problem::new(
        400,
        "scim.domain",
        "Domain not confirmed",
        "The domain of the e-mail address is not confirmed for the organization. Nothing was changed. Confirm the domain on the page Team first.",
    )
}

pub(crate) fn user_exists() -> Problem {
    Problem::conflict(
        "scim.exists",
        "Exists already",
        "The provider has another person with this user name, external id or e-mail address. Nothing was changed. Find the person by a filter and change the person.",
    )
}

pub(crate) fn group_exists() -> Problem {
    Problem::conflict(
        "scim.exists",
        "Exists already",
        "The provider has another group with this name or external id. Nothing was changed. Find the group by a filter and change it.",
    )
}

pub(crate) fn account_refused() -> Problem {
    Problem::conflict(
        "scim.account",
        "Account of another person",
        "An account with this e-mail address exists, and the provider cannot take it over: the account is an operator's, is disabled, or has a password without a membership. Nothing was changed. Invite the person first.",
    )
}

/// A number beyond its limit; `limit` is the limit in words.
pub(crate) fn too_many(limit: &str) -> Problem {
    Problem::conflict(
        "scim.limit",
        "Too many",
        format!("An organization has at most {limit}. Nothing was changed."),
    )
}
