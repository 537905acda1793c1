package verify

import (
	"context"
	"iter"
	"log/slog"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/chain"
	"github.com/fusion-prime/escrow-relayer/relayer/chain/endpoint"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
	"github.com/fusion-prime/escrow-relayer/relayer/ledger"
	"github.com/fusion-prime/escrow-relayer/relayer/watch"
)

const chainID = 1337

// twoNodes is a chain of which one node has all logs; the other leaves out every third, and gives another time of the
// rest.
type twoNodes struct {
	chain     *ethclient.Client
	logs      []types.Log
	head      uint64
	named     bool   // they give logs of named contracts only
	liarFirst bool   // the first reading is the liar's, the second the honest node's; else the other way round
	untimely  bool   // the liar has all logs, and gives them another time
	alone     bool   // the second node is out of use
	indexed   uint64 // neither has logs below this block
	withheld  error  // what there is instead of a proof
	inflated  uint64 // from this block on accounts have a nonce more; 0: they do not
	refuted   bool   // one of them is set aside, and one alone cannot tell which block is the chain's
	meanwhile func() // before the second reading; nil: nothing
	refuses   int    // readings that the second node refuses, since it wants addresses named: then it is not asked
}

func (n *twoNodes) View() chain.View {
	return chain.View{Head: n.head, Target: n.head, Final: n.head, Ready: true}
}

// ReadOther is from the first node, and of a batch from the second.
func (n *twoNodes) ReadOther(_ context.Context, b chain.Batch) iter.Seq2[chain.Batch, error] {
	if b.Parent == (common.Hash{}) { // it is of nobody
		return n.read(b.From, b.To, b.Filter, n.liarFirst)
	}

	if n.meanwhile != nil {
		n.meanwhile()
	}

	if n.alone {
		return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, chain.ErrUnavailable) }
	}

	if n.refuses > 0 {
		n.refuses--
		return func(yield func(chain.Batch, error) bool) { yield(chain.Batch{}, chain.ErrAddressRequired) }
	}

	return n.read(b.From, b.To, b.Filter, !n.liarFirst)
}

func (n *twoNodes) Branch(ctx context.Context, tip chain.Header, numbers ...uint64) (list []chain.Header, err error) {
	for _, number := range append(slices.Clone(numbers), tip.Number) {
		h, err := n.chain.HeaderByNumber(ctx, new(big.Int).SetUint64(number))
		if err != nil {
			return nil, err
		}

		list = append(list, chain.Header{Number: number, Hash: h.Hash()})
	}

	if has := list[len(numbers)]; tip.Hash != (common.Hash{}) && has.Hash != tip.Hash {
		return nil, chain.ErrDisagree
	}

	return list[:len(numbers)], nil
}

func (n *twoNodes) Nonces(ctx context.Context, account common.Address, block uint64) (map[string]uint64, error) {
	nonce, err := n.chain.NonceAt(ctx, account, new(big.Int).SetUint64(block))
	if n.inflated > 0 && block >= n.inflated {
		nonce++
	}

	return map[string]uint64{"a": nonce, "b": nonce}, err
}

// Prove tells the truth, or withholds it.
func (n *twoNodes) Prove(ctx context.Context, number uint64, f *chain.Filter) (chain.Header, []types.Log, error) {
	if n.withheld != nil {
		return chain.Header{}, nil, n.withheld
	}

	if n.refuted {
		return chain.Header{}, nil, chain.ErrDisagree
	}

	list, err := n.Branch(ctx, chain.Header{Number: number}, number)
	if err != nil {
		return chain.Header{}, nil, err
	}

	logs := slices.DeleteFunc(slices.Clone(n.logs), func(l types.Log) bool {
		return l.BlockNumber != number || !f.Matches(&l)
	})
	list[0].Proved = true

	return list[0], logs, nil
}

// refute sets an endpoint aside until the next range is read.
func (n *twoNodes) refute(_ context.Context, _ *endpoint.Node, said []types.Log, _ chain.Header, proved []types.Log) {
	n.refuted = n.refuted || !slices.EqualFunc(said, proved, chain.SameLog)
}

