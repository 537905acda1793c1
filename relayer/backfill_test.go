package relayer_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/long"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/internal/testchain/contracts"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/relayer"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// The history that a first start finds: escrows of one half of the slots from the beginning, of the other half
// from block lateBlock on, a tenth of the logs under our topics ours.
const (
	historyBlocks = 3000
	lateBlock     = 2000
	escrowEach    = 60                         // blocks
	foreignEach   = 45                         // logs beside the five of each escrow
	finalBelow    = 64                         // blocks that the endpoints' finalized block is below the newest
	lastBlock     = historyBlocks - finalBelow // up to which every case stores the events
)

// What an endpoint allows per second, and how long a first start may take on a machine that is ten times busier: with
// the whole table the allowance is a free endpoint's.
var itemsPerSecond, firstStartLimit = uint64(50), 10 * time.Minute

func init() {
	if long.Tables {
		itemsPerSecond, firstStartLimit = 5, 15*time.Minute
	}
}

// past is a chain with that history, and a Pub/Sub server.
type past struct {
	sim    *testchain.Sim
	d      testchain.Deployment
	truth  *testchain.Truth
	events int
}

// writeHistory makes the chain and the server, which the environment names then. Each escrow is deployed and approved
// twice, which releases it.
func writeHistory(t *testing.T) *past {
	ctx := t.Context()
	p := &past{}
	p.sim, p.d = testchain.NewContracts(t, testchain.Options{})
	wallet, err := testchain.OpenWallet(ctx, p.sim.Client(), p.sim.Accounts()...)
	require.NoError(t, err)
	head, salt := int(p.d.Block), int64(0)
	for head < historyBlocks-escrowEach {
		require.NoError(t, p.sim.Mine(ctx, escrowEach-2))
		e, create := p.nextEscrow(&salt, head >= lateBlock && head/escrowEach%2 == 0)
		approve := testchain.Call{To: &e, Data: contracts.NewEscrow().PackApprove()}
		for _, calls := range [][2][]testchain.Call{
			{{create}, {{To: &p.d.Noise, Data: contracts.NewNoise().PackApproved(big.NewInt(foreignEach))}}},
			{{approve}, {approve}},
		} {
			for account, c := range calls {
				_, err := wallet.Send(ctx, account, c...)
				require.NoError(t, err)
			}

			require.NoError(t, p.sim.Mine(ctx, 1))
		}

		head += escrowEach
	}

	require.NoError(t, p.sim.Mine(ctx, historyBlocks-head))
	p.truth, err = testchain.ReadTruth(ctx, p.sim.Client(), 0, lastBlock, p.d.Factory)
	require.NoError(t, err)
	p.events = p.truth.Count("EscrowDeployed", "EscrowCreated", "Approved", "EscrowReleased")

	server, err := testpubsub.Start(t.Context(), testpubsub.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	for _, topic := range []string{"events", "retractions"} {
		server.CreateTopic("backfill", topic)
	}

	t.Setenv("PUBSUB_EMULATOR_HOST", server.Addr())

	return p
}

// nextEscrow is an escrow of an even or odd slot, and the call that deploys it.
func (p *past) nextEscrow(salt *int64, odd bool) (common.Address, testchain.Call) {
	payer, payee := p.sim.Accounts()[0].Address, p.sim.Accounts()[1].Address
	for {
		*salt++
		s := common.BigToHash(big.NewInt(*salt))
		e := p.d.Escrow(payer, payee, 0, 2, common.Address{}, s)
		if (e[19]%2 == 1) == odd {
			data := contracts.NewEscrowFactory().PackCreateEscrowDeterministic(payee, new(big.Int), 2, common.Address{}, s)
			return e, testchain.Call{To: &p.d.Factory, Data: data, Value: big.NewInt(1000)}
		}
	}
}

// A first start on a chain with history stores all of it, whatever the endpoint limits, however logs are asked
// for, and with fewer items than there are blocks.
func TestFirstStart(t *testing.T) {
	p := writeHistory(t)
	t.Run("of", func(t *testing.T) {
		for _, c := range firstStarts() {
			if c.long && !long.Tables {
				continue
			}

			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				require.Less(t, c.run(t, p), historyBlocks, "items per instance: it went round in circles")
			})
		}
	})
}

// firstStart is one way to start: the faults of each endpoint, and settings beside the necessary ones.
type firstStart struct {
	name      string
	ws        bool
	endpoints [][]faults.Fault
	env       map[string]string
	instances int
	long      bool // each of what it combines is in another one too
}

