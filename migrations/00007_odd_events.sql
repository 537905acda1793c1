-- +goose Up

-- What a followed contract does and the ABI does not know is a finding too. It is open until the ABI gains a layout, when the
-- blocks are read again, or until a person settles it.
alter table findings drop constraint findings_kind_check, add column detail text, add column settled_at timestamptz,
    add constraint findings_kind_check check (kind in ('deep_reorg', 'missing_event', 'extra_event', 'announced_again', 'oversized_value',
        'oversized_message', 'undecodable_event', 'unannounced_contract'));
create index findings_open on findings (chain_id, kind) where settled_at is null and kind in ('undecodable_event', 'unannounced_contract');

-- Binaries of versions 2 to 6 may run beside it: they write neither kind.
insert into schema_compatibility values (7, 2);
