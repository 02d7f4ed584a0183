-- Triggers for immutable rows: transfers, prices and the content of invoices. The engines spell triggers differently.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME; END $$;
CREATE OR REPLACE TRIGGER transfers_immutable BEFORE UPDATE OR DELETE ON transfers
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER prices_immutable BEFORE UPDATE OR DELETE ON prices
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER invoices_final BEFORE UPDATE ON invoices
FOR EACH ROW WHEN (NEW.number <> OLD.number OR NEW.document <> OLD.document OR NEW.total_micros <> OLD.total_micros
  OR NEW.org_id <> OLD.org_id OR NEW.issued_at <> OLD.issued_at) EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER invoices_no_delete BEFORE DELETE ON invoices
FOR EACH ROW EXECUTE FUNCTION refuse_change();
-- Free room in the pages for rows that each charge changes. A changed row that moves to another page needs new index
-- entries, and these would let serializable transactions of different organizations conflict.
ALTER TABLE accounts SET (fillfactor = 50);
ALTER TABLE usage_days SET (fillfactor = 70);
ALTER TABLE usage_label_days SET (fillfactor = 70);
ALTER TABLE jobs SET (fillfactor = 70);
ALTER TABLE attempts SET (fillfactor = 70);
