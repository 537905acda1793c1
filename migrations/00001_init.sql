-- +goose Up

-- The tables of the escrow relayer. Block numbers are bigint; times are timestamptz, always of this server's clock. Every key starts with chain_id:
-- CREATE2 gives one address on several chains, and one database may serve several chains.
--
-- What grows with the chain (events, escrows, records) is narrow: addresses and hashes are bytea, names are numbers. The views at the end of this
-- file show people the same data as text, as an explorer does: processed_events, escrow_registry, escrow_records. Each view also has the narrow
-- column of its key (escrow_key, address_key, tx_key): a condition on that column uses the index.

-- Names of events, as numbers. The first six are fixed, since an index names two of them; others of a configured ABI are added when they first occur.
create table event_types (
    id   smallint primary key,
    name text not null unique
);
insert into event_types values (1, 'EscrowDeployed'), (2, 'EscrowCreated'), (3, 'Approved'), (4, 'ArbiterChanged'), (5, 'EscrowReleased'), (6, 'EscrowRefunded');

-- Instances that have stored events, as numbers.
create table writers (
    id   integer generated always as identity primary key,
    name text not null unique
);

-- The contracts whose deployments are followed. A factory that is added behind the cursor of the factory watch has a past to be read beside it: its
-- deployments from past_block up to until_block, exclusive.
create table factories (
    chain_id      bigint      not null,
    start_block   bigint      not null, -- first block whose deployments are followed
    retired_block bigint,               -- first block whose deployments are not
    past_block    bigint,               -- next block of its past; null: all of it is read
    until_block   bigint,
    added_at      timestamptz not null default now(),
    id            smallint    not null check (id between 1 and 200), -- in escrows
    address       bytea       not null check (length(address) = 20),
    primary key (chain_id, address),
    unique (chain_id, id),
    check ((past_block is null) = (until_block is null) and past_block < until_block)
);

-- One row per escrow. Written by the leader of the chain, and by the owner of the slot when the escrow ends.
create table escrows (
    chain_id                bigint      not null,
    discovered_block_number bigint      not null, -- with log_index: the EscrowDeployed that announced it
    ended_block             bigint,               -- block of the release or refund
    discovered_at           timestamptz not null default now(),
    updated_at              timestamptz not null default now(),
    log_index               integer     not null,
    slot                    smallint    not null,
    status                  smallint    not null default 1, -- 1 active, 2 released, 3 refunded, 4 orphaned
    occurrence              smallint    not null default 0, -- as of events
    factory                 smallint    not null,           -- id in factories
    address                 bytea       not null,
    tx_hash                 bytea       not null,
    primary key (chain_id, address)
) with (fillfactor = 70); -- an ending finds room beside the row and touches no index

-- The escrows outside the cursor of their slot: newly discovered ones, and those that came back after a reorganisation. The owner of the slot
-- announces them (their EscrowDeployed goes into the outbox, unless it was published before), catches them up, and removes the row.
create table late_escrows (
    chain_id       bigint      not null,
    deployed_block bigint      not null, -- with log_index: its EscrowDeployed
    monitored      bigint      not null, -- newest block whose events of this escrow are stored
    since          timestamptz not null default now(),
    log_index      integer     not null,
    slot           smallint    not null,
    address        bytea       not null,
    primary key (chain_id, address)
);

