-- +goose Up

-- What each instance says of itself every two seconds, in a transaction of its own: that it is committed shows that the database takes what is
-- written, and the others read in it what the instance knows. No key refers to another table, so that no lock there delays it.
create table instance_health (
    chain_id       bigint      not null,
    instance_id    text        not null,
    reported_at    timestamptz not null,
    standing_since timestamptz,               -- no block is stored since then, though there are blocks to store; null: it goes on
    fault          text        not null default '', -- what /readyz says is wrong; empty: nothing
    fault_since    timestamptz,               -- since when something has been; null: nothing is wrong
    primary key (chain_id, instance_id)
) with (fillfactor = 50);

create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null);
insert into schema_compatibility values (6, 2); -- earlier binaries report nothing and are not judged by it

-- +goose Down
delete from schema_compatibility where version = 6;
drop table instance_health;
