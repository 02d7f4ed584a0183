-- What keeps jobs apart on a node, in its worker's words: a JSON object.
ALTER TABLE nodes ADD COLUMN isolation TEXT NOT NULL DEFAULT '{}';