-- One row per instance. lock_key is the advisory lock that its session holds while it lives: alive means "in pg_locks, and seen lately".
create table relayer_instances (
    chain_id          bigint      not null,
    instance_id       text        not null,
    partition_number  integer     not null check (partition_number >= 0),
    total_partitions  integer     not null check (total_partitions > partition_number),
    strategy          text        not null check (strategy in ('modulo', 'consistent')),
    last_heartbeat    timestamptz not null default now(),
    current_block     bigint,     -- newest block processed
    head_block        bigint,     -- newest block that its node has
    head_time         timestamptz, -- of that block, by the chain
    target_time       timestamptz, -- of the newest block that it may process, by the chain
    trust             text check (trust in ('proved', 'agreed by 2', 'believed')), -- how it knows the newest blocks that it may process; null until it does
    escrows_monitored integer     not null default 0,
    status            text        not null check (status in ('active', 'stopping', 'dead')),
    lock_key          bigint      not null,
    started_at        timestamptz not null default now(),
    dead_since        timestamptz,
    left_at           timestamptz, -- when it stopped cleanly; null while it runs, and when it died
    version           text        not null default '',
    seen_at           timestamptz not null default now(), -- when it last looked after its slots
    able_since        timestamptz default now(), -- null while its nodes block it
    stuck_since       timestamptz,               -- null while it can process blocks
    sits_out          boolean     not null default false, -- it has left its slots to instances that can go on
    settings          jsonb       not null default '{}',  -- what the instances of a fleet must agree on
    primary key (chain_id, instance_id),
    check ((able_since is null) <> (stuck_since is null)),
    check ((status = 'dead') = (dead_since is not null))
);
create index idx_relayer_heartbeat on relayer_instances (chain_id, last_heartbeat);

-- The right to commit for slots: an instance commits only under the epoch of its row, and only from next_block on.
create table cursors (
    chain_id    bigint not null,
    instance_id text   not null,
    epoch       bigint not null default 1,
    next_block  bigint,          -- null until it holds its first slot
    block_hash  text,            -- of block next_block - 1; null when unknown (START_BLOCK)
    block_time  timestamptz,     -- of block next_block - 1
    generation  bigint not null default 0, -- raised by each rollback, wherever the cursor is: data read earlier is void
    updated_at  timestamptz not null default now(),
    primary key (chain_id, instance_id)
) with (fillfactor = 50);

-- The owners of slots. next_block and block_hash are the hand-over cursor and count only while owner is null.
create table slot_ownership (
    chain_id   bigint      not null,
    slot       smallint    not null check (slot between 0 and 2519),
    owner      text,
    next_block bigint      not null,
    block_hash text,
    since      timestamptz not null default now(), -- owned or free since then
    doubt_seq  bigint      not null default 0, -- for a metric: an owner that ended without a release may have published the rows up to this seq
    primary key (chain_id, slot)
);
create index idx_slot_owner on slot_ownership (chain_id, owner);

-- The right to commit discoveries, and the cursor of the factory watch. One row per chain.
create table leadership (
    chain_id       bigint primary key,
    instance_id    text,
    lock_key       bigint,                         -- of the advisory lock that its session holds; null until the first leader
    epoch          bigint      not null default 0, -- raised by each change of leader: the number of elections
    since          timestamptz,
    last_heartbeat timestamptz not null default now(),
    next_block     bigint      not null,
    block_hash     text,
    block_time     timestamptz, -- of block next_block - 1
    generation     bigint      not null default 0, -- as of cursors
    start_block    bigint      not null,
    verified_block bigint      not null, -- every event up to this block was read twice and is stored
    proves         text[]      not null default '{}' -- what blocks of the chain have proved once, by words of the relayer: endpoints are held to it
) with (fillfactor = 50);

-- Hashes of processed blocks (the last block of each commit), all of one branch. They locate the fork of a deep reorganisation, and expose a commit
-- from another branch.
create table chain_blocks (
    chain_id bigint not null,
    number   bigint not null,
    hash     text   not null,
    primary key (chain_id, number)
);

