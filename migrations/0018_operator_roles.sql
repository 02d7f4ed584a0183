-- Roles of operators. The former operators have all rights.

-- Absent for a user who is no operator.
ALTER TABLE users ADD COLUMN operator_role TEXT
  CHECK (operator_role IN ('owner', 'fleet', 'billing', 'support', 'auditor'));
UPDATE users SET operator_role = 'owner' WHERE operator;
