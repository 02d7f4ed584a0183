-- The ledger is append-only; the engines spell triggers differently.
CREATE OR REPLACE FUNCTION refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION '% rows are immutable', TG_TABLE_NAME; END $$;
CREATE OR REPLACE TRIGGER transfers_immutable BEFORE UPDATE OR DELETE ON transfers
FOR EACH ROW EXECUTE FUNCTION refuse_change();
CREATE OR REPLACE TRIGGER prices_immutable BEFORE UPDATE OR DELETE ON prices
FOR EACH ROW EXECUTE FUNCTION refuse_change();