-- Every canonical event once: the dedupe, and the history that records are folded from. An event is (block hash, log index). The key is equivalent,
-- since one branch has one block per height; a row of another branch shows as a conflict with a different block_hash.
--
-- Looked up by escrow: events_escrow, about 0.1 ms. By transaction, and so by event_id: events_tx, a bloom filter for each 128 pages, which is nearly
-- free to maintain; a lookup reads the filters and the pages that may match: milliseconds for a million events, a second for a hundred million.
create table events (
    chain_id     bigint      not null,
    block_number bigint      not null,
    block_time   bigint      not null, -- unix seconds
    processed_at timestamptz not null default now(),
    log_index    integer     not null,
    writer       integer     not null, -- of writers
    type         smallint    not null, -- of event_types
    slot         smallint    not null,
    occurrence   smallint    not null default 0, -- how many other contents had {tx_hash}:{log_index} before; above 0 it is part of event_id
    told         boolean     not null, -- an outbox row was written for it, so its message may have been published. See tell
    block_hash   bytea       not null,
    tx_hash      bytea       not null,
    escrow       bytea       not null,
    emitter      bytea,                -- null: the escrow
    args         text        not null, -- JSON, by ABI name, in ABI order
    primary key (chain_id, block_number, log_index)
);
create index events_escrow on events (chain_id, escrow);
create index events_tx on events using brin (tx_hash bytea_bloom_ops) with (pages_per_range = 128);
create index events_ended on events (chain_id, processed_at) where type in (5, 6);

-- Published events that a reorganisation removed. An event returns under its event_id only with equal content and while it is 'orphaned'. The rows
-- stay: they keep each event_id bound to one content.
create table orphaned_events (
    id            bigint      generated always as identity primary key,
    chain_id      bigint      not null,
    block_number  bigint      not null,
    block_time    bigint      not null,
    retract_after bigint      not null, -- once the cursor passes this block, the event is lost
    processed_at  timestamptz not null,
    orphaned_at   timestamptz not null default now(),
    log_index     integer     not null,
    writer        integer     not null,
    type          smallint    not null,
    slot          smallint    not null,
    occurrence    smallint    not null,
    -- 1 orphaned: may reappear. 2 lost: final, and retracted once its outbox rows are gone. 3 retracted: a retraction was queued.
    state         smallint    not null check (state between 1 and 3),
    block_hash    bytea       not null,
    tx_hash       bytea       not null,
    escrow        bytea       not null,
    emitter       bytea,
    args          text        not null
);
create index orphaned_events_tx on orphaned_events (chain_id, tx_hash, log_index);
create index orphaned_events_place on orphaned_events (chain_id, block_number, log_index);
create index orphaned_events_escrow on orphaned_events (chain_id, escrow);
create index orphaned_events_open on orphaned_events (chain_id, retract_after) where state <= 2;

-- Messages that were committed and wait for the acknowledgement of Pub/Sub. The event is the one at (block_number, log_index) in events, or the one
-- in orphaned_events. The owner of the slot is the only writer of its rows, one commit after the other: seq is the order of its commits.
create table outbox (
    chain_id     bigint      not null,
    seq          bigint      generated always as identity,
    block_number bigint      not null,
    orphan       bigint,               -- id in orphaned_events; null: the event is canonical
    token        bigint      not null default random() * 9e18, -- drawn by the commit. A row is deleted by seq and token, since a server that lost rows
                                                                -- reuses their seq
    created_at   timestamptz not null default now(),
    log_index    integer     not null,
    slot         smallint    not null,
    kind         smallint    not null default 0 check (kind in (0, 1, 2)), -- 0 event, 1 retraction, 2 replay
    escrow       bytea       not null,
    event_type   text        not null,
    primary key (chain_id, seq)
);
create index outbox_escrow on outbox (chain_id, escrow, seq); -- a key's rows, in order
create index outbox_slot on outbox (chain_id, slot, seq); -- the same if the key is the slot
create index outbox_orphan on outbox (orphan) where orphan is not null;

-- An event with an outbox row counts as told, whichever statement writes the row. The settings force a lookup of each event by its key, whatever the
-- planner expects.
-- +goose StatementBegin
create function tell() returns trigger language plpgsql set enable_hashjoin to off set enable_mergejoin to off set enable_seqscan to off as $$
begin
    update events e set told = true from added a
    where a.orphan is null and not e.told and e.chain_id = a.chain_id and e.block_number = a.block_number and e.log_index = a.log_index;
    return null;
