-- Triggers for immutable rows: transfers, prices and the content of invoices. The engines spell triggers differently.
CREATE TRIGGER IF NOT EXISTS transfers_no_update BEFORE UPDATE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are immutable'); END;
CREATE TRIGGER IF NOT EXISTS transfers_no_delete BEFORE DELETE ON transfers
BEGIN SELECT RAISE(ABORT, 'transfers are immutable'); END;
CREATE TRIGGER IF NOT EXISTS prices_no_update BEFORE UPDATE ON prices
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END;
CREATE TRIGGER IF NOT EXISTS prices_no_delete BEFORE DELETE ON prices
BEGIN SELECT RAISE(ABORT, 'price versions are immutable'); END;
CREATE TRIGGER IF NOT EXISTS invoices_final BEFORE UPDATE ON invoices
WHEN NEW.number <> OLD.number OR NEW.document <> OLD.document OR NEW.total_micros <> OLD.total_micros
  OR NEW.org_id <> OLD.org_id OR NEW.issued_at <> OLD.issued_at
BEGIN SELECT RAISE(ABORT, 'invoices are final'); END;
CREATE TRIGGER IF NOT EXISTS invoices_no_delete BEFORE DELETE ON invoices
BEGIN SELECT RAISE(ABORT, 'invoices are final'); END;
