-- +goose Up

-- The tables of the escrow relayer. Block numbers are bigint, times are timestamptz and come from this server's clock only.
-- Every key starts with chain_id: CREATE2 gives one address on several chains, and one database may serve several chains.
-- Addresses and hashes are text, 0x and lower case, so that people can query them as they read them in an explorer.

-- One row an escrow. Written by the leader of the chain; caught_up and last_monitored_block by the owner of the slot.
create table escrow_registry (
    chain_id                bigint      not null,
    address                 text        not null check (address ~ '^0x[0-9a-f]{40}$'),
    slot                    smallint    not null check (slot between 0 and 2519),
    status                  text        not null default 'active' check (status in ('active', 'released', 'refunded', 'orphaned')),
    discovered_at           timestamptz not null default now(),
    discovered_block_number bigint      not null,
    event_id                text        not null, -- of the EscrowDeployed that announced it
    announced               boolean     not null default false, -- its EscrowDeployed went into the outbox
    caught_up               boolean     not null default false, -- covered by the cursor of its slot; until then it is caught up on its own
    last_monitored_block    bigint      not null, -- while not caught up: the newest block whose events of this escrow are stored
    ended_block             bigint,               -- block of the release or refund
    payer                   text,
    payee                   text,
    amount                  text,                 -- wei, decimal
    created_at              timestamptz not null default now(),
    updated_at              timestamptz not null default now(),
    primary key (chain_id, address)
);
create index idx_escrow_status on escrow_registry (chain_id, status, address);
create index idx_escrow_discovered_block on escrow_registry (chain_id, discovered_block_number);
create index idx_escrow_late on escrow_registry (chain_id, slot) where not caught_up;

-- One row an instance. lock_key is the advisory lock that its session holds while it lives: alive means "in pg_locks, and seen lately".
create table relayer_instances (
    chain_id          bigint      not null,
    instance_id       text        not null,
    partition_number  integer     not null check (partition_number >= 0),
    total_partitions  integer     not null check (total_partitions > partition_number),
    strategy          text        not null check (strategy in ('modulo', 'consistent')),
    last_heartbeat    timestamptz not null default now(),
    current_block     bigint,     -- newest block processed
    head_block        bigint,     -- newest block that its node has
    escrows_monitored integer     not null default 0,
    status            text        not null check (status in ('active', 'stopping', 'dead')),
    lock_key          bigint      not null,
    started_at        timestamptz not null default now(),
    dead_since        timestamptz,
    version           text        not null default '',
    seen_at           timestamptz not null default now(), -- when it last looked after its slots
    able_since        timestamptz default now(), -- null while its nodes do not let it go on
    stuck_since       timestamptz,               -- null while they do
    sits_out          boolean     not null default false, -- it gave its slots up to those that can go on
    settings          jsonb       not null default '{}',  -- what the instances of a fleet have to agree on
    primary key (chain_id, instance_id),
    check ((able_since is null) <> (stuck_since is null)),
    check ((status = 'dead') = (dead_since is not null))
);
create index idx_relayer_heartbeat on relayer_instances (chain_id, last_heartbeat);

-- The right to commit for slots: an instance commits only under the epoch that its row has, and only from next_block on.
create table cursors (
    chain_id    bigint not null,
    instance_id text   not null,
    epoch       bigint not null default 1,
    next_block  bigint,          -- null while it has never held a slot
    block_hash  text,            -- of block next_block - 1; null when unknown (START_BLOCK)
    block_time  timestamptz,     -- of block next_block - 1
    generation  bigint not null default 0, -- raised by each rollback, wherever the cursor stands: what was read before it is void
    updated_at  timestamptz not null default now(),
    primary key (chain_id, instance_id)
) with (fillfactor = 50);

-- Who serves a slot. next_block and block_hash are the hand-over cursor and count only while owner is null.
create table slot_ownership (
    chain_id   bigint      not null,
    slot       smallint    not null check (slot between 0 and 2519),
    owner      text,
    next_block bigint      not null,
    block_hash text,
    since      timestamptz not null default now(), -- owned or free since then
    primary key (chain_id, slot)
);
create index idx_slot_owner on slot_ownership (chain_id, owner);

