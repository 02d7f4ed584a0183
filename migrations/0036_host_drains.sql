-- A host that is shut down empties its node; that is over when its worker is back.
ALTER TABLE drains ADD COLUMN by_host BOOLEAN NOT NULL DEFAULT FALSE;
