-- Whether a node runs images, as its worker says.
ALTER TABLE nodes ADD COLUMN images BOOLEAN NOT NULL DEFAULT FALSE;
-- How far the preparation of an attempt is, in its worker's sentence, and what the registry calls exactly
-- the image that it runs in.
ALTER TABLE attempts ADD COLUMN progress TEXT NOT NULL DEFAULT '';
ALTER TABLE attempts ADD COLUMN image_digest TEXT;
