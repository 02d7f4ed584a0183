-- Why a board is out of service, in code and time; `quarantined` has it in words.
ALTER TABLE gpus ADD COLUMN quarantine_code TEXT;
ALTER TABLE gpus ADD COLUMN quarantined_at BIGINT;
-- The newest fault of its worker's that was acted on: a release is not undone by hearing it again.
ALTER TABLE gpus ADD COLUMN fault_serial BIGINT NOT NULL DEFAULT 0;
-- Why it does not answer its worker at present.
ALTER TABLE gpus ADD COLUMN silent TEXT;
-- JSON: what its worker read of it.
ALTER TABLE gpus ADD COLUMN facts TEXT NOT NULL DEFAULT '{}';
-- The newest thing that an operator wanted done with it, the newest that was done, and how that went.
ALTER TABLE gpus ADD COLUMN task_number BIGINT NOT NULL DEFAULT 0;
ALTER TABLE gpus ADD COLUMN task_kind TEXT;
ALTER TABLE gpus ADD COLUMN task_done BIGINT NOT NULL DEFAULT 0;
ALTER TABLE gpus ADD COLUMN task_good BOOLEAN;
ALTER TABLE gpus ADD COLUMN task_words TEXT;
