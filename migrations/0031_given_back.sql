-- What was credited to an account, by time: of its transfers these are few.
CREATE INDEX transfers_credited ON transfers (credit, at) WHERE kind = 'credit';
