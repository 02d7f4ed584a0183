//! The network policy of an organization, for its members.

use berth_types::egress::{EgressPolicy, OpenNetwork};
use leptos::prelude::*;

/// Returns a policy as a text, such as `internet, storage`.
pub fn policy_text(policy: &EgressPolicy) -> String {
    let mut parts = Vec::new();
    if policy.internet {
        parts.push("internet".to_owned());
    }
    parts.extend(policy.networks.iter().map(|network| network.name.clone()));
    if parts.is_empty() {
        parts.push("no address outside".to_owned());
    }
    if policy.host_network {
        parts.push("host network on request".to_owned());
    }
    parts.join(", ")
}

/// Returns the sentence about the internet.
const fn internet_text(internet: bool) -> &'static str {
    if internet { "open" } else { "closed" }
}

fn network_item(network: &OpenNetwork) -> AnyView {
    let (name, ranges) = (network.name.clone(), network.ranges.join(", "));
    view! { <li><span class="mono">{name}</span>": "<span class="mono break">{ranges}</span></li> }.into_any()
}

/// The section with the policy.
#[component]
pub fn NetworkSection(
    /// The policy of the first read.
    policy: EgressPolicy,
) -> impl IntoView {
    let items: Vec<AnyView> = policy.networks.iter().map(network_item).collect();
    let networks = match items.is_empty() {
        true => "none".into_any(),
        false => view! { <ul>{items}</ul> }.into_any(),
    };
    let host = if policy.host_network { "may be requested by a job" } else { "not granted" };
    view! {
        <section class="section">
            <div class="section__head"><h2>"Network of jobs"</h2></div>
            <dl class="kv">
                <dt>"Internet"</dt>
                <dd>{internet_text(policy.internet)}</dd>
                <dt>"Named networks"</dt>
                <dd>{networks}</dd>
                <dt>"Host network"</dt>
                <dd>{host}</dd>
            </dl>
            <p class="quiet">"An operator of the cloud sets this policy. A job may choose less."</p>
        </section>
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_names_what_is_open() {
        let policy = |internet, names: &[&str], host_network| EgressPolicy {
            internet,
            networks: names
                .iter()
                .map(|name| OpenNetwork { name: (*name).to_owned(), ranges: Vec::new() })
                .collect(),
            host_network,
        };
        assert_eq!(policy_text(&policy(true, &[], false)), "internet");
        assert_eq!(policy_text(&policy(false, &[], false)), "no address outside");
        let text = "internet, storage, host network on request";
        assert_eq!(policy_text(&policy(true, &["storage"], true)), text);
    }
}
