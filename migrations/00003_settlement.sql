-- +goose Up

-- Binaries of version 2 may run beside this schema: what they write is stored as this version has it. These columns are
-- theirs alone, and go with a later release: commands.abandoned; first_broadcast, last_broadcast, broadcast_head,
-- broadcasts and last_error of command_attempts.
create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null);
insert into schema_compatibility values (3, 2);

alter table senders add column stranger text; -- while it is halted: somebody else's transaction, once a final block has it

-- `superseded` names the transaction that used its nonce.
alter table commands drop constraint commands_check4, add constraint commands_transaction
    check (tx_hash is null or state in ('done', 'done_late', 'reverted', 'voided', 'superseded')) not valid;

-- What was held is accepted, with a code; a nonce comes with the first transaction. So version 2's `held` is `accepted`, and
-- its `assigned` is `sent`.
-- +goose StatementBegin
create function state_of_version_3() returns trigger language plpgsql as $$
begin
    new.state := case new.state when 'held' then 'accepted' else 'sent' end;
    return new;
end $$;
-- +goose StatementEnd
create trigger state_of_version_3 before insert or update on commands
    for each row when (new.state in ('held', 'assigned')) execute function state_of_version_3();
update commands set state = state where state in ('held', 'assigned');

-- Each index of open commands has the condition of the statements that use it, word for word: else plans count on it to be selective.
drop index idx_command_waiting, idx_command_expiry, idx_command_flight;
create index idx_command_waiting on commands (chain_id, sender, next_look, seq) where state = 'accepted';
create index idx_command_expiry on commands (chain_id, sender, expires_at) where state = 'accepted';
create index idx_command_flight on commands (chain_id, sender, nonce) where state = 'sent';
create index idx_command_turn on commands (chain_id, sender, requester, next_look, seq) where state = 'accepted';
create index idx_command_cancelled on commands (chain_id, sender) where state = 'accepted' and cancel_requested;
create index idx_command_open on commands (chain_id, requester) where answered_at is null;
create index idx_command_tried on commands (chain_id, sender, answered_at) where requester = 'keeper' and code = 'would_revert';

-- +goose Down
drop index idx_command_waiting, idx_command_expiry, idx_command_flight, idx_command_tried, idx_command_turn, idx_command_cancelled, idx_command_open;
create index idx_command_waiting on commands (chain_id, sender, next_look, seq) where state in ('accepted', 'held');
create index idx_command_expiry on commands (chain_id, sender, expires_at) where state in ('accepted', 'held');
create index idx_command_flight on commands (chain_id, sender, nonce) where state in ('assigned', 'sent');
drop trigger state_of_version_3 on commands;
drop function state_of_version_3();
alter table senders drop column stranger;