-- The right to commit discoveries, and the cursor of the factory watch. One row a chain.
create table leadership (
    chain_id       bigint primary key,
    instance_id    text,
    epoch          bigint      not null default 0, -- raised by each change of leader: the number of elections
    since          timestamptz,
    last_heartbeat timestamptz not null default now(),
    next_block     bigint      not null,
    block_hash     text,
    generation     bigint      not null default 0, -- as of cursors
    start_block    bigint      not null,
    factory        text        not null,
    verified_block bigint      not null -- every event up to this block was read twice and is stored
) with (fillfactor = 50);

-- Hashes of processed blocks (the last block of each commit), all of one branch: how the fork of a deep reorganisation is found, and how a
-- commit from another branch is.
create table chain_blocks (
    chain_id bigint not null,
    number   bigint not null,
    hash     text   not null,
    primary key (chain_id, number)
);

-- Every event once: the dedupe, and the history that records are folded from.
create table processed_events (
    chain_id              bigint      not null,
    event_id              text        not null, -- {tx_hash}:{log_index}
    event_type            text        not null,
    contract_address      text        not null, -- the emitter
    escrow                text        not null,
    slot                  smallint    not null,
    block_number          bigint      not null,
    log_index             integer     not null,
    block_hash            text        not null,
    block_timestamp       bigint      not null, -- unix seconds
    args                  json        not null, -- by ABI name, in ABI order
    state                 text        not null default 'canonical' check (state in ('canonical', 'orphaned', 'retracted')),
    retract_after         bigint,               -- an orphan that has not reappeared when the cursor passes this block is retracted
    processed_at          timestamptz not null default now(),
    processed_by_instance text        not null,
    primary key (chain_id, event_id),
    check ((state = 'canonical') = (retract_after is null))
);
create index idx_event_block on processed_events (chain_id, block_number);
create index idx_event_escrow on processed_events (chain_id, escrow, block_number, log_index);
create index idx_event_orphaned on processed_events (chain_id, retract_after) where state = 'orphaned';
create index idx_event_ended on processed_events (chain_id, processed_at) where event_type in ('EscrowReleased', 'EscrowRefunded');

-- Messages committed and not yet acknowledged by Pub/Sub. The event itself is in processed_events.
create table outbox (
    chain_id   bigint      not null,
    seq        bigint      generated always as identity,
    slot       smallint    not null,
    escrow     text        not null,
    event_id   text        not null,
    event_type text        not null,
    kind       smallint    not null default 0 check (kind in (0, 1, 2)), -- 0 event, 1 retraction, 2 replay
    created_at timestamptz not null default now(),
    primary key (chain_id, seq)
);
create index idx_outbox_escrow on outbox (chain_id, escrow, seq);

-- What a person must hear of, once for ever: a counter of a process dies with it, and an alert on its increase misses the first.
create table findings (
    chain_id     bigint      not null,
    id           bigint      generated always as identity,
    found_at     timestamptz not null default now(),
    kind         text        not null check (kind in ('deep_reorg', 'missing_event', 'extra_event')),
    block_number bigint      not null, -- the fork, or the last block of the range that was read a second time
    events       integer     not null, -- rolled back, missing or extra
    primary key (chain_id, id)
);

-- The state of each escrow: a fold of its canonical events, changed in the transaction that stores them.
create table escrow_records (
    chain_id           bigint  not null,
    escrow             text    not null,
    slot               smallint not null,
    status             text    not null check (status in ('created', 'approved', 'released', 'refunded')),
    payer              text,
    payee              text,
    arbiter            text,
    amount             numeric(78, 0), -- wei
    release_delay      numeric(78, 0), -- seconds
    release_time       numeric(78, 0), -- unix seconds
    approvals_required smallint,
    approvals          integer not null default 0, -- Approved events seen
    approvers          text[]  not null default '{}',
    settled_amount     numeric(78, 0), -- wei, of the release or refund
    settled_at         numeric(78, 0), -- unix seconds, the event's own timestamp
    deployed_block     bigint,
    last_event_id      text    not null,
    last_event_type    text    not null,
    last_event_block   bigint  not null,
    updated_at         timestamptz not null default now(),
    primary key (chain_id, escrow)
) with (fillfactor = 50); -- an update finds room beside the row and touches no index

-- +goose Down
drop table escrow_records, findings, outbox, processed_events, chain_blocks, leadership, slot_ownership, cursors, relayer_instances, escrow_registry;
