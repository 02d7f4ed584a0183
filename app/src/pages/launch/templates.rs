//! Templates as first inputs of the form: a row of buttons.

use berth_types::offerings::Offering;
use berth_types::templates::JobTemplate;
use leptos::prelude::*;

use super::super::parts::ready;
use super::draft::Draft;
use super::kept_draft::KeptDraft;

/// The number of templates before the others are collapsed.
const VISIBLE: usize = 8;

fn is_on_sale(offerings: &[Offering], slug: &str) -> bool {
    offerings.iter().any(|offering| offering.slug == slug && offering.price.version > 0)
}

/// Returns the input from a template and the sentences about it; `None` for a template of another version of
/// the portal. The present offering stays unless the template has one on sale. The present reservation stays,
/// with its offering, and so does a typed name.
fn fill(
    template: &JobTemplate,
    (present, start): (&Draft, &Draft),
    is_on_sale: impl Fn(&str) -> bool,
) -> Option<(Draft, String)> {
    let job = template.submission(&present.offering).ok()?;
    let (mut draft, absent) = Draft::from_submission(&job);
    if present.reservation.is_some() || !is_on_sale(&draft.offering) {
        draft.offering.clone_from(&present.offering);
    }
    draft.reservation = present.reservation;
    if present.name != start.name && !present.name.trim().is_empty() {
        draft.name.clone_from(&present.name);
    }
    let mut text = format!("Filled from the template {}. {}", template.title, template.description);
    if !absent.is_empty() {
        text.push_str(&format!(" Not in the form: {}.", absent.join(", ")));
    }
    Some((draft, text.trim_end().to_owned()))
}

/// The buttons of the templates, and the one for a blank form.
#[component]
pub fn TemplateRow(
    /// The input of the form.
    kept: KeptDraft,
    /// The templates.
    templates: Vec<JobTemplate>,
    /// All offerings.
    offerings: RwSignal<Vec<Offering>>,
) -> impl IntoView {
    let ready = ready();
    let button = move |template: JobTemplate| {
        let (title, description) = (template.title.clone(), template.description.clone());
        let choose = move |_: leptos::ev::MouseEvent| {
            let (present, start) = kept.present_and_start();
            let is_on_sale = |slug: &str| offerings.with_untracked(|all| is_on_sale(all, slug));
            match fill(&template, (&present, &start), is_on_sale) {
                Some((draft, notice)) => kept.replace(draft, notice),
                None => kept.show_notice("This page cannot read the template. Nothing was changed."),
            }
        };
        view! {
            <button
                class="btn btn--small"
                type="button"
                title=description
                disabled=move || !ready.get()
                on:click=choose
            >
                {title}
            </button>
        }
        .into_any()
    };
    let mut buttons: Vec<AnyView> = templates.into_iter().map(button).collect();
    let others = buttons.split_off(buttons.len().min(VISIBLE));
    let others = (!others.is_empty()).then(|| {
        view! {
            <details class="more">
                <summary>"More templates"</summary>
                <div class="row launch-templates">{others}</div>
            </details>
        }
    });
    view! {
        <div role="group" aria-labelledby="start-from">
            <div class="row launch-templates">
                <span class="field__label" id="start-from">"Start from"</span>
                <button
                    class="btn btn--small"
                    type="button"
                    disabled=move || !ready.get() || kept.is_blank()
                    on:click=move |_| kept.clear()
                >
                    "Blank form"
                </button>
                {buttons}
            </div>
            {others}
        </div>
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn template(job: serde_json::Value) -> JobTemplate {
        let body = json!({"name": "notebook", "title": "Notebook", "description": "Opens.", "job": job});
        serde_json::from_value(body).unwrap()
    }

    fn present() -> Draft {
        Draft { command: "echo typed".to_owned(), ..Draft::new("h100".to_owned()) }
    }

    fn filled(template: &JobTemplate, present: &Draft) -> (Draft, String) {
        fill(template, (present, &Draft::new("h100".to_owned())), |slug| slug != "sold-out").unwrap()
    }

    #[test]
    fn a_template_fills_the_form_and_keeps_the_offering() {
        let job = json!({"script": "exec jupyter lab", "ports": [8_888], "max_duration_s": 7_200});
        let (draft, text) = filled(&template(job), &present());
        assert_eq!((draft.name.as_str(), draft.offering.as_str()), ("notebook", "h100"));
        assert_eq!((draft.as_script, draft.command.as_str(), draft.limit.as_str()), (true, "", "2"));
        assert_eq!(draft.ports, ["8888"]);
        assert_eq!(text, "Filled from the template Notebook. Opens.");
    }

    #[test]
    fn an_offering_of_the_template_counts_only_on_sale_and_outside_a_reservation() {
        let with = |slug: &str| template(json!({"command": ["true"], "offering": slug}));
        assert_eq!(filled(&with("a30"), &present()).0.offering, "a30");
        assert_eq!(filled(&with("sold-out"), &present()).0.offering, "h100");
        let reservation = "res_00000000000000000000000001".parse().ok();
        let inside = Draft { reservation, ..present() };
        let (draft, _) = filled(&with("a30"), &inside);
        assert_eq!((draft.offering.as_str(), draft.reservation), ("h100", reservation));
    }

    #[test]
    fn a_typed_name_stays() {
        let job = json!({"command": ["true"], "name": "lab"});
        assert_eq!(filled(&template(job.clone()), &present()).0.name, "lab");
        let typed = Draft { name: "mine".to_owned(), ..present() };
        assert_eq!(filled(&template(job.clone()), &typed).0.name, "mine");
        // The name of an earlier template is no typed name.
        let (second, _) = fill(&template(job), (&typed, &typed), |_| true).unwrap();
        assert_eq!(second.name, "lab");
    }

    #[test]
    fn a_template_of_another_version_fills_nothing() {
        let unknown = template(json!({"command": ["true"], "gpus": 1}));
        let start = present();
        assert!(fill(&unknown, (&start, &start), |_| true).is_none());
    }
}
