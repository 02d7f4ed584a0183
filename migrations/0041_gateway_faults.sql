-- The share of each gateway in the faults of services by hour: it ends with the token of the gateway. It outlives its
-- service.
CREATE TABLE gateway_faults (
  gateway_number BIGINT NOT NULL,
  service_id TEXT NOT NULL,
  hour_at BIGINT NOT NULL,
  refused BIGINT NOT NULL,
  lost BIGINT NOT NULL,
  PRIMARY KEY (gateway_number, service_id, hour_at)
);
CREATE INDEX gateway_faults_by_hour ON gateway_faults (hour_at);
