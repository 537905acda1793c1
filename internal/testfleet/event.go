package testfleet

import (
	"cmp"
	"time"
)

// Escrow is a row of the registry.
type Escrow struct {
	Address string // what is no address is hashed into one
	Slot    int16
	Status  string        // empty: active
	Block   int64         // of its EscrowDeployed
	Late    bool          // the cursor of its slot does not vouch for it yet
	Found   time.Duration // how long ago
}

// Finds registers escrows.
func (f *Fleet) Finds(escrows ...Escrow) {
	f.t.Helper()
	for _, e := range escrows {
		f.Exec(`insert into escrow_registry (chain_id, address, slot, status, discovered_block_number, event_id, caught_up,
				last_monitored_block, discovered_at)
			values ($1, $2::text, $3, $4, $5::bigint, $2::text || ':0', $6, $5::bigint - 1, now() - $7::interval)`,
			f.Chain, e.Address, e.Slot, cmp.Or(e.Status, "active"), e.Block, !e.Late, e.Found)
	}
}

// Event is a stored event. What is no hash or address is hashed into one.
type Event struct {
	ID, Type    string
	Escrow      string // emits it too
	Slot        int16
	Block       int64
	Index       int32
	State       string        // empty: canonical
	RetractFrom int64         // for one that is not canonical: the block from which on it may be retracted
	Stored      time.Duration // how long ago
	By          string        // the instance; empty: r0
}

// Stores stores an event.
func (f *Fleet) Stores(e Event) {
	f.t.Helper()
	f.Exec(`insert into processed_events (chain_id, event_id, event_type, contract_address, escrow, slot, block_number,
			log_index, block_hash, block_timestamp, args, processed_by_instance, state, retract_after, processed_at)
		values ($1, $2, $3, $4, $4, $5, $6, $7, '', 1, '{}', $8, $9::text, case when $9 <> 'canonical' then $10::bigint end,
			now() - $11::interval)`,
		f.Chain, e.ID, e.Type, e.Escrow, e.Slot, e.Block, e.Index, cmp.Or(e.By, "r0"), cmp.Or(e.State, "canonical"),
		e.RetractFrom, e.Stored)
}

// Message is a message that waits to be published.
type Message struct {
	EventID string // of a stored event; another id names none
	Type    string // empty: Approved
	Escrow  string
	Slot    int16
	Waits   time.Duration // how long it has waited
}

// Queues puts a message into the outbox.
func (f *Fleet) Queues(m Message) {
	f.t.Helper()
	f.Exec(`insert into outbox_messages (chain_id, slot, escrow, event_id, event_type, created_at)
		values ($1, $2, $3, $4, $5, now() - $6::interval)`,
		f.Chain, m.Slot, m.Escrow, m.EventID, cmp.Or(m.Type, "Approved"), m.Waits)
}

// QueuesStored puts messages of up to n stored events into the outbox.
func (f *Fleet) QueuesStored(n int, waits time.Duration) {
	f.t.Helper()
	f.Exec(`insert into outbox_messages (chain_id, slot, escrow, event_id, event_type, created_at)
		select chain_id, slot, escrow, event_id, event_type, now() - $2::interval
		from processed_events where chain_id = $1 limit $3`, f.Chain, waits, n)
}
