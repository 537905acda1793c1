-- What a consumer remembers of the relayer's messages. Package subscriber of the escrow relayer writes it.
create table if not exists escrow_messages (
    chain_id   text        not null,
    event_id   text        not null, -- empty: the mark of Prune, up to whose block_time events are forgotten
    block_time timestamptz not null, -- of the event
    applied    boolean     not null, -- the event came before its retraction, and its effect was made
    retracted  boolean     not null, -- a reorganisation removed the event: it never takes effect again
    at         timestamptz not null default now(), -- when the first message about the event came
    primary key (chain_id, event_id)
);
create index if not exists escrow_messages_at on escrow_messages (at);