end $$;
-- +goose StatementEnd
create trigger tell after insert on outbox referencing new table as added for each statement execute function tell();

-- What the owner of a slot should put into the outbox, for a replay or for the verifier: its next commit does so, in the order of id.
create table requests (
    chain_id     bigint   not null,
    id           bigint   generated always as identity,
    block_number bigint   not null, -- with log_index and escrow: the event
    log_index    integer  not null,
    slot         smallint not null,
    kind         smallint not null check (kind in (0, 2)), -- as of outbox: 0 publishes an event for the first time, 2 replays it
    escrow       bytea    not null,
    primary key (chain_id, id)
);

-- Identifies what the server remembers: Postgres empties an unlogged table when it recovers from a crash and when a standby is promoted, which is
-- when acknowledged commits may be lost and their numbers reused. Each session that finds the table empty draws a new id.
create unlogged table memory (
    one boolean primary key default true check (one),
    id  uuid not null default gen_random_uuid()
);

-- What a person must see, kept for ever: a counter ends with its process, and an alert on its increase misses the first one.
create table findings (
    chain_id     bigint      not null,
    id           bigint      generated always as identity,
    found_at     timestamptz not null default now(),
    kind         text        not null check (kind in ('deep_reorg', 'missing_event', 'extra_event', 'announced_again', 'oversized_value', 'oversized_message')),
    block_number bigint      not null, -- the fork, or the last block of the range that was read or stored
    events       integer     not null, -- rolled back, missing, extra, announced again or oversized
    primary key (chain_id, id)
);

-- Proven faults of an endpoint of RPC_URLS. Every instance prefers other endpoints, also after a restart, until the row is deleted.
create table endpoint_faults (
    chain_id bigint      not null,
    since    timestamptz not null default now(),
    endpoint text        not null, -- scheme and host, as in the metrics
    kind     text        not null check (kind in ('oversized', 'lie')),
    evidence text        not null, -- what it answered, or what proves it wrong
    primary key (chain_id, endpoint, kind)
);

-- The state of each escrow: a fold of its canonical events, changed in the transaction that stores them.
create table records (
    chain_id           bigint      not null,
    deployed_block     bigint,
    last_block         bigint      not null, -- the last event
    updated_at         timestamptz not null default now(),
    last_index         integer     not null,
    approvals          integer     not null default 0, -- Approved events seen
    slot               smallint    not null,
    status             smallint    not null, -- 1 created, 2 approved, 3 released, 4 refunded
    last_type          smallint    not null,
    last_occurrence    smallint    not null default 0,
    approvals_required smallint,
    escrow             bytea       not null,
    payer              bytea,
    payee              bytea,
    arbiter            bytea,
    last_tx            bytea       not null,
    amount             numeric(78, 0), -- wei
    release_delay      numeric(78, 0), -- seconds
    release_time       numeric(78, 0), -- unix seconds
    settled_amount     numeric(78, 0), -- wei, of the release or refund
    settled_at         numeric(78, 0), -- unix seconds, the event's own timestamp
    approvers          bytea       not null default '', -- addresses, concatenated
    primary key (chain_id, escrow)
) with (fillfactor = 50); -- an update finds room beside the row and touches no index

-- +goose StatementBegin
create function hex(b bytea) returns text language sql immutable strict parallel safe as $$ select '0x' || encode(b, 'hex') $$;
-- +goose StatementEnd

-- Text pasted from an explorer or a message, as in the narrow columns: an address, a hash, or the hash of an event_id. For example select * from
-- processed_events where tx_key = bytes('0x12…:5').
-- +goose StatementBegin
create function bytes(t text) returns bytea language sql immutable strict parallel safe as $$ select decode(split_part(substr(t, 3), ':', 1), 'hex') $$;
-- +goose StatementEnd

