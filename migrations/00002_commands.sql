-- +goose Up

-- Commands to act on escrows, and their outcomes. Empty unless an instance has senders configured. Amounts are wei.

-- One row per account that acts. Its owner holds an advisory lock on its session and has raised the epoch; each write of an owner names the epoch.
create table senders (
    chain_id    bigint      not null,
    address     text        not null check (address ~ '^0x[0-9a-f]{40}$'),
    epoch       bigint      not null default 0, -- milliseconds of this server's clock, or one more than the last: unique even after a restore from a backup
    instance_id text,                           -- the owner, or the last one
    since       timestamptz,                    -- owned since
    name        text        not null default '', -- in metrics and on the page, and the limits: as the last owner's senders file has them
    lock_key    bigint      not null,           -- of the advisory lock that the owner's session holds
    max_in_flight integer   not null check (max_in_flight > 0),
    max_fee     numeric(78, 0) not null check (max_fee >= 0),
    day_fees    numeric(78, 0) not null check (day_fees >= 0),
    day_value   numeric(78, 0) not null check (day_value >= 0),
    next_nonce  bigint      check (next_nonce >= 0),  -- null until the first owner has read it from the chain
    first_nonce bigint      check (first_nonce >= 0), -- the first next_nonce: where the audit begins
    wait_final  bigint      not null default 0, -- below 0: an operator has the next nonce read from the chain again
    state       text        not null default 'active' check (state in ('active', 'paused', 'halted')),
    reason      text,                           -- why it is paused or halted, and the remedy
    spend_day   date,                           -- UTC; the next two columns are of this day
    spent_fees  numeric(78, 0) not null default 0 check (spent_fees >= 0),  -- paid, or reserved for pending attempts
    spent_value numeric(78, 0) not null default 0 check (spent_value >= 0), -- sent along by create, or reserved
    balance     numeric(78, 0),                 -- as seen at checked_block
    checked_block bigint,                       -- the newest block up to which receipts were read and answered
    updated_at  timestamptz not null default now(),
    primary key (chain_id, address),
    check ((state = 'active') = (reason is null)),
    check ((next_nonce is null) = (first_nonce is null)),
    check (next_nonce >= first_nonce)
) with (fillfactor = 50);

-- One row per accepted command, and per refused command of a known requester.
create table commands (
    chain_id     bigint      not null,
    command_id   text        primary key check (command_id ~ '^0x[0-9a-f]{64}$'), -- the EIP-712 digest, whose domain has the chain: unique on all of them
    seq          bigint      generated always as identity,
    sender       text        not null,
    kind         text        not null check (kind in ('approve', 'release', 'refund', 'create')),
    escrow       text        not null check (escrow ~ '^0x[0-9a-f]{40}$'),
    effect       text        not null, -- what it claims of the escrow: settle, create, approve:<sender>
    requester    text        not null, -- the signer; keeper: the relayer itself
    message      json        not null, -- as received
    value        numeric(78, 0) not null default 0 check (value >= 0), -- that create sends along
    max_fee      numeric(78, 0) not null check (max_fee >= 0),
    not_before   timestamptz,
    expires_at   timestamptz not null,
    reference    text        not null default '',
    reply_to     text        not null default '',
    state        text        not null check (state in ('accepted', 'held', 'assigned', 'sent',
        'done', 'done_late', 'reverted', 'voided', 'already', 'superseded', 'expired', 'cancelled', 'refused')),
    code         text        not null default '', -- why: see relayer/command
    detail       text        not null default '',
    winner       text,                  -- refused by a conflict: the command that holds the claim
    nonce        bigint      check (nonce >= 0),
    gas          bigint      check (gas > 0), -- limit of the call
    reserved     numeric(78, 0) not null default 0 check (reserved >= 0), -- worst fee of the attempts, reserved from the sender's day
    reserve_day  date,
    holds        integer     not null default 0, -- looks that found it impossible so far
    next_look    timestamptz not null default now(),
    cancel_requested boolean not null default false,
    abandoned    boolean     not null default false, -- an operator has declared that its nonce was used outside the relayer
    reopened     integer     not null default 0, -- answers that a deep reorganisation withdrew
    tx_hash      text,
    block_number bigint,
    block_hash   text,
    fee_paid     numeric(78, 0),
    event_id     text,                  -- of the event that it caused, or of the earlier event with the same effect
    received_at  timestamptz not null default clock_timestamp(),
    assigned_at  timestamptz,
    sent_at      timestamptz,
    answered_at  timestamptz,
    unique (chain_id, sender, nonce),
    unique (chain_id, sender, nonce, command_id),
    check (nonce is null or state in ('assigned', 'sent', 'done', 'done_late', 'reverted', 'voided', 'superseded')),
    check (nonce is not null or state not in ('assigned', 'sent', 'done', 'done_late', 'reverted', 'voided', 'superseded')),
    check ((answered_at is null) = (state in ('accepted', 'held', 'assigned', 'sent'))),
    check (reserved <= max_fee),
    check (tx_hash is null or state in ('done', 'done_late', 'reverted', 'voided'))
) with (fillfactor = 70);
create index idx_command_waiting on commands (chain_id, sender, next_look, seq) where state in ('accepted', 'held');
create index idx_command_expiry on commands (chain_id, sender, expires_at) where state in ('accepted', 'held');
create index idx_command_flight on commands (chain_id, sender, nonce) where state in ('assigned', 'sent');
create index idx_command_answered on commands (chain_id, block_number) where block_number is not null;
create index idx_command_escrow on commands (escrow, seq);
create index idx_command_received on commands (seq);
create index idx_command_keeper on commands (chain_id, sender, received_at) where requester = 'keeper';

