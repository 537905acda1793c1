-- +goose Up

-- No statement looks the outbox up by slot. Binaries of version 10 may run beside it.
insert into schema_compatibility values (11, 10);
drop index outbox_slot;
