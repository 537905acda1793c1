-- +goose Up

-- Answered commands leave after RETENTION. What is left of one that had a nonce is a row here: what an audit compares with the chain.
--
-- Binaries of versions 2 to 7 may run beside it: they leave none, and their `audit` calls the nonces of those that left foreign.
insert into schema_compatibility values (8, 2);

create table used_nonces (
    chain_id   bigint      not null,
    nonce      bigint      not null,
    expires_at timestamptz not null,
    sender     bytea       not null,
    command_id bytea       not null,
    escrow     bytea       not null,
    factory    bytea,
    tx_hash    bytea, -- null: superseded, by a transaction without a name
    block_hash bytea,
    kind       text        not null,
    state      text        not null,
    primary key (chain_id, sender, nonce)
);

-- When a command may leave, unless something else keeps it.
create index idx_command_past on commands (chain_id, greatest(answered_at, expires_at)) where answered_at is not null;
