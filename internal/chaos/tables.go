package chaos

import (
	"context"
	"errors"
	"fmt"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// never are rows of two columns, by what they would mean, that the database does not have once the fleet is at rest.
// $1 is the chain.
var never = map[string]string{
	"a slot with two committers": `
		select event || ' of slot ' || slot || ' by ' || writer, coalesce(owner, 'nobody') from chaos_foreign
		 where chain_id = $1 group by 1, 2`,
	"C4: answered by an event that is not stored": `
		select command_id, format('%s by event %s in block %s', state, event_id, block_hash) from commands c
		 where chain_id = $1 and state in ('done', 'done_late', 'already') and not exists (
		       select from processed_events e
		        where e.chain_id = c.chain_id and e.event_id = c.event_id and e.state = 'canonical'
		          and e.escrow = c.escrow and e.block_hash = c.block_hash
		          and e.event_type = case c.kind when 'approve' then 'Approved' when 'release' then 'EscrowReleased'
		                                         when 'refund' then 'EscrowRefunded' else 'EscrowDeployed' end
		          and (e.event_type <> 'Approved' or lower(e.args ->> 'approver') = c.sender))`,
	// The signature comes before the look at the clock, and that before the row's own time. A transaction may take 20 s
	// between two statements while the database is disturbed.
	"C6: signed for after it had expired": `
		select command_id, format('expired at %s, signed at %s', min(expires_at), min(signed_at))
		  from commands join command_attempts using (chain_id, command_id)
		 where chain_id = $1 and purpose = 'call' group by 1 having min(signed_at) > min(expires_at) + interval '20 s'`,
	"C8: refused though it is the keeper's own": `
		select command_id, code from commands where chain_id = $1 and requester = '` + send.KeeperName + `'
		   and code in (` + forbidden + `)`,
}

const escrowRecords = `
	select escrow, format('%s, %s to %s by %s, %s wei at %s, %s of %s', status, payer, payee, arbiter, amount,
	       release_time, approvals, approvals_required) from escrow_records where chain_id = $1`

// tables checks that the ledger has exactly what the chain has, and nothing that never may be.
func (r *run) tables(ctx context.Context, l *lab.Lab, truth *testchain.Truth, v *Verdict) error {
	chain := l.Chain.ChainID().Int64()
	stored, err := lab.CompareStored(ctx, r.lab.DB, truth, chain)
	if err != nil {
		return err
	}

	v.Wrong = append(v.Wrong, stored...)
	states, err := testchain.ReadStates(ctx, l.Chain.Client(), truth.To, truth.Escrows)
	if err != nil {
		return err
	}

	want := map[string]string{}
	for escrow, state := range states {
		want[lower(escrow)] = asRecord(state, truth.Events[escrow])
	}

	records, err := lab.Rows(ctx, r.lab.DB, escrowRecords, chain)
	v.differ("", "record", records, "on the chain", want)
	for says, query := range never {
		rows, failed := lab.Rows(ctx, r.lab.DB, query, chain)
		err = errors.Join(err, failed)
		for name, text := range rows {
			v.wrong("%s: %s, %s", says, name, text)
		}
	}

	return err
}

// asRecord is what the record of an escrow has to be. An escrow does not report whether it was
// released or refunded: the last event does.
func asRecord(s testchain.State, events []testchain.Entry) string {
	status := "created"
	switch {
	case s.Settled && events[len(events)-1].Name == "EscrowRefunded":
		status = "refunded"
	case s.Settled:
		status = "released"
	case s.Approvals > 0:
		status = "approved"
	}

	return fmt.Sprintf("%s, %s to %s by %s, %s wei at %s, %d of %d", status, lower(s.Payer), lower(s.Payee),
		lower(s.Arbiter), s.Amount, s.ReleaseTime, s.Approvals, s.Required)
}
