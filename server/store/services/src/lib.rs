//! The statements about services: services, revisions, replicas, inference keys, gateways and their use.
