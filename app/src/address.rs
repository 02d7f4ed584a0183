//! Addresses of the pages of an organization: `/orgs/{slug}` followed by the path of the page.
//!
//! All links to these pages are made here.

use leptos::prelude::*;

/// Returns the address of a page of an organization. `page` is `/` for the home page, or `/jobs?state=queued`.
pub fn org_path(slug: &str, page: &str) -> String {
    if page == "/" { format!("/orgs/{slug}") } else { format!("/orgs/{slug}{page}") }
}

/// Splits the path of an address into the slug and the path of the page: `acme` and `/jobs` of `/orgs/acme/jobs`.
pub fn parse_org_path(path: &str) -> Option<(&str, &str)> {
    let rest = path.strip_prefix("/orgs/")?;
    let slug = rest.split('/').next().filter(|slug| !slug.is_empty())?;
    let page = rest.strip_prefix(slug)?.trim_end_matches('/');
    Some((slug, if page.is_empty() { "/" } else { page }))
}

/// Returns the list of an object's page: `/jobs` of `/jobs/{job}`. Other pages are returned as they are.
pub fn list_of(page: &str) -> String {
    match page.split('/').nth(1) {
        // Statements are listed beside the invoices.
        Some("statements") => "/invoices".to_owned(),
        list => format!("/{}", list.unwrap_or_default()),
    }
}

/// Returns true if the page is of one object: `/jobs/{job}`. Its path is also that of the API below the
/// organization.
pub fn is_object(page: &str) -> bool {
    // A statement is of a month and of each organization; a comparison is of several jobs; a new service is none yet.
    if page.starts_with("/statements/") || matches!(page, "/jobs/compare" | "/services/new") {
        return false;
    }
    let mut parts = page.split('/').skip(2);
    let plain = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    parts.next().is_some_and(|part| !part.is_empty() && part.len() <= 100 && plain(part))
        && parts.next().is_none()
}

/// Makes links to pages of the shown organization.
#[derive(Clone, Copy)]
pub struct OrgLinks {
    slug: Memo<String>,
}

impl OrgLinks {
    /// Returns the links to the organization with the slug of a memo.
    pub fn new(slug: Memo<String>) -> Self {
        Self { slug }
    }

    /// Returns the address of a page for an attribute. It follows a change of the organization.
    pub fn link(self, page: &str) -> impl Fn() -> String + Clone + Send + Sync + 'static + use<> {
        let page = page.to_owned();
        move || self.slug.with(|slug| org_path(slug, &page))
    }

    /// Returns the address of a page that changes with its caller. It follows a change of the organization too.
    pub fn tracked_path(self, page: &str) -> String {
        self.slug.with(|slug| org_path(slug, page))
    }

    /// Returns the present address of a page for a navigation.
    pub fn path(self, page: &str) -> String {
        self.slug.with_untracked(|slug| org_path(slug, page))
    }
}

/// Returns the links of a page inside the layout of a session.
pub fn use_org_links() -> OrgLinks {
    expect_context::<OrgLinks>()
}

/// Returns the address of a page of the shown organization for an attribute, inside the layout of a session.
pub fn org_link(page: &str) -> impl Fn() -> String + Clone + Send + Sync + 'static + use<> {
    use_org_links().link(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_slug_and_page() {
        for (slug, page, path) in [
            ("acme", "/", "/orgs/acme"),
            ("acme", "/jobs", "/orgs/acme/jobs"),
            ("a-2", "/jobs/job_1", "/orgs/a-2/jobs/job_1"),
        ] {
            assert_eq!(org_path(slug, page), path);
            assert_eq!(parse_org_path(path), Some((slug, page)));
            assert_eq!(parse_org_path(&format!("{path}/")), Some((slug, page)));
        }
        for path in ["/", "/jobs", "/orgs", "/orgs/", "/operator/orgs", "/orgsx/a"] {
            assert_eq!(parse_org_path(path), None, "{path}");
        }
    }

    #[test]
    fn the_page_of_an_object_has_a_list() {
        for (page, list, object) in [
            ("/", "/", false),
            ("/jobs", "/jobs", false),
            ("/jobs/", "/jobs", false),
            ("/jobs/job_01", "/jobs", true),
            ("/volumes/my-data", "/volumes", true),
            ("/jobs/job_01/log", "/jobs", false),
            ("/jobs/..%2f", "/jobs", false),
            ("/statements/2026-11", "/invoices", false),
            ("/jobs/compare", "/jobs", false),
            ("/services/svc_01", "/services", true),
            ("/services/new", "/services", false),
            ("/services/svc_01/new-revision", "/services", false),
        ] {
            assert_eq!(list_of(page), list, "{page}");
            assert_eq!(is_object(page), object, "{page}");
        }
    }
}
