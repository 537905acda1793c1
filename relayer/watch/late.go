package watch

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
)

// discoveryPoll is how often the factory cursor is looked at while a commit waits for it; notifications come sooner.
const discoveryPoll = 100 * time.Millisecond

// noteEvery is how often the progress of catching up is written: what a restart reads again.
const noteEvery = 5 * time.Second

// admission finds new escrows and lets them into the book. Its fields belong to the goroutine of
// the watch; complete and gaveUpAt say what was seen of the factory cursor, told that it has moved
// since.
type admission struct {
	slotState

	told     bool  // the factory watch has committed since new escrows were looked for
	gaveUpAt int64 // factory cursor at which the wait for discovery was given up; 0: it was not
	complete int64 // escrows that are deployed below this block are in the book, if they are ours
}

// discover waits until the registry is complete up to the batch's last block, or DiscoveryWait, and
// deals with the escrows it brought; a quiet block brings none. Those behind the cursor are caught up
// here, once what was gathered before is stored. It returns those which join with the batch: their
// first block is at the cursor or above, and the batch was read by topics, so that it has their logs.
func (w *admission) discover(ctx context.Context, batch *chain.Batch, line *overlap) ([]registry.Late, error) {
	if int64(batch.To) < w.complete || isQuiet(batch) {
		return nil, nil
	}

	if !line.idle() {
		joining, ok, err := w.join(ctx, batch)
		if err != nil || ok {
			return joining, err
		}

		if err := line.flush(ctx); err != nil {
			return nil, err
		}
	}

	d, err := w.await(ctx, batch)
	if err != nil {
		return nil, err
	}

	for {
		behind, ahead := split(d.Late, w.at.Next)
		if len(behind) == 0 && len(d.Late) < w.cfg.LateAtOnce && batch.Filter.Addresses == nil {
			w.complete = d.Next
			return ahead, nil
		}

		if len(d.Late) == 0 {
			w.complete = d.Next
			return nil, nil
		}

		if err := w.admit(ctx, behind, ahead); err != nil {
			return nil, err
		}

		if d, err = w.cfg.Ledger.Discovered(ctx, w.cfg.LateAtOnce); err != nil {
			return nil, err
		}
	}
}

// join returns the escrows that join with a batch while a commit runs or waits, which may be
// admitting some that the registry still has as late. ok is false where that has to be waited for:
// where the factory watch has not passed the batch, and where escrows are to be admitted before it.
func (w *admission) join(ctx context.Context, batch *chain.Batch) (joining []registry.Late, ok bool, err error) {
	d, err := w.cfg.Ledger.Discovered(ctx, w.cfg.LateAtOnce)
	if err != nil || d.Next <= int64(batch.To) || len(d.Late) == w.cfg.LateAtOnce {
		return nil, false, err
	}

	for _, l := range d.Late {
		if w.book.has(l.Address) {
			continue
		}

		if l.Next() < int64(batch.From) || batch.Filter.Addresses != nil {
			return nil, false, nil
		}

		joining = append(joining, l)
	}

	w.complete = d.Next

	return joining, true, nil
}

// admitAll deals with new escrows while there is no block to process.
func (w *admission) admitAll(ctx context.Context) error {
	for {
		d, err := w.cfg.Ledger.Discovered(ctx, w.cfg.LateAtOnce)
		if err != nil || len(d.Late) == 0 {
			return err
		}

		behind, ahead := split(d.Late, w.at.Next)
		if err := w.admit(ctx, behind, ahead); err != nil {
			return err
		}
	}
}

// await returns what the registry has once the factory cursor has passed a batch. It waits
// DiscoveryWait at most, and where that was in vain, not again until the factory watch has caught
// up: without a leader the known escrows must not stand still. Of a range below finality it waits
// for as long as the factory cursor moves: to overtake it would mean to read everything again for
// the escrows that it finds.
func (w *admission) await(ctx context.Context, batch *chain.Batch) (ledger.Discovered, error) {
	block, seen := int64(batch.To), int64(-1)
	deadline := time.Now().Add(w.cfg.DiscoveryWait)
	for {
		d, err := w.cfg.Ledger.Discovered(ctx, w.cfg.LateAtOnce)
		if err != nil {
			return d, err
		}

		if d.Next > block {
			w.gaveUpAt = 0
			return d, nil
		}

		if w.gaveUpAt > 0 && d.Next < w.at.Next {
			return d, nil
		}

		if len(d.Late) == w.cfg.LateAtOnce {
			// A full page is admitted at once, while the factory watch goes on.
			behind, ahead := split(d.Late, w.at.Next)
			if err := w.admit(ctx, behind, ahead); err != nil {
				return d, err
			}

			continue
		}

		if batch.To > batch.From && d.Next > seen {
			seen, deadline = d.Next, time.Now().Add(w.cfg.DiscoveryWait)
		}

		left := time.Until(deadline)
		if left <= 0 {
			w.gaveUpAt = max(d.Next, 1)
			return d, nil
		}

		pause(ctx, min(left, discoveryPoll), w.cfg.Discovered)
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
	}
}

func split(late []registry.Late, cursor int64) (behind, ahead []registry.Late) {
	for _, l := range late {
		if l.Next() < cursor {
			behind = append(behind, l)
		} else {
			ahead = append(ahead, l)
		}
	}

	return behind, ahead
}

