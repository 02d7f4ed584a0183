-- The platform's side of every transfer is in the transfer; it has no balance of its own.
DELETE FROM accounts WHERE org_id IS NULL;
