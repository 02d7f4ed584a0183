//! The scope of each route, from its description.

use std::collections::HashMap;
use std::sync::LazyLock;

use axum::http::Method;
use berth_rest::scopes::{ANY_NAME, EXTENSION, RouteScope};
use berth_types::scopes::ApiScope;
use serde_json::Value;

use super::document::document;

/// The scopes by method and path, such as `get /api/v1/me`.
static SCOPES: LazyLock<HashMap<String, RouteScope>> = LazyLock::new(|| read_scopes(document()));

fn read_scopes(document: &Value) -> HashMap<String, RouteScope> {
    let mut scopes = HashMap::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let name = operation[EXTENSION].as_str().unwrap_or_default();
            // An unknown name must not open its route.
            match (name, ApiScope::parse(name)) {
                (_, Some(scope)) => scopes.insert(format!("{method} {path}"), Some(scope)),
                (ANY_NAME, None) => scopes.insert(format!("{method} {path}"), None),
                _ => None,
            };
        }
    }
    scopes
}

/// The scope of the route with this method and this pattern of its path; `None` for an unknown route.
pub fn find_scope(method: &Method, path: &str) -> Option<RouteScope> {
    let method = if *method == Method::HEAD { &Method::GET } else { method };
    let key = format!("{} {}", method.as_str().to_ascii_lowercase(), path.replace("{*", "{"));
    SCOPES.get(&key).copied()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_are_found_by_the_patterns_of_the_router() {
        let find = |method: Method, path: &str| find_scope(&method, path);
        let files = "/api/v1/orgs/{org}/volumes/{volume}/files/{*path}";
        assert_eq!(find(Method::GET, "/api/v1/me"), Some(None));
        assert_eq!(find(Method::GET, files), Some(Some(ApiScope::StorageRead)));
        assert_eq!(find(Method::HEAD, files), Some(Some(ApiScope::StorageRead)));
        assert_eq!(find(Method::DELETE, files), Some(Some(ApiScope::StorageWrite)));
        assert_eq!(find(Method::POST, "/api/v1/me"), None);
        assert_eq!(find(Method::GET, "/me"), None);
    }

    #[test]
    fn an_unknown_name_opens_no_route() {
        let document =
            json!({ "paths": { "/a": { "get": { EXTENSION: "jobs:all" } }, "/b": { "get": {} } } });
        assert!(read_scopes(&document).is_empty());
    }
}
