-- The token that created a token. Its revocation ends the created one too.
ALTER TABLE tokens ADD COLUMN parent_id TEXT REFERENCES tokens (id);
CREATE INDEX tokens_by_parent ON tokens (parent_id);
