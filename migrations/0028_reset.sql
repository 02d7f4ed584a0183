-- The reset of a board as a task of an operator. SQLite changes no list of a column, so a new column takes its place.

ALTER TABLE gpus ADD COLUMN next_task_kind TEXT
  CHECK (next_task_kind IN ('check', 'mig_on', 'mig_off', 'reset'));
UPDATE gpus SET next_task_kind = task_kind;
ALTER TABLE gpus DROP COLUMN task_kind;
ALTER TABLE gpus RENAME COLUMN next_task_kind TO task_kind;
