-- Triggers for immutable rows: transfers, prices with their withdrawals, the content of invoices, chained audit events and checkpoints. The engines spell triggers differently.
CREATE TRIGGER IF NOT EXISTS transfers_no_update BEFORE UPDATE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are immutable'); END;
CREATE TRIGGER IF NOT EXISTS transfers_no_delete BEFORE DELETE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are immutable'); END;
CREATE TRIGGER IF NOT EXISTS prices_no_update BEFORE UPDATE ON prices
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END;
CREATE TRIGGER IF NOT EXISTS prices_no_delete BEFORE DELETE ON prices
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END;
CREATE TRIGGER IF NOT EXISTS price_withdrawals_no_update BEFORE UPDATE ON price_withdrawals
BEGIN SELECT RAISE(ABORT, 'withdrawals of prices are immutable'); END;
CREATE TRIGGER IF NOT EXISTS price_withdrawals_no_delete BEFORE DELETE ON price_withdrawals
BEGIN SELECT RAISE(ABORT, 'withdrawals of prices are immutable'); END;
CREATE TRIGGER IF NOT EXISTS invoices_final BEFORE UPDATE ON invoices
WHEN NEW.number <> OLD.number OR NEW.document <> OLD.document OR NEW.total_micros <> OLD.total_micros
  OR NEW.org_id <> OLD.org_id OR NEW.issued_at <> OLD.issued_at
BEGIN SELECT RAISE(ABORT, 'invoices are final'); END;
CREATE TRIGGER IF NOT EXISTS invoices_no_delete BEFORE DELETE ON invoices
BEGIN SELECT RAISE(ABORT, 'invoices are final'); END;
-- An event of an earlier version gets its place in the chain once.
CREATE TRIGGER IF NOT EXISTS audit_events_no_update BEFORE UPDATE ON audit_events
WHEN OLD.seq IS NOT NULL OR NEW.id <> OLD.id OR NEW.org_id <> OLD.org_id OR NEW.at <> OLD.at OR NEW.actor <> OLD.actor
  OR NEW.action <> OLD.action OR NEW.subject <> OLD.subject OR NEW.detail <> OLD.detail
BEGIN SELECT RAISE(ABORT, 'audit events are immutable'); END;
CREATE TRIGGER IF NOT EXISTS audit_events_no_delete BEFORE DELETE ON audit_events
BEGIN SELECT RAISE(ABORT, 'audit events are immutable'); END;
CREATE TRIGGER IF NOT EXISTS audit_head_no_return BEFORE UPDATE ON audit_head WHEN NEW.seq < OLD.seq
BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END;
CREATE TRIGGER IF NOT EXISTS audit_head_no_delete BEFORE DELETE ON audit_head
BEGIN SELECT RAISE(ABORT, 'the audit log only grows'); END;
CREATE TRIGGER IF NOT EXISTS audit_checkpoints_no_update BEFORE UPDATE ON audit_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints of the audit log are immutable'); END;
CREATE TRIGGER IF NOT EXISTS audit_checkpoints_no_delete BEFORE DELETE ON audit_checkpoints
BEGIN SELECT RAISE(ABORT, 'checkpoints of the audit log are immutable'); END;
