-- +goose Up

-- The owner of a slot stores EscrowDeployed too, from its own reading, and registers the escrow with it: one writer for all rows of a slot. A row of
-- late_escrows is for what an owner has passed without it.
--
-- Earlier binaries announce what the leader has stored, so none may run beside it: stop them first.
insert into schema_compatibility values (9, 9);

-- What was not announced yet is stored again by its owner, which announces it.
delete from events d using late_escrows l
where d.chain_id = l.chain_id and d.block_number = l.deployed_block and d.log_index = l.log_index and not d.told;

-- Whichever statement writes a row of the outbox marks its event as told.
drop trigger tell on outbox;
drop function tell;