-- event_id is {tx_hash}:{log_index}; if other contents had that id before, their number is appended.
-- +goose StatementBegin
create function event_id(tx_hash bytea, log_index integer, occurrence smallint) returns text language sql immutable parallel safe as $$
    select '0x' || encode(tx_hash, 'hex') || ':' || log_index || case when occurrence = 0 then '' else ':' || occurrence end
$$;
-- +goose StatementEnd

-- The secret of this schema, from which the keys of its advisory locks derive: a login that cannot read it cannot predict a key, and two schemas of
-- one database have different keys. Only the services' login may read it.
create table lock_identity (secret uuid not null default gen_random_uuid());
create unique index on lock_identity ((true));
insert into lock_identity default values;

-- Locks whose key an unprivileged login has held: each turn gives the lock another key.
create table lock_turns (
    chain_id bigint  not null,
    purpose  text    not null,
    name     text    not null,
    turn     integer not null,
    passed   bigint  not null, -- the key that the unprivileged login held
    primary key (chain_id, purpose, name)
);

-- A change of the ownership of a chain's slots locks its row until the transaction ends. A row instead of an advisory lock: it takes a grant to lock
-- it.
create table ownership_lock (chain_id bigint primary key);

-- The key of an advisory lock: 24 bits for the purpose, then 40 for the lock (package election lists the purposes).
-- +goose StatementBegin
create function lock_key(of_purpose text, of_chain bigint, of_name text) returns bigint language sql stable as $$
    select ('x' || encode(substr(sha256(convert_to(concat_ws('/', i.secret, of_purpose), 'UTF8')), 1, 3)
                       || substr(sha256(convert_to(concat_ws('/', i.secret, of_purpose, of_chain, coalesce(t.turn, 0), of_name), 'UTF8')), 1, 5), 'hex'))::bit(64)::bigint
    from lock_identity i left join lock_turns t on t.chain_id = of_chain and t.purpose = of_purpose and t.name = of_name
$$;
-- +goose StatementEnd

-- The 64-bit advisory locks that sessions hold in this database, by key, and which of them are ours: those of logins that may change the table
-- leadership. Every login may take an advisory lock, so pg_locks alone proves little. A function can be called without a grant.
-- +goose StatementBegin
create function all_locks() returns table (key bigint, pid integer, ours boolean, login name, application text) language sql stable as $$
    select l.classid::bigint << 32 | l.objid::bigint, l.pid, has_table_privilege(a.usesysid, 'leadership', 'update'), a.usename, a.application_name
    from pg_locks l join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.granted and l.objsubid = 1 and l.database = (select oid from pg_database where datname = current_database())
$$;
-- +goose StatementEnd

-- Ours alone: they show which instances are alive and which one leads.
-- +goose StatementBegin
create function held_locks() returns table (key bigint, pid integer) language sql stable as $$ select key, pid from all_locks() where ours $$;
-- +goose StatementEnd

-- Every event, canonical or removed by a reorganisation, as it is stored; an index finds it by place (chain_id, block_number, log_index), escrow or
-- tx_hash.
create view stored_events as
    select chain_id, block_number, log_index, null::bigint as orphan, 'canonical' as state, null::bigint as retract_after, type, slot, occurrence, told,
           block_hash, block_time, tx_hash, escrow, coalesce(emitter, escrow) as emitter, args, processed_at, writer
    from events
    union all
    select chain_id, block_number, log_index, id, case when state <= 2 then 'orphaned' else 'retracted' end, retract_after, type, slot, occurrence, true,
           block_hash, block_time, tx_hash, escrow, coalesce(emitter, escrow), args, processed_at, writer
    from orphaned_events;

