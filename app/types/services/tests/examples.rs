//! The service of the digits example is a body that the portal reads.

use berth_service_types::services::{NewService, ServiceProtocol};

#[test]
fn the_service_of_the_digits_example_is_a_valid_body() {
    let text = include_str!("../../../../examples/digits/service.json");
    let service: NewService = serde_json::from_str(text).unwrap();
    assert_eq!(service.protocol, ServiceProtocol::Http);
    assert!(service.models.is_empty(), "only OpenAI services have models");
    assert_eq!(service.scaling.min_replicas, 0);
    assert_eq!(service.revision.readiness_path, "/healthz");
    let job = &service.revision.job;
    assert!(job.depends_on.is_empty() && job.reservation.is_none(), "revisions have neither");
    let again: NewService = serde_json::from_value(serde_json::to_value(&service).unwrap()).unwrap();
    assert_eq!(again, service);
}
