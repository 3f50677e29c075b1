-- Version 3. What is here may be read with any sqlite3 while the daemon runs; the daemon alone writes.
--
-- Times are microseconds since 1970 (UTC); ids are text, as everywhere.

-- One row: the key of the ids, how many of each kind were made, and which file this is (`identity.rs`): 0 in a backup.
CREATE TABLE daemon (
    id_key       INTEGER NOT NULL,
    runs         INTEGER NOT NULL,
    calls        INTEGER NOT NULL,
    interactions INTEGER NOT NULL,
    reliefs      INTEGER NOT NULL,
    instance     INTEGER NOT NULL DEFAULT 0
) STRICT;

-- Stretches of the history: a copy of a journal that goes on by itself begins one, far behind the last number.
CREATE TABLE epoch (
    first_seq INTEGER PRIMARY KEY,
    id        TEXT NOT NULL,
    begun_at  INTEGER NOT NULL,
    reason    TEXT NOT NULL
) STRICT;

-- Everything that happened. Numbers are never used twice; where some are missing, their runs were pruned.
CREATE TABLE event (
    seq     INTEGER PRIMARY KEY,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    version INTEGER NOT NULL,
    run     TEXT,
    via     TEXT NOT NULL,
    uid     INTEGER,
    by_run  TEXT,
    body    TEXT NOT NULL
) STRICT;
CREATE INDEX event_run ON event (run);

-- One row for each run. `archived` is 1 once it has left the world and is answered from here.
CREATE TABLE run (
    number          INTEGER PRIMARY KEY,
    id              TEXT NOT NULL UNIQUE,
    seq             INTEGER NOT NULL,
    owner           INTEGER NOT NULL,
    parent          TEXT,
    root            TEXT NOT NULL,
    name            TEXT,
    labels          TEXT,
    idempotency_key TEXT, -- or, as `submit-key:HEX`, the key that a client made for this submit alone
    submitted_at    INTEGER NOT NULL,
    state           TEXT,
    ended_at        INTEGER,
    archived        INTEGER NOT NULL DEFAULT 0,
    blobs           TEXT -- numbers of the texts that its events name, with a space between them
) STRICT;
CREATE INDEX run_by_end ON run (ended_at, number) WHERE state IS NOT NULL;
CREATE INDEX run_by_name ON run (name) WHERE name IS NOT NULL;
CREATE INDEX run_by_key ON run (idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE INDEX run_live ON run (number) WHERE archived = 0;
CREATE INDEX run_by_root ON run (root) WHERE parent IS NOT NULL;

-- Long texts, each once: events name them by their SHA-256 (`prompt_blob` and so on). A text above 256 KiB is not here
-- but in the file `blobs/HASH` beside the journal. A text goes with the last run that names it.
CREATE TABLE blob (
    number INTEGER PRIMARY KEY,
    hash   TEXT NOT NULL UNIQUE,
    bytes  INTEGER NOT NULL,
    uses   INTEGER NOT NULL, -- how often runs name it
    body   TEXT
) STRICT;

-- How many runs that have left the world there are in each state.
CREATE TABLE tally (
    state TEXT PRIMARY KEY,
    runs  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- What `list` shows of a run that has left the world, as JSON.
CREATE TABLE listing (
    number INTEGER PRIMARY KEY,
    view   TEXT NOT NULL
) STRICT;
