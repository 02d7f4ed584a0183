-- Triggers for immutable rows: transfers, prices with their withdrawals, the content of invoices, chained audit events and checkpoints. The engines spell triggers differently.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME; END $$;
CREATE OR REPLACE TRIGGER transfers_immutable BEFORE UPDATE OR DELETE ON transfers
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER prices_immutable BEFORE UPDATE OR DELETE ON prices
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER price_withdrawals_immutable BEFORE UPDATE OR DELETE ON price_withdrawals
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER invoices_final BEFORE UPDATE ON invoices
FOR EACH ROW WHEN (NEW.number <> OLD.number OR NEW.document <> OLD.document OR NEW.total_micros <> OLD.total_micros
  OR NEW.org_id <> OLD.org_id OR NEW.issued_at <> OLD.issued_at) EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER invoices_no_delete BEFORE DELETE ON invoices
FOR EACH ROW EXECUTE FUNCTION refuse_change();
-- An event of an earlier version gets its place in the chain once.
CREATE OR REPLACE TRIGGER audit_events_immutable BEFORE UPDATE ON audit_events
FOR EACH ROW WHEN (OLD.seq IS NOT NULL OR NEW.id <> OLD.id OR NEW.org_id <> OLD.org_id OR NEW.at <> OLD.at
  OR NEW.actor <> OLD.actor OR NEW.action <> OLD.action OR NEW.subject <> OLD.subject OR NEW.detail <> OLD.detail)
  EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER audit_events_no_delete BEFORE DELETE ON audit_events
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER audit_head_no_return BEFORE UPDATE ON audit_head
FOR EACH ROW WHEN (NEW.seq < OLD.seq) EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER audit_head_no_delete BEFORE DELETE ON audit_head
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER audit_checkpoints_immutable BEFORE UPDATE OR DELETE ON audit_checkpoints
FOR EACH ROW EXECUTE FUNCTION refuse_change();
-- The order of names by their bytes, as in SQLite. The index of the common schema has the order of the locale.
DROP INDEX IF EXISTS orgs_by_name;
CREATE INDEX IF NOT EXISTS orgs_by_name_bytes ON orgs (LOWER(name COLLATE "C"), id);
-- Free room in the pages for rows that each charge changes. A changed row that moves to another page needs new index
-- entries, and these would let serializable transactions of different organizations conflict.
ALTER TABLE accounts SET (fillfactor = 50);
ALTER TABLE usage_days SET (fillfactor = 70);
ALTER TABLE usage_label_days SET (fillfactor = 70);
ALTER TABLE jobs SET (fillfactor = 70);
ALTER TABLE attempts SET (fillfactor = 70);