-- Arguments for queries. The type json keeps the escape \u0000 and fails at each ->> over it, so it becomes the replacement character here; the
-- column args of the tables has the original. An escape counts where the number of backslashes before its u is odd.
-- +goose StatementBegin
create function args_json(args text) returns json language sql immutable strict parallel safe as $$
    select case when position('\u0000' in args) = 0 then args else regexp_replace(args, '(?<!\\)((?:\\\\)*)\\u0000', '\1\ufffd', 'g') end::json
$$;
-- +goose StatementEnd

create view processed_events as
    select chain_id, event_id(tx_hash, log_index, occurrence) as event_id, (select name from event_types t where t.id = type) as event_type,
           hex(emitter) as contract_address, hex(escrow) as escrow, slot, block_number, log_index, hex(block_hash) as block_hash,
           block_time as block_timestamp, args_json(args) as args, state, retract_after, processed_at,
           (select name from writers w where w.id = writer) as processed_by_instance, hex(tx_hash) as transaction_hash,
           escrow as escrow_key, tx_hash as tx_key, orphan
    from stored_events;

create view escrow_registry as
    select e.chain_id, hex(e.address) as address, e.slot, case e.status when 1 then 'active' when 2 then 'released' when 3 then 'refunded' else 'orphaned' end as status,
           e.discovered_at, e.discovered_block_number, event_id(e.tx_hash, e.log_index, e.occurrence) as event_id,
           l.chain_id is null or exists (select from events d where d.chain_id = l.chain_id and d.block_number = l.deployed_block
               and d.log_index = l.log_index and d.told) as announced, l.chain_id is null and e.status <> 4 as caught_up,
           coalesce(l.monitored, e.discovered_block_number) as last_monitored_block, e.ended_block,
           hex(r.payer) as payer, hex(r.payee) as payee, r.amount::text as amount, e.discovered_at as created_at, e.updated_at, e.address as address_key,
           (select hex(f.address) from factories f where f.chain_id = e.chain_id and f.id = e.factory) as factory
    from escrows e
    left join late_escrows l on l.chain_id = e.chain_id and l.address = e.address
    left join records r on r.chain_id = e.chain_id and r.escrow = e.address;

create view escrow_records as
    select chain_id, hex(escrow) as escrow, slot, case status when 1 then 'created' when 2 then 'approved' when 3 then 'released' else 'refunded' end as status,
           hex(payer) as payer, hex(payee) as payee, hex(arbiter) as arbiter, amount, release_delay, release_time, approvals_required, approvals,
           array(select hex(substr(approvers, n, 20)) from generate_series(1, length(approvers), 20) n order by n) as approvers, settled_amount, settled_at, deployed_block,
           event_id(last_tx, last_index, last_occurrence) as last_event_id, (select name from event_types t where t.id = last_type) as last_event_type,
           last_block as last_event_block, updated_at, escrow as escrow_key
    from records;

-- What waits for Pub/Sub, with its event.
create view outbox_messages as
    select o.chain_id, o.seq, o.slot, hex(o.escrow) as escrow, event_id(p.tx_hash, p.log_index, p.occurrence) as event_id, o.event_type,
           case o.kind when 0 then 'event' when 1 then 'retraction' else 'replay' end as kind, o.created_at, o.block_number, o.log_index, p.state, args_json(p.args) as args
    from outbox o left join stored_events p on p.chain_id = o.chain_id and p.block_number = o.block_number and p.log_index = o.log_index
                                            and p.orphan is not distinct from o.orphan;

-- +goose Down
drop view outbox_messages, escrow_records, escrow_registry, processed_events, stored_events;
drop function held_locks, all_locks, lock_key, args_json, event_id, bytes, hex;
drop table memory, records, endpoint_faults, findings, requests, outbox, orphaned_events, events, chain_blocks, leadership, slot_ownership, cursors, relayer_instances, late_escrows, escrows, factories, writers, event_types,
    lock_identity, lock_turns, ownership_lock;
drop function tell;
