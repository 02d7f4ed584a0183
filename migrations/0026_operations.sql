-- A node that is emptied: what runs there may end until the deadline, then it is told to go.
CREATE TABLE drains (
  node_id TEXT PRIMARY KEY REFERENCES nodes (id),
  reason TEXT NOT NULL,
  -- Absent: everything may run to its own end.
  deadline_at BIGINT,
  -- The most seconds that a job gets to stop; absent: what it asked for.
  grace_s BIGINT,
  -- How the node stood before; that is restored when the drain is called off.
  was_cordoned BOOLEAN NOT NULL,
  started_by TEXT NOT NULL,
  started_at BIGINT NOT NULL,
  -- When nothing was left on it.
  emptied_at BIGINT
);

-- What racks can feed; nodes are in the rack that their label `rack` names.
CREATE TABLE racks (
  name TEXT PRIMARY KEY,
  budget_watts BIGINT NOT NULL CHECK (budget_watts > 0)
);
