-- The reset of boards that the driver resets only together.

-- The UUID of the board for which an operator requested the reset; NULL for a task of this board alone.
ALTER TABLE gpus ADD COLUMN task_group TEXT;
