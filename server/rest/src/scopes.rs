//! The scopes of routes. Each route declares its own beside its description; the extractor of the caller compares it
//! with the scopes of the token before any work of the route.

use axum::extract::MatchedPath;
use axum::http::Method;
use axum::http::request::Parts;
use berth_foundation::Caller;
use berth_types::problems::Problem;
use berth_types::scopes::ApiScope;

/// The extension of an operation with the scope of its route: the name of a scope, or [`ANY_NAME`].
pub const EXTENSION: &str = "x-scope";
pub const ANY_NAME: &str = "any";

/// The scope that a token needs for a route; `None` for a route of every token.
pub type RouteScope = Option<ApiScope>;

/// The scope of a route without authentication, or for every token.
pub const ANY: RouteScope = None;

/// The scopes of all routes as an extension of each request: by the method and the pattern of the path; `None` for
/// an unknown route.
#[derive(Clone, Copy)]
pub struct RouteScopes(pub fn(&Method, &str) -> Option<RouteScope>);

/// The scope that a token needs for a request. A route without a description is for tokens without limits.
pub(crate) fn needed_scope(parts: &Parts) -> RouteScope {
    let route = parts.extensions.get::<MatchedPath>().zip(parts.extensions.get::<RouteScopes>());
    let found = route.and_then(|(path, RouteScopes(find))| find(&parts.method, path.as_str()));
    found.unwrap_or(Some(ApiScope::Admin))
}

/// The scope that the token of a caller lacks for a route. Sessions of people have no scopes.
pub fn find_missing_scope(caller: &Caller, needed: RouteScope) -> Option<ApiScope> {
    let (token, scope) = (caller.token?, needed?);
    (!token.scopes.include(scope)).then_some(scope)
}

/// The refusal of a token without a scope.
pub fn missing_scope(scope: ApiScope) -> Problem {
    let detail = format!(
        "The token lacks the scope {}. Nothing was changed. Use a token with this scope.",
        scope.name()
    );
    Problem::new(403, "token.scope", "Missing scope", detail)
}
