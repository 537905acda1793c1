package chaos

import (
	"context"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// tables checks that processed_events has exactly what the chain has, and that no instance has stored an
// event to be published whose slot belonged to another.
func (r *run) tables(ctx context.Context, s side, truth *testchain.Truth, v *Verdict) error {
	want := map[string]bool{}
	for _, escrow := range truth.Escrows {
		for _, e := range truth.Events[escrow] {
			want[fmt.Sprintf("%s %s in block %s", e.ID, e.Name, e.Log.BlockHash)] = true
		}
	}

	rows, _ := r.lab.DB.Query(ctx,
		`select split_part(event_id, ':', 1) || ':' || log_index || ' ' || event_type || ' in block ' || block_hash
			from processed_events where chain_id = $1 and state = 'canonical' and block_number <= $2`, s.id(), int64(truth.To))
	stored, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}

	for _, id := range stored {
		if !want[id] {
			v.wrong("stored, but not on the chain: %s", id)
		}

		delete(want, id)
	}

	for id := range want {
		v.wrong("on the chain, but not stored: %s", id)
	}

	rows, _ = r.lab.DB.Query(ctx,
		`select format('%s of slot %s, owned by %s, was written by %s', event, slot, owner, writer) from chaos_foreign
			where chain_id = $1`, s.id())
	foreign, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}

	for _, f := range foreign {
		v.wrong("a slot with two committers: %s", f)
	}

	return nil
}

// record is a row of escrow_records, as far as an escrow can be asked for it.
type record struct {
	Status, Payer, Payee, Arbiter string
	Amount, ReleaseTime           string
	Required, Approvals           int
}

// states checks that escrow_records say what the escrows themselves say.
func (r *run) states(ctx context.Context, s side, truth *testchain.Truth, v *Verdict) error {
	states, err := testchain.ReadStates(ctx, s.chain.HTTP(), truth.To, truth.Escrows)
	if err != nil {
		return err
	}

	rows, _ := r.lab.DB.Query(ctx, `select escrow, status, coalesce(payer, ''), coalesce(payee, ''),
		coalesce(arbiter, ''), coalesce(amount::text, ''),
		coalesce(release_time::text, ''), coalesce(approvals_required, -1), approvals from escrow_records
			where chain_id = $1`, s.id())
	var escrow string
	var got record
	_, err = pgx.ForEachRow(rows, []any{&escrow, &got.Status, &got.Payer, &got.Payee, &got.Arbiter, &got.Amount,
		&got.ReleaseTime, &got.Required, &got.Approvals}, func() error {
		address := common.HexToAddress(escrow)
		state, ok := states[address]
		if !ok {
			v.wrong("a record of %s, which is no escrow", address)
			return nil
		}

		if want := asRecord(state, truth.Events[address]); got != want {
			v.wrong("record of %s is %+v, the contract says %+v", address, got, want)
		}

		delete(states, address)

		return nil
	})
	for address := range states {
		v.wrong("no record of %s", address)
	}

	return err
}

// asRecord is what the record of an escrow has to be. An escrow does not report whether it was
// released or refunded: the last event does.
func asRecord(s testchain.State, events []testchain.Entry) record {
	status := "created"
	switch {
	case s.Settled && events[len(events)-1].Name == "EscrowRefunded":
		status = "refunded"
	case s.Settled:
		status = "released"
	case s.Approvals > 0:
		status = "approved"
	}

	return record{status, lower(s.Payer), lower(s.Payee), lower(s.Arbiter), s.Amount.String(), s.ReleaseTime.String(),
		int(s.Required), int(s.Approvals)}
}
