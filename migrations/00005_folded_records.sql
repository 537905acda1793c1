-- +goose Up

-- escrow_records is a view: the fold of an escrow's events when somebody asks. The table records keeps the last fold of the escrows whose events
-- RETENTION has removed.
--
-- Binaries of versions 2 to 4 may run beside it: what they write to records is not shown while the escrow has events, and is replaced when RETENTION
-- removes them.
insert into schema_compatibility values (5, 2);

-- An argument that is an address; null where a custom ABI has another type under its name.
-- +goose StatementBegin
create function address_of(t text) returns bytea language sql immutable parallel safe as $$
    select case when t ~ '^0x[0-9a-fA-F]{40}$' then decode(substr(t, 3), 'hex') end
$$;
-- +goose StatementEnd

-- An argument that is an integer; null where it is none, or has more digits than numeric(78, 0) holds.
-- +goose StatementBegin
create function number_of(t text) returns numeric language sql immutable parallel safe as $$
    select case when length(t) <= 80 and t ~ '^-?0*[0-9]{1,78}$' then t::numeric end
$$;
-- +goose StatementEnd

-- The last value that is not null.
-- +goose StatementBegin
create function newer(was anyelement, value anyelement) returns anyelement language sql immutable strict parallel safe as $$ select value $$;
-- +goose StatementEnd
create aggregate newest(anyelement) (sfunc = newer, stype = anyelement, parallel = safe);

-- The state of each escrow, in the columns of records. The newest event that has a value gives it; a deployment comes first, whatever its transaction
-- had emitted earlier.
create view folded_records as
    select e.chain_id, e.address as escrow, e.slot, f.*
    from escrows e cross join lateral (
        select min(block_number) filter (where type = 1) as deployed_block, newest(block_number order by at) as last_block,
               max(processed_at) as updated_at, newest(log_index order by at) as last_index,
               (count(*) filter (where type = 3))::integer as approvals,
               coalesce(newest(type - 2 order by at) filter (where type in (5, 6)), case when bool_or(type = 3) then 2 else 1 end)::smallint as status,
               newest(type order by at) as last_type, newest(occurrence order by at) as last_occurrence,
               newest(case when required between -32768 and 32767 then required::smallint end order by at) as approvals_required,
               newest(payer order by at) as payer, newest(payee order by at) as payee, newest(arbiter order by at) as arbiter,
               newest(tx_hash order by at) as last_tx, newest(amount order by at) as amount, newest(delay order by at) as release_delay,
               newest(release order by at) as release_time, newest(settled order by at) as settled_amount, newest(settled_at order by at) as settled_at,
               coalesce(string_agg(approver, '' order by at), '') as approvers
        from (
            select p.*, (p.type <> 1, p.block_number, p.log_index) as at,
                   case when p.type in (1, 2) then address_of(a.payer) end as payer, case when p.type in (1, 2) then address_of(a.payee) end as payee,
                   case when p.type in (1, 2) then address_of(a.arbiter) when p.type = 4 then address_of(a."newArbiter") end as arbiter,
                   case when p.type in (1, 2) then number_of(a.amount) end as amount, case when p.type in (1, 2) then number_of(a."releaseDelay") end as delay,
                   case when p.type in (1, 2) then number_of(a."releaseTime") end as release,
                   case when p.type in (1, 2) then number_of(a."approvalsRequired") end as required,
                   case when p.type = 3 then address_of(a.approver) end as approver,
                   case when p.type in (5, 6) then number_of(a.amount) end as settled, case when p.type in (5, 6) then number_of(a."timestamp") end as settled_at
            from events p cross join lateral json_to_record(args_json(p.args)) as a(payer text, payee text, arbiter text, "newArbiter" text, approver text,
                amount text, "releaseDelay" text, "releaseTime" text, "approvalsRequired" text, "timestamp" text)
            where p.chain_id = e.chain_id and p.escrow = e.address
            offset 0) p
        having count(*) > 0) f;

create or replace view escrow_records as
    select e.chain_id, hex(e.address) as escrow, r.slot, case r.status when 1 then 'created' when 2 then 'approved' when 3 then 'released' else 'refunded' end as status,
           hex(r.payer) as payer, hex(r.payee) as payee, hex(r.arbiter) as arbiter, r.amount::numeric(78, 0),
           r.release_delay::numeric(78, 0), r.release_time::numeric(78, 0), r.approvals_required, r.approvals,
           array(select hex(substr(r.approvers, n, 20)) from generate_series(1, length(r.approvers), 20) n order by n) as approvers,
           r.settled_amount::numeric(78, 0), r.settled_at::numeric(78, 0), r.deployed_block, event_id(r.last_tx, r.last_index, r.last_occurrence) as last_event_id,
           (select name from event_types t where t.id = r.last_type) as last_event_type, r.last_block as last_event_block, r.updated_at, e.address as escrow_key
    from escrows e cross join lateral (
        select f.slot, f.status, f.payer, f.payee, f.arbiter, f.amount, f.release_delay, f.release_time, f.approvals_required, f.approvals, f.approvers,
               f.settled_amount, f.settled_at, f.deployed_block, f.last_tx, f.last_index, f.last_occurrence, f.last_type, f.last_block, f.updated_at
        from folded_records f where f.chain_id = e.chain_id and f.escrow = e.address
        union all
        select f.slot, f.status, f.payer, f.payee, f.arbiter, f.amount, f.release_delay, f.release_time, f.approvals_required, f.approvals, f.approvers,
               f.settled_amount, f.settled_at, f.deployed_block, f.last_tx, f.last_index, f.last_occurrence, f.last_type, f.last_block, f.updated_at
        from records f where f.chain_id = e.chain_id and f.escrow = e.address
            and not exists (select from events p where p.chain_id = e.chain_id and p.escrow = e.address)) r;

create or replace view escrow_registry as
    select e.chain_id, hex(e.address) as address, e.slot, case e.status when 1 then 'active' when 2 then 'released' when 3 then 'refunded' else 'orphaned' end as status,
           e.discovered_at, e.discovered_block_number, event_id(e.tx_hash, e.log_index, e.occurrence) as event_id,
           l.chain_id is null or exists (select from events d where d.chain_id = l.chain_id and d.block_number = l.deployed_block
               and d.log_index = l.log_index and d.told) as announced, l.chain_id is null and e.status <> 4 as caught_up,
           coalesce(l.monitored, e.discovered_block_number) as last_monitored_block, e.ended_block,
           (select payer from escrow_records r where r.chain_id = e.chain_id and r.escrow_key = e.address) as payer,
           (select payee from escrow_records r where r.chain_id = e.chain_id and r.escrow_key = e.address) as payee,
           (select amount::text from escrow_records r where r.chain_id = e.chain_id and r.escrow_key = e.address) as amount,
           e.discovered_at as created_at, e.updated_at, e.address as address_key,
           (select hex(f.address) from factories f where f.chain_id = e.chain_id and f.id = e.factory) as factory
    from escrows e
    left join late_escrows l on l.chain_id = e.chain_id and l.address = e.address;

-- The keeper looks at escrows that somebody has approved.
create index events_approved on events (chain_id, block_number) include (escrow) where type = 3;