// read answers in ranges of 5 blocks.
func (n *twoNodes) read(from, to uint64, f *chain.Filter, lie bool) iter.Seq2[chain.Batch, error] {
	return func(yield func(chain.Batch, error) bool) {
		if n.named && len(f.Addresses) == 0 {
			yield(chain.Batch{}, endpoint.ErrAddressRequired)
			return
		}

		for ; from <= to; from += 5 {
			b := chain.Batch{From: from, To: min(from+4, to), Parent: common.Hash{1}, Filter: f}
			for i, l := range n.logs {
				if l.BlockNumber >= b.From && l.BlockNumber <= b.To && f.Matches(&l) && (!lie || n.untimely || i%3 != 0) &&
					l.BlockNumber >= n.indexed {
					if lie {
						l.BlockTimestamp += 3600
					}

					b.Logs = append(b.Logs, l)
				}
			}

			n.refuted = false
			if !yield(b, nil) {
				return
			}
		}
	}
}

// A few blocks wait until there are more of them, and all wait while the first reading is far behind: for ten
// looks at most.
func TestTheSecondReadingWaits(t *testing.T) {
	t.Parallel()
	const start, few, many = 1, enoughBlocks - 1, enoughBlocks
	for name, c := range map[string]struct{ stored, behind, look int64 }{
		"enough blocks":              {many, 0, 1},
		"a few blocks":               {few, 0, mostWaits},
		"a few blocks are not there": {many, few, 1},
		"far behind":                 {many, many, mostWaits},
		"a few blocks, far behind":   {few, many, mostWaits},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			abi, err := contract.New("", "")
			require.NoError(t, err)
			factory := common.HexToAddress("0xfac")
			f := testfleet.New(t, chainID)
			f.Alone("r0", start, registry.Text(factory))
			f.SetCursor("r0", start+c.stored, "")
			f.Exec(`update leadership set next_block = $1`, start+c.stored)
			followed := registry.NewFollowed(registry.Factory{Address: factory})
			nodes := &twoNodes{head: uint64(start + c.stored - 1 + c.behind), named: true} // it refuses what is asked by topics
			v := New(Config{
				Source: nodes, Filters: watch.NewFilters(abi, followed, watch.FilterTopics, 1000).Again(), ABI: abi,
				Factories: followed,
				Ledger:    ledger.New(ledger.Config{DB: f.DB, ChainID: chainID, InstanceID: "r0", EventNames: abi.EventNames()}),
				Every:     time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Metrics: NewMetrics(prometheus.NewRegistry()),
			})
			for range 2 { // it waits again after each reading
				for range c.look - 1 {
					require.NoError(t, v.once(t.Context(), 1))
				}

				require.ErrorIs(t, v.once(t.Context(), 1), endpoint.ErrAddressRequired)
			}
		})
	}
}

// Whoever of two nodes leaves logs out, and whoever read the range the first time: nothing stays
// missing, and nothing that is stored is taken for an invention. Where nodes give logs of named
// contracts only, the deployments that are found say which.
func TestEitherNodeMayLie(t *testing.T) {
	for name, c := range map[string]struct {
		mode  watch.FilterMode
		named bool
	}{
		"topics":                         {watch.FilterTopics, false},
		"addresses":                      {watch.FilterAddresses, true},
		"auto":                           {watch.FilterAuto, false},
		"auto, and addresses are wanted": {watch.FilterAuto, true},
	} {
		t.Run(name, func(t *testing.T) { eitherNodeMayLie(t, c.mode, c.named) })
	}
}

// allLogs are those of a chain, with a client of it and its head.
func allLogs(t *testing.T, sim *testchain.Sim) (c *ethclient.Client, head uint64, logs []types.Log) {
	c = sim.Client()
	head, err := c.BlockNumber(t.Context())
	require.NoError(t, err)
	logs, err = c.FilterLogs(t.Context(), ethereum.FilterQuery{FromBlock: new(big.Int),
		ToBlock: new(big.Int).SetUint64(head)})
	require.NoError(t, err)

	return c, head, logs
}