// admit takes escrows into the book without moving the cursor: those ahead of it as they are, those behind it once they
// are caught up.
func (w *admission) admit(ctx context.Context, behind, ahead []registry.Late) error {
	if len(ahead) > 0 {
		if err := w.store(ctx, ledger.SlotCommit{
			Epoch: w.held.Epoch, From: w.at, To: w.at, Announce: ahead, Progress: progressOf(ahead, w.at.Next-1, true),
		}); err != nil {
			return err
		}

		w.enter(ahead)
	}

	if len(behind) > 0 {
		return w.catchUp(ctx, behind)
	}

	return nil
}

// catchUp reads what late escrows emitted before the cursor and commits it, batch by batch, once it is
// anchored. With the last batch the cursor vouches for them, and they join the book.
func (w *admission) catchUp(ctx context.Context, late []registry.Late) error {
	w.report(len(late))
	defer w.report(0)
	from, to := slices.MinFunc(late, byNext).Next(), w.at.Next-1
	emitted := emittedBy(late)
	announce, noted := late, time.Time{}
	since := time.Now()
	filter := w.filterOf(late)
	var read []ledger.Block // the last block of each batch since the last commit
	for batch, err := range w.cfg.Source.Read(ctx, uint64(from), uint64(to), filter) {
		if err != nil {
			w.cfg.Filters.Refused(ctx, filter, err, w.cfg.Log) // the next try names them

			return &readError{err}
		}

		came := time.Now()
		events, err := decode(w.cfg.ABI, batch.Logs, emitted, w.cfg.Metrics)
		if err != nil {
			return err
		}

		done := int64(batch.To) == to
		read = append(read, ledger.Block{Number: int64(batch.To), Hash: batch.Last.Hash})
		var progress []registry.Progress // one row per escrow, so not with every batch
		if announce != nil || done || time.Since(noted) > noteEvery {
			noted = time.Now()
			progress = progressOf(late, int64(batch.To), done)
		}

		if len(progress)+len(events) == 0 {
			continue
		}

		if err := w.anchored(ctx, read); err != nil {
			return err
		}

		read = read[:0]
		var b blocks
		b.add(w.at.To(int64(batch.From), common.Hash{}), &batch, since, came)
		traced, span := newSpans(w.cfg.Tracer, "late").blocks(ctx, &b)
		err = w.store(traced, ledger.SlotCommit{
			Epoch: w.held.Epoch, From: w.at, To: w.at, Announce: announce, Progress: progress, Events: events,
		})
		endSpan(span, err)
		if err != nil {
			return err
		}

		since = time.Now()
		w.noteEndings(events)
		announce = nil
		if done {
			w.enter(late)
		}
	}

	return nil
}

// anchored makes sure that blocks which were read are on the branch of the cursor's block, as one
// answer of an endpoint has both: what is committed behind the cursor meets no later check. Without a
// hash the cursor has none to compare with.
func (w *admission) anchored(ctx context.Context, read []ledger.Block) error {
	if w.at.Hash == (common.Hash{}) {
		return nil
	}

	numbers := make([]uint64, len(read))
	for i, b := range read {
		numbers[i] = uint64(b.Number)
	}

	cursor := chain.Header{Number: uint64(w.at.Next - 1), Hash: w.at.Hash}
	headers, err := w.cfg.Source.Branch(ctx, cursor, numbers...)
	if err != nil {
		return &readError{fmt.Errorf("compare what was read with the branch of the cursor: %w", err)}
	}

	for i, b := range read {
		if headers[i].Hash != b.Hash {
			return &readError{fmt.Errorf("%w: block %d was read as %s, and is %s on the branch of the cursor",
				chain.ErrDisagree, b.Number, b.Hash, headers[i].Hash)}
		}
	}

	return nil
}

func byNext(a, b registry.Late) int { return cmp.Compare(a.Next(), b.Next()) }

// emittedBy says of a log whether one of the escrows emitted it in a block that was not read for it yet.
func emittedBy(late []registry.Late) func(*types.Log) bool {
	next := make(map[common.Address]int64, len(late))
	for _, l := range late {
		next[l.Address] = l.Next()
	}

	return func(l *types.Log) bool {
		n, ok := next[l.Address]
		return ok && int64(l.BlockNumber) >= n
	}
}

// filterOf is for the logs of some escrows: by address, unless that takes too many requests.
func (w *admission) filterOf(late []registry.Late) *chain.Filter {
	filter := &chain.Filter{Topics: w.cfg.ABI.EscrowTopics()}
	if len(late) > w.cfg.Filters.maxAddresses && !w.cfg.Filters.byAddresses() {
		return filter
	}

	for _, l := range late {
		filter.Addresses = append(filter.Addresses, l.Address)
	}

	return filter
}

// progressOf notes that some escrows were read up to a block.
func progressOf(late []registry.Late, monitored int64, caughtUp bool) []registry.Progress {
	progress := make([]registry.Progress, len(late))
	for i, l := range late {
		progress[i] = registry.Progress{Address: l.Address, Monitored: monitored, CaughtUp: caughtUp}
	}

	return progress
}

// enter adds escrows to the book.
func (w *admission) enter(late []registry.Late) {
	for _, l := range late {
		w.book.add(l.Address)
	}
}
