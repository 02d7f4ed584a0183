//! The filter of an organization's list of jobs: its limits, and its form for the store.

use berth_core::admission::MAX_NAME_CHARS;
use berth_store::jobs::JobSearch;
use berth_store::operations::JobQuery;
use berth_types::ids::OrgId;
use berth_types::jobs::OrgJobFilter;
use berth_types::problems::Problem;

/// Bytes of a label as `key=value`: 63 on each side.
const MAX_LABEL_BYTES: usize = 127;

/// The form of a label in the column of labels: `"key":"value"`. `None` for a text that is no label.
pub fn stored_label(text: &str) -> Option<String> {
    let fits = text.len() <= MAX_LABEL_BYTES && !text.chars().any(char::is_control);
    let (key, value) = text.split_once('=').filter(|(key, _)| fits && !key.is_empty())?;
    let json = |text: &str| serde_json::to_string(text).ok();
    Some(format!("{}:{}", json(key)?, json(value)?))
}

/// A field of a filter beyond its limits: its name, and its limits after the name.
type Fault = (&'static str, &'static str);

/// The part of a name in a filter; empty when absent.
fn name_part(field: &'static str, text: Option<&str>) -> Result<String, Fault> {
    let Some(text) = text else { return Ok(String::new()) };
    let fits = (1..=MAX_NAME_CHARS).contains(&text.chars().count()) && !text.chars().any(char::is_control);
    if fits { Ok(text.to_owned()) } else { Err((field, "has 1 to 100 printable characters.")) }
}

fn stored_filter(filter: &OrgJobFilter) -> Result<JobSearch, Fault> {
    let no_label = ("label", "is a label as key=value, with at most 127 printable characters.");
    let label = match &filter.label {
        None => String::new(),
        Some(text) => stored_label(text).ok_or(no_label)?,
    };
    Ok(JobSearch {
        state: filter.state,
        ended: filter.ended,
        name: name_part("name", filter.name.as_deref())?,
        created_by: name_part("created_by", filter.created_by.as_deref())?,
        label,
    })
}

/// The form for the store of a filter in a query.
///
/// # Errors
/// A text is empty, too long or not printable, or the label is no label.
pub fn job_search(filter: &OrgJobFilter) -> Result<JobSearch, Problem> {
    stored_filter(filter).map_err(|(field, limits)| Problem::malformed(format!("`{field}` {limits}")))
}

/// The form for the store of the field `filter` of a body, for the jobs of one organization.
///
/// # Errors
/// As [`job_search`], with the pointer of the field.
pub fn org_query(org: OrgId, filter: &OrgJobFilter) -> Result<JobQuery, Problem> {
    let search = stored_filter(filter).map_err(|(field, limits)| {
        Problem::invalid_field(&format!("/filter/{field}"), format!("The field `{field}` {limits}"))
    })?;
    Ok(JobQuery { org: Some(org), search, ..JobQuery::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_the_form_of_its_column() {
        assert_eq!(stored_label("team=a \"b\"").as_deref(), Some(r#""team":"a \"b\"""#));
        assert_eq!(stored_label("formula=a=b").as_deref(), Some(r#""formula":"a=b""#));
        for no in ["", "team", "=a", "team=a\n", format!("k={}", "v".repeat(126)).as_str()] {
            assert_eq!(stored_label(no), None, "{no:?}");
        }
    }

    #[test]
    fn the_texts_of_a_filter_have_limits() {
        let named = |name: String| OrgJobFilter { name: Some(name), ..OrgJobFilter::default() };
        assert_eq!(job_search(&named("ü".repeat(100))).ok().map(|search| search.name), Some("ü".repeat(100)));
        for no in [String::new(), "n".repeat(101), "a\tb".to_owned()] {
            assert_eq!(job_search(&named(no)).err().map(|problem| problem.status), Some(400));
        }
        let by = OrgJobFilter { created_by: Some(String::new()), ..OrgJobFilter::default() };
        assert!(job_search(&by).is_err());
        let label = OrgJobFilter { label: Some("team".to_owned()), ..OrgJobFilter::default() };
        assert!(job_search(&label).is_err());
        assert_eq!(job_search(&OrgJobFilter::default()).ok().map(|search| search.label), Some(String::new()));
    }
}
