-- Only what is given back of charges is looked for by time; grants and payments need not be in this index.
DROP INDEX transfers_credited;
CREATE INDEX transfers_given_back ON transfers (credit, at) WHERE kind = 'credit' AND source IN ('reservation', 'evidence');