-- The command that may have an effect on an escrow: the first accepted one, until it ends without that effect.
create table command_claims (
    chain_id   bigint not null,
    escrow     text   not null,
    effect     text   not null,
    command_id text   not null,
    primary key (chain_id, escrow, effect),
    -- By the id alone: until the table is analyzed, the check of a key with chain_id may use any index that begins with it, and read all rows.
    foreign key (command_id) references commands deferrable initially deferred
);
create index idx_claim_command on command_claims (command_id);

-- Everything that was signed. A row is committed before its bytes leave the process; every attempt at a nonce belongs to the command that has it.
create table command_attempts (
    chain_id    bigint   not null,
    sender      text     not null,
    nonce       bigint   not null,
    attempt     integer  not null check (attempt > 0),
    command_id  text     not null,
    purpose     text     not null check (purpose in ('call', 'void')), -- void: a transfer of 0 wei to itself, which uses the nonce up
    tx_hash     text     not null check (tx_hash ~ '^0x[0-9a-f]{64}$'),
    raw         bytea    not null,
    gas         bigint   not null check (gas > 0),
    fee_cap     numeric(78, 0) not null check (fee_cap > 0), -- per gas; of a legacy transaction its gas price
    tip_cap     numeric(78, 0), -- null: a legacy transaction
    epoch       bigint   not null,
    signed_at   timestamptz not null default clock_timestamp(),
    head        bigint   not null, -- the head when it was signed
    first_broadcast timestamptz,
    last_broadcast  timestamptz,
    broadcast_head  bigint,          -- the head at the last broadcast
    broadcasts      integer not null default 0,
    last_error  text not null default '', -- what the endpoints answered to the last broadcast, if all refused it: for people
    primary key (chain_id, sender, nonce, attempt),
    unique (chain_id, tx_hash),
    foreign key (chain_id, sender, nonce, command_id) references commands (chain_id, sender, nonce, command_id)
);

-- Answers that were committed and wait for the acknowledgement of Pub/Sub: the outbox of the way back. The rows of one command are published in order of seq.
create table replies (
    chain_id   bigint      not null,
    seq        bigint      generated always as identity,
    token      bigint      not null default random() * 9e18, -- a row is deleted by both, as in outbox
    command_id text        not null, -- ordering key; empty, hence unordered, for a message that is no command
    state      text        not null,
    code       text        not null,
    reply_to   text        not null default '',
    body       json        not null,
    created_at timestamptz not null default now(),
    primary key (chain_id, seq)
);
create index replies_command on replies (chain_id, command_id, seq);

-- +goose Down
drop table replies, command_attempts, command_claims, commands, senders;
