-- The removal of a node. Its row stays for the records of its jobs; no list has it any more.
ALTER TABLE nodes ADD COLUMN removed_at BIGINT;