func eitherNodeMayLie(t *testing.T, mode watch.FilterMode, named bool) {
	ctx := t.Context()
	sim, d := testchain.NewContracts(t, testchain.Options{Seed: 5})
	traffic, err := testchain.NewTraffic(ctx, testchain.TrafficConfig{URL: sim.HTTP(), Deployment: d,
		Accounts: sim.Accounts()[1:], Seed: 5})
	require.NoError(t, err)
	t.Cleanup(traffic.Close)
	for range 12 {
		require.NoError(t, traffic.Step(ctx, 6))
		require.NoError(t, sim.Mine(ctx, 1))
	}

	abi, err := contract.New("", "")
	require.NoError(t, err)
	c, head, logs := allLogs(t, sim)
	truth, err := testchain.ReadTruth(ctx, sim.Client(), d.Block, head, d.Factory)
	require.NoError(t, err)
	require.Greater(t, truth.Count(), 30)

	followed := registry.NewFollowed(registry.Factory{Address: d.Factory})
	filters := watch.NewFilters(abi, followed, mode, 1000)
	f := testfleet.New(t, chainID)
	f.Alone("r0", int64(d.Block), registry.Text(d.Factory))
	f.SetCursor("r0", int64(head)+1, "")
	led := ledger.New(ledger.Config{DB: f.DB, ChainID: chainID, InstanceID: "r0", EventNames: abi.EventNames(),
		Publishes: func(string) bool { return true }})
	for i, liarFirst := range []bool{true, false, true} {
		// The whole chain is verified each time; the first time nothing is stored.
		f.Exec(`update leadership set next_block = $1`, int64(head)+1)
		f.Verify(int64(d.Block) - 1)
		f.Exec(`delete from late_escrows`)
		metrics := NewMetrics(prometheus.NewRegistry())
		nodes := &twoNodes{chain: c, logs: logs, head: head, named: named, liarFirst: liarFirst}
		v := New(Config{
			Source: nodes, Filters: filters.Again(), Ledger: led, ABI: abi, Factories: followed,
			Every: time.Second,
			Log:   slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: metrics,
		})
		v.waited, v.refute = mostWaits, nodes.refute
		require.NoError(t, v.once(ctx, 1))
		var missing, extra dto.Metric
		require.NoError(t, metrics.missing.Write(&missing))
		require.NoError(t, metrics.extra.Write(&extra))
		want := 0
		if i == 0 {
			want = truth.Count()
		}

		require.EqualValues(t, want, missing.GetCounter().GetValue())
		require.Zero(t, extra.GetCounter().GetValue())
		var stored, verified int64
		require.NoError(t, f.DB.QueryRow(ctx,
			`select count(*) from processed_events where state = 'canonical'`).Scan(&stored))
		require.EqualValues(t, truth.Count(), stored)
		require.NoError(t, f.DB.QueryRow(ctx, `select verified_block from leadership`).Scan(&verified))
		require.EqualValues(t, head, verified)
	}

	t.Run("both have lost their old logs: the factory's nonce tells of deployments", func(t *testing.T) {
		f.Exec(`delete from late_escrows`)
		f.Exec(`delete from outbox`)
		f.Exec(`delete from events`)
		f.Exec(`delete from escrows`)
		f.Verify(int64(d.Block) - 1)
		nodes := &twoNodes{chain: c, logs: logs, head: head, named: named, indexed: head + 1, withheld: chain.ErrWithheld}
		v := New(Config{Source: nodes, Filters: filters.Again(), Ledger: led, ABI: abi, Factories: followed,
			Every: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			Metrics: NewMetrics(prometheus.NewRegistry())})
		v.waited = mostWaits
		require.ErrorIs(t, v.once(ctx, 1), chain.ErrWithheld)
		require.Equal(t, NotAsked, v.Counts(d.Factory))
		require.Equal(t, []string{strconv.FormatUint(d.Block-1, 10)}, f.Column(`select verified_block::text from leadership`))
		nodes.withheld = nil
		v.waited = mostWaits
		require.NoError(t, v.once(ctx, 1))
		require.Equal(t, Counted, v.Counts(d.Factory))
		require.Len(t, f.Column(`select hex(address) from escrows`), len(truth.Escrows))
		v = New(Config{Source: &twoNodes{chain: c, logs: logs, head: head, named: named}, Filters: filters.Again(),
			Ledger: led, ABI: abi, Factories: followed, Every: time.Second,
			Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
		f.Exec(`delete from late_escrows`)
		f.Verify(int64(d.Block) - 1)
		v.waited = mostWaits
		require.NoError(t, v.once(ctx, 1))
	})

	owner := func() { // tells of what was found missing
		f.Exec(`delete from late_escrows`)
		at, err := led.SlotPosition(ctx, 1)
		require.NoError(t, err)
		_, err = led.CommitSlots(ctx, ledger.SlotCommit{Epoch: 1, From: at, To: at})
		require.NoError(t, err)
	}

	t.Run("what an added factory has is not judged before its past is read", func(t *testing.T) {
		owner()
		f.Exec(`delete from late_escrows`)
		added := registry.Factory{Address: d.Factory, Past: int64(head), Until: int64(head) + 1}
		for name, change := range map[string]func(*registry.Followed) func(){
			"its past is being read": func(f *registry.Followed) func() { f.Set([]registry.Factory{added}); return nil },
			"it is added between the readings": func(f *registry.Followed) func() {
				return func() { f.Set([]registry.Factory{added}) }
			},
			"its past was read between the readings": func(f *registry.Followed) func() {
				return func() { f.Set([]registry.Factory{{Address: d.Factory}}) }
			},
		} {
			changing := registry.NewFollowed(registry.Factory{Address: common.Address{1}})
			nodes := &twoNodes{chain: c, logs: logs, head: head, named: named, meanwhile: change(changing)}
			v := New(Config{Source: nodes, Filters: filters.Again(), Ledger: led, ABI: abi, Factories: changing,
				Every: time.Second, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
				Metrics: NewMetrics(prometheus.NewRegistry())})
			require.NoError(t, v.Compare(ctx, int64(d.Block), int64(head), func(_, _ int64, found []Difference) error {
				require.Empty(t, found, name)
				return nil
			}))
		}
	})

	t.Run("what differs is retracted, and what the chain has is published", func(t *testing.T) {
		owner()
		f.Publish()
		f.Verify(int64(d.Block) - 1)
		const approvals = `select event_id(tx_hash, log_index, occurrence) from events
			where type = 3 order by block_number, log_index limit 3`
		ids := f.Column(approvals)
		// One was read with an argument that the chain does not have, one in a block that is not the chain's any more, and
		// one with another time than its block's.
		f.Exec(`update events set args = '{"approver":"nobody"}' where event_id(tx_hash, log_index, occurrence) = $1`, ids[0])
		f.Exec(`update events set block_hash = sha256(block_hash)
			where event_id(tx_hash, log_index, occurrence) = $1`, ids[1])
		f.Exec(`update events set block_time = block_time + 3600 where event_id(tx_hash, log_index, occurrence) = $1`, ids[2])
		v := New(Config{Source: &twoNodes{chain: c, logs: logs, head: head, named: named}, Filters: filters.Again(),
			Ledger: led, ABI: abi, Factories: followed,
			Every: time.Second,
			Log:   slog.New(slog.NewTextHandler(t.Output(), nil)), Metrics: NewMetrics(prometheus.NewRegistry())})
		v.waited = mostWaits
		require.NoError(t, v.once(ctx, 1))
		require.Equal(t, []string{ids[0] + ":1", ids[1] + ":1", ids[2] + ":1"}, f.Column(approvals))
		require.ElementsMatch(t, ids, f.Column(`select event_id from processed_events where state = 'orphaned'`))
		owner()
		require.Equal(t, []string{ids[0] + ":1 event", ids[1] + ":1 event", ids[2] + ":1 event", ids[0] + " retraction",
			ids[1] + " retraction", ids[2] + " retraction"},
			f.Column(`select event_id || ' ' || kind from outbox_messages order by seq`))
		f.Verify(int64(d.Block) - 1)
		require.NoError(t, v.Compare(ctx, int64(d.Block), int64(head), func(_, _ int64, found []Difference) error {
			require.Empty(t, found)
			return nil
		}))

		// A time that one of the nodes still says is found out, whichever that is; where nothing proves the time of a
		// block, it stays as it was read first.
		for _, later := range []int{0, 3600} {
			f.Exec(`update events set block_time = block_time + $1`, later)
			for _, liarFirst := range []bool{true, false} {
				for withheld, wrong := range map[error]bool{nil: later > 0, chain.ErrUnproved: false} {
					v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named, untimely: true, liarFirst: liarFirst,
						withheld: withheld}
					require.NoError(t, v.Compare(ctx, int64(d.Block), int64(head), func(_, _ int64, found []Difference) error {
						require.Equal(t, wrong, len(found) > 0)
						return nil
					}))
				}
			}
		}

		f.Exec(`update events set block_time = block_time - 3600`)
		v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named}

		// What the chain has under another block is not missing while another branch is stored: the watches
		// find that out. Once they have, what is stored of a block that is none of the chain's is retracted.
		const last = `select block_number::text from events where type = 3 order by block_number desc limit 1`
		const newest = `update leadership set block_hash = $1`
		const stored = `select event_id(tx_hash, log_index, occurrence) from events `
		gone := f.Column(stored + `where type = 3 and block_number < (` + last + `)::bigint order by block_number limit 1`)[0]
		f.Exec(`delete from events where event_id(tx_hash, log_index, occurrence) = $1`, gone)
		f.Exec(`insert into events select (jsonb_populate_record(e,
			jsonb_build_object('log_index', 4000, 'block_hash', sha256(block_hash)))).*
			from events e where type = 3 and block_number = (` + last + `)::bigint limit 1`)
		stray := f.Column(stored + `where log_index = 4000`)[0]
		before := f.Column(stored + `order by 1`)
		f.Verify(int64(d.Block) - 1)
		f.Exec(newest, registry.Text(common.Address{})+strings.Repeat("ab", 12))
		v.waited = mostWaits
		require.ErrorIs(t, v.once(ctx, 1), chain.ErrDisagree)
		require.Equal(t, before, f.Column(stored+`order by 1`))
		top, err := c.HeaderByNumber(ctx, new(big.Int).SetUint64(head))
		require.NoError(t, err)
		f.Exec(newest, top.Hash().Hex())
		v.waited = mostWaits
		require.NoError(t, v.once(ctx, 1))
		after := f.Column(stored + `order by 1`)
		require.Contains(t, after, gone)
		require.NotContains(t, after, stray)
		f.Exec(newest, nil)

		// What only one of two nodes could be asked about is not verified. What it has is stored all the same.
		const there = `select event_id(tx_hash, log_index, occurrence) from events
			where block_number = (` + last + `)::bigint`
		block, err := strconv.ParseInt(f.Column(last)[0], 10, 64)
		require.NoError(t, err)
		have := f.Column(there)
		f.Exec(`delete from events where type = 3 and block_number = $1`, block)
		f.Verify(block - 1)
		v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named, alone: true}
		for range 2 {
			v.waited = mostWaits
			require.ErrorIs(t, v.once(ctx, 1), chain.ErrUnavailable)
			require.ElementsMatch(t, have, f.Column(there))
			require.Equal(t, []string{strconv.FormatInt(block-1, 10)}, f.Column(`select verified_block::text from leadership`))
		}

		v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named}

		// That a second node wants addresses named is found out by asking, and no reason to verify nothing.
		v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named, refuses: 1}
		require.NoError(t, v.Compare(ctx, int64(d.Block), int64(head), func(_, _ int64, _ []Difference) error { return nil }))
		v.cfg.Source = &twoNodes{chain: c, logs: logs, head: head, named: named}

		// RETENTION has removed what an ended escrow emitted: that is no fault.
		ended := f.Column(`select hex(address) from escrows where ended_block is not null limit 1`)
		require.Len(t, ended, 1)
		f.Exec(`delete from events where escrow = bytes($1)`, ended[0])
		pruned := 0
		require.NoError(t, v.Compare(ctx, int64(d.Block), int64(head), func(_, _ int64, found []Difference) error {
			for _, d := range found {
				require.Equal(t, Pruned, d.Kind)
				require.Equal(t, ended[0], registry.Text(d.Chain.Escrow))
				pruned++
			}

			return nil
		}))
		require.Greater(t, pruned, 1)

		// An escrow that is deployed above what is verified is read back by its owner: what it emitted before
		// is not missing until then.
		var older []byte
		var from int64
		require.NoError(t, f.DB.QueryRow(ctx, `
			with e as (select e.* from events e join escrows r on r.address = e.escrow
				where e.type = 3 and r.ended_block is null and e.block_number > r.discovered_block_number order by e.block_number, e.log_index limit 1)
			delete from events x using e where x.block_number = e.block_number and x.log_index = e.log_index
			returning x.escrow, x.block_number`).Scan(&older, &from))
		f.Exec(`insert into late_escrows (chain_id, address, slot, deployed_block, log_index, monitored)
			select chain_id, address, slot, $2::bigint + 2, 0, $2::bigint + 1 from escrows where address = $1`, older, int64(head))
		missing := func() (n int) {
			require.NoError(t, v.Compare(ctx, from, int64(head), func(_, _ int64, found []Difference) error {
				for _, d := range found {
					if d.Kind != Pruned {
						n++
					}
				}

				return nil
			}))

			return n
		}
		require.Zero(t, missing())
		f.Exec(`delete from late_escrows`)
		require.Equal(t, 1, missing())
	})
}
