-- +goose Up

-- Progress knows what it was read with: the event layouts ("topic:number of indexed arguments") that the leader of read_epoch has
-- written (package registry, ReadWith). Where a later epoch has led and not written, an older release may have read with fewer.
alter table leadership add column layouts text[], add column read_epoch bigint,
    add column again_block bigint not null default 0; -- up to it the second reading may find what no reader knew before: no fault of a node

create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null);
insert into schema_compatibility values (4, 2);
