-- A message store as it is commonly built on PostgreSQL: one table of messages, streams with a version that the
-- writer expects, and one order for all.
--
-- A sequence gives positions before transactions commit, so a reader could see a later one first. Writers of one
-- category therefore take a lock that they hold until they have committed: within a category, messages become
-- visible in their order. With one category that makes an order of everything, which is what a journal has.

CREATE TABLE message (
    global_position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL UNIQUE DEFAULT gen_random_uuid(),
    category int NOT NULL,
    stream int NOT NULL,
    version bigint NOT NULL,
    kind text NOT NULL,
    data jsonb NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (category, stream, version)
);
CREATE INDEX message_of_category ON message (category, global_position);

CREATE FUNCTION append(of_category int, to_stream int, expected bigint, of_kind text, with_data jsonb) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(of_category);
    SELECT coalesce(max(version), 0) INTO found FROM message WHERE category = of_category AND stream = to_stream;
    IF found <> expected THEN
        RAISE EXCEPTION 'stream % is at version %, not %', to_stream, found, expected;
    END IF;
    INSERT INTO message (category, stream, version, kind, data)
    VALUES (of_category, to_stream, expected + 1, of_kind, with_data);
    RETURN expected + 1;
END
$$;

-- What the crate cqrs-es asks for, with its names.
CREATE TABLE events (
    aggregate_type text NOT NULL,
    aggregate_id text NOT NULL,
    sequence bigint NOT NULL CHECK (sequence >= 0),
    event_type text NOT NULL,
    event_version text NOT NULL,
    payload json NOT NULL,
    metadata json NOT NULL,
    PRIMARY KEY (aggregate_type, aggregate_id, sequence)
);
