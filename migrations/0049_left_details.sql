-- The time at which the organization lost its last member; absent for the others. The details stay for its last invoice.
ALTER TABLE billing_details ADD COLUMN left_at BIGINT;
