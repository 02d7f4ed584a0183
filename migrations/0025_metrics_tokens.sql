-- Tokens that read /metrics and nothing else; apart from `tokens`, so that none is ever taken for more.
CREATE TABLE metrics_tokens (
  id TEXT PRIMARY KEY,
  name TEXT NOT NULL,
  hash TEXT NOT NULL UNIQUE,
  hint TEXT NOT NULL,
  created_by TEXT NOT NULL REFERENCES users (id),
  created_at BIGINT NOT NULL,
  expires_at BIGINT,
  last_used_at BIGINT
);