func firstStarts() []firstStart {
	plain := [][]faults.Fault{{}}
	slow := [][]faults.Fault{{{Mode: faults.Rate, N: itemsPerSecond}}}
	narrow := [][]faults.Fault{{{Mode: faults.Range, N: 100}}}
	env := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}

		return m
	}

	return []firstStart{
		{name: "plain http", endpoints: plain},
		{name: "plain ws", long: true, endpoints: plain, ws: true},
		{name: "by topics", endpoints: plain,
			env: env("LOG_FILTER", "topics", "FINALITY", "finalized")},
		{name: "by addresses", long: true, endpoints: plain, env: env("LOG_FILTER", "addresses")},
		{name: "a limited rate", long: true, endpoints: slow},
		{name: "a limited rate by addresses over ws", endpoints: slow, ws: true,
			env: env("LOG_FILTER", "addresses")},
		{name: "ranges of 100", long: true, endpoints: narrow},
		{name: "ranges of 100 by addresses over ws", long: true, endpoints: narrow, ws: true,
			env: env("LOG_FILTER", "addresses")},
		{name: "ranges of 100, two instances", endpoints: narrow, instances: 2},
		{name: "ranges of 100 by addresses, two instances, no proofs", endpoints: narrow, instances: 2,
			env: env("LOG_FILTER", "addresses", "PROOF", "none", "RPC_MAX_RANGE", "100")},
		{name: "two endpoints", long: true, endpoints: [][]faults.Fault{{}, {}}},
		{name: "two endpoints, the second is pruned",
			endpoints: [][]faults.Fault{{}, {{Mode: faults.Pruned, N: 1500}}}},
		{name: "two endpoints, the first has forgotten",
			endpoints: [][]faults.Fault{{{Mode: faults.Forgotten, N: 1500}}, {}}},
	}
}

// run starts the instances, waits until everything is stored, and says how many items that took.
func (c firstStart) run(t *testing.T, p *past) (itemsPerInstance int) {
	began := time.Now()
	url := testpg.New(t)
	db := testpg.Open(t, url)
	var urls []string
	var nodes []*faults.Node
	for i, list := range c.endpoints {
		n, err := faults.NewNode(p.sim.HTTP(), p.sim.WS(), uint64(i))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		n.Inject(faults.Fault{Mode: faults.Tagged, N: finalBelow})
		for _, f := range list {
			n.Inject(f)
		}

		nodes = append(nodes, n)
		if urls = append(urls, n.HTTP()); c.ws {
			urls[i] = n.WS()
		}
	}

	for i := range max(c.instances, 1) {
		start(t, map[string]string{
			"CHAIN_ID": p.sim.ChainID().String(), "RPC_URLS": strings.Join(urls, ","),
			"FACTORY_ADDRESS": p.d.Factory.Hex(), "START_BLOCK": strconv.FormatUint(p.d.Block, 10),
			"PUBSUB_PROJECT_ID": "backfill", "PUBSUB_TOPIC_ID": "events", "RETRACTIONS_TOPIC_ID": "retractions",
			"DATABASE_URL": url, "INSTANCE_ID": fmt.Sprintf("relayer-%d", i), "DB_MAX_CONNS": "4",
			"PARTITION_NUMBER": strconv.Itoa(i), "TOTAL_PARTITIONS": strconv.Itoa(max(c.instances, 1)),
			"HTTP_HOST": "127.0.0.1", "PORT": "0",
		}, c.env)
	}

	stored := 0
	require.Eventuallyf(t, func() bool {
		err := db.QueryRow(t.Context(), `select count(*) from processed_events where block_number <= $1`,
			lastBlock).Scan(&stored)
		require.NoError(t, err)

		return stored >= p.events
	}, firstStartLimit, 100*time.Millisecond, "%d events are on the chain", p.events)
	require.Equal(t, p.events, stored)
	items := 0
	for _, n := range nodes {
		items += n.Items()
	}

	t.Logf("%d events of %d blocks: %d items, %.1f s", stored, historyBlocks, items, time.Since(began).Seconds())

	return items / max(c.instances, 1)
}

// start runs an instance in this process until the test ends.
func start(t *testing.T, each ...map[string]string) {
	all := map[string]string{}
	for _, m := range each {
		maps.Copy(all, m)
	}

	cfg, err := config.Load(all)
	require.NoError(t, err)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	process, err := relayer.NewProcess([]*config.Config{cfg}, log, fleet.Build{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, process.Run(ctx)) })
	t.Cleanup(func() { stop(); wg.Wait() })
}
