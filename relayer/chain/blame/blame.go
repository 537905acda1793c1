// Package blame keeps in the database what endpoints did that no honest endpoint does. An endpoint with
// a row in endpoint_faults is set aside by every instance, also after a restart, until the row is deleted.
// With them it keeps what the chain's blocks have proved once: every instance demands it from its start.
package blame

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
)

// Endpoints are those of a chain: a *chain.Source.
type Endpoints interface {
	// News is signalled after a new fault, and a new law.
	News() <-chan struct{}
	// Faults are those of all endpoints.
	Faults() []endpoint.Fault
	// SetAside has stored faults apply, and releases the endpoints whose stored fault is not among them.
	SetAside(stored []endpoint.Fault)
	// Shown are the laws that the chain's blocks have shown to be theirs.
	Shown() []string
	// Demand holds the endpoints to stored laws.
	Demand(stored []string)
}

// Keeper stores the faults of a chain's endpoints, and has them apply.
type Keeper struct {
	DB        *pgxpool.Pool
	ChainID   int64
	Endpoints Endpoints
	Log       *slog.Logger
}

// How often the table is read, for the faults that other instances found and those that were deleted;
// and how long that may take.
const every, patience = 30 * time.Second, 10 * time.Second

// Run stores each fault when it is found, and reads the table now and then, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.Endpoints.News():
		case <-ticker.C:
		}

		if err := k.Sync(ctx); err != nil && ctx.Err() == nil {
			k.Log.WarnContext(ctx, "faults of endpoints and laws of the chain not stored, trying again", slog.Any("err", err))
		}
	}
}

// insertFault stores a fault once: the first evidence of each kind stays.
const insertFault = `
    insert into endpoint_faults (chain_id, endpoint, kind, evidence)
    values (@chain, @endpoint, @kind, @evidence)
    on conflict do nothing`

// storeLaws adds laws to those of the chain. There is no row before the first start: it has shown none then.
const storeLaws = `
    update leadership
       set proves = array(select distinct unnest(proves || @shown))
     where chain_id = @chain and not proves @> @shown`

const selectLaws = `select law from leadership, unnest(proves) law where chain_id = @chain`

// selectFaults gives the faults of a chain, each with the beginning of its evidence.
const selectFaults = `
    select endpoint, kind, left(evidence, 1000) as evidence, since, true as stored
      from endpoint_faults
     where chain_id = @chain
     order by endpoint, since`

// Sync stores the new faults and laws, and has all stored ones apply.
func (k *Keeper) Sync(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, f := range k.Endpoints.Faults() {
		if f.Stored {
			continue
		}

		if _, err := k.DB.Exec(ctx, insertFault, pgx.StrictNamedArgs{"chain": k.ChainID, "endpoint": f.Endpoint,
			"kind": string(f.Kind), "evidence": f.Evidence}); err != nil {
			return fmt.Errorf("store the fault of endpoint %s: %w", f.Endpoint, err)
		}
	}

	rows, _ := k.DB.Query(ctx, selectFaults, pgx.StrictNamedArgs{"chain": k.ChainID})
	stored, err := pgx.CollectRows(rows, pgx.RowToStructByName[endpoint.Fault])
	if err != nil {
		return fmt.Errorf("read the faults of endpoints: %w", err)
	}

	k.Endpoints.SetAside(stored)

	return k.syncLaws(ctx)
}

func (k *Keeper) syncLaws(ctx context.Context) error {
	if _, err := k.DB.Exec(ctx, storeLaws, pgx.StrictNamedArgs{"chain": k.ChainID,
		"shown": append([]string{}, k.Endpoints.Shown()...)}); err != nil {
		return fmt.Errorf("store what the chain's blocks prove: %w", err)
	}

	rows, _ := k.DB.Query(ctx, selectLaws, pgx.StrictNamedArgs{"chain": k.ChainID})
	laws, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read what the chain's blocks prove: %w", err)
	}

	k.Endpoints.Demand(laws)

	return nil
}
