-- +goose Up

-- Progress knows what it was read with: the cursor of the factory watch, the pasts of the factories and verified_block were read with the event
-- layouts of layouts ("topic:number of indexed arguments"), as the leader of read_epoch has written. A leader that brings a further one reads again
-- what was read without it (package registry, ReadWith). Where a later epoch has led and not written, an older release may have read with fewer.
alter table leadership add column layouts text[], add column read_epoch bigint,
    add column again_block bigint not null default 0; -- up to it the second reading may find what no reader knew before: no fault of a node

create table if not exists schema_compatibility (version bigint primary key, oldest bigint not null);
insert into schema_compatibility values (4, 2);
