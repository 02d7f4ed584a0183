-- Boards that its worker reported and that stay with another node, in words; empty when there are none.
ALTER TABLE nodes ADD COLUMN left_out TEXT NOT NULL DEFAULT '';
