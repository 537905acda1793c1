package testpg

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Words lets a test write rows of the narrow tables in the words of the views: insert into
// processed_events, escrow_registry, escrow_records and outbox_messages. What is no address or hash
// is hashed into one.
func Words(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	_, err := db.Exec(t.Context(), words)
	require.NoError(t, err)
}

const words = `
create function word(t text, n integer) returns bytea language sql as $$
	select case when t ~ ('^0x[0-9a-fA-F]{' || 2 * n || '}(:.*)?$') then bytes(lower(t)) else substr(sha256(convert_to(coalesce(t, ''), 'utf8')), 1, n) end $$;
create function type_of(t text) returns smallint language plpgsql as $$
	declare n smallint;
	begin
		insert into event_types select max(id) + 1, t from event_types on conflict (name) do nothing;
		select id into n from event_types where name = t;
		return n;
	end $$;
create function writer_of(t text) returns integer language plpgsql as $$
	declare n integer;
	begin
		insert into writers (name) values (coalesce(t, '')) on conflict (name) do nothing;
		select id into n from writers where name = coalesce(t, '');
		return n;
	end $$;

create function write_event() returns trigger language plpgsql as $$
	declare emitter bytea := nullif(word(new.contract_address, 20), word(new.escrow, 20));
	begin
		if coalesce(new.state, 'canonical') = 'canonical' then
			insert into events (chain_id, block_number, block_time, processed_at, log_index, writer, type, slot, told, apart, block_hash, tx_hash, escrow, emitter, args)
			values (new.chain_id, new.block_number, new.block_timestamp, coalesce(new.processed_at, now()), new.log_index, writer_of(new.processed_by_instance),
			        type_of(new.event_type), new.slot, true, true, word(new.block_hash, 32), word(new.event_id, 32), word(new.escrow, 20), emitter, new.args);
		else
			insert into orphaned_events (chain_id, block_number, block_time, retract_after, processed_at, log_index, writer, type, slot, occurrence, state, block_hash, tx_hash, escrow, emitter, args)
			values (new.chain_id, new.block_number, new.block_timestamp, coalesce(new.retract_after, 0), coalesce(new.processed_at, now()), new.log_index,
			        writer_of(new.processed_by_instance), type_of(new.event_type), new.slot, 0, case new.state when 'orphaned' then 1 else 3 end,
			        word(new.block_hash, 32), word(new.event_id, 32), word(new.escrow, 20), emitter, new.args);
		end if;
		return new;
	end $$;
create trigger words instead of insert on processed_events for each row execute function write_event();

create function write_escrow() returns trigger language plpgsql as $$
	declare index integer := coalesce(nullif(substring(new.event_id from ':(\d+)$'), '')::integer, 0);
	begin
		insert into escrows (chain_id, discovered_block_number, ended_block, discovered_at, log_index, slot, status, address, tx_hash, factory)
		values (new.chain_id, new.discovered_block_number, new.ended_block, coalesce(new.discovered_at, now()), index, new.slot,
		        array_position(array['active', 'released', 'refunded', 'orphaned'], coalesce(new.status, 'active')), word(new.address, 20), word(new.event_id, 32), 1);
		if not coalesce(new.caught_up, false) and coalesce(new.status, 'active') <> 'orphaned' then
			insert into late_escrows (chain_id, deployed_block, monitored, since, log_index, slot, address)
			values (new.chain_id, new.discovered_block_number, new.last_monitored_block, coalesce(new.discovered_at, now()), index, new.slot,
			        word(new.address, 20));
		end if;
		if new.payer is not null then
			insert into records (chain_id, last_block, last_index, slot, status, last_type, escrow, payer, payee, last_tx, amount)
			values (new.chain_id, new.discovered_block_number, index, new.slot, 1, 1, word(new.address, 20), bytes(new.payer), bytes(new.payee),
			        word(new.event_id, 32), new.amount::numeric);
		end if;
		return new;
	end $$;
create trigger words instead of insert on escrow_registry for each row execute function write_escrow();

create function write_record() returns trigger language plpgsql as $$
	begin
		delete from records where chain_id = new.chain_id and escrow = word(new.escrow, 20);
		insert into records (chain_id, deployed_block, last_block, last_index, approvals, slot, status, last_type, approvals_required, escrow, payer, payee, arbiter,
		                     last_tx, amount, release_delay, release_time, settled_amount, settled_at, approvers)
		values (new.chain_id, new.deployed_block, new.last_event_block, coalesce(nullif(substring(new.last_event_id
			from ':(\d+)$'), '')::integer, 0),
		        coalesce(new.approvals, 0), new.slot, array_position(array['created', 'approved', 'released', 'refunded'], new.status), type_of(new.last_event_type),
		        new.approvals_required, word(new.escrow, 20), bytes(new.payer), bytes(new.payee), bytes(new.arbiter), word(new.last_event_id, 32), new.amount,
		        new.release_delay, new.release_time, new.settled_amount, new.settled_at,
		        coalesce((select string_agg(bytes(a), '' order by n)
			from unnest(new.approvers) with ordinality as u(a, n)), ''));
		return new;
	end $$;
create trigger words instead of insert on escrow_records for each row execute function write_record();

create function write_message() returns trigger language plpgsql as $$
	declare e record;
	begin
		select block_number, log_index, orphan into e from processed_events p where p.chain_id = new.chain_id
			and p.event_id = new.event_id limit 1;
		insert into outbox (chain_id, block_number, log_index, orphan, created_at, slot, kind, escrow, event_type)
		values (new.chain_id, coalesce(e.block_number, 0), coalesce(e.log_index, 0), e.orphan, coalesce(new.created_at, now()), new.slot,
		        coalesce(array_position(array['event', 'retraction', 'replay'], new.kind), 1) - 1, word(new.escrow, 20), new.event_type);
		return new;
	end $$;
create trigger words instead of insert on outbox_messages for each row execute function write_message();
`
