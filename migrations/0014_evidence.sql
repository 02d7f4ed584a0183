-- What was seen of a rank's process and devices, as JSON; absent when its worker cannot tell.
ALTER TABLE attempts ADD COLUMN evidence TEXT;
