-- The approval of nodes and of their boards by operators, and the labels that operators gave or adopted.

-- Absent: the node waits for an approval, and no work is placed on it.
ALTER TABLE nodes ADD COLUMN approved_at BIGINT;
-- JSON object: the terms of its join token. Empty after their use.
ALTER TABLE nodes ADD COLUMN terms TEXT NOT NULL DEFAULT '{}';
-- JSON object, from the options of the worker. The column `labels` has those that count.
ALTER TABLE nodes ADD COLUMN reported_labels TEXT NOT NULL DEFAULT '{}';
-- True if each report replaces the labels that count.
ALTER TABLE nodes ADD COLUMN adopts_labels BOOLEAN NOT NULL DEFAULT FALSE;
-- Nodes from before this version stay in service, with their present labels.
UPDATE nodes SET approved_at = created_at, reported_labels = labels;

-- True for a board beyond those of its node's approval: no work is placed on it.
ALTER TABLE gpus ADD COLUMN awaits_approval BOOLEAN NOT NULL DEFAULT FALSE;

-- JSON object: the approval and the labels of the node that joins with the token.
ALTER TABLE join_tokens ADD COLUMN terms TEXT NOT NULL DEFAULT '{}';
