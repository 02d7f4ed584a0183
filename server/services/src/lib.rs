//! Services: models and other servers of an organization behind one address, with replicas that are jobs.
