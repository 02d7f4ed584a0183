-- The reserve for bursts of inference.

-- The boards of each board model that jobs leave free on the nodes of a pool. Without a row there is no reserve.
CREATE TABLE pool_reserves (
  pool TEXT PRIMARY KEY CHECK (pool = 'inference'),
  boards BIGINT NOT NULL CHECK (boards BETWEEN 0 AND 10000)
);
