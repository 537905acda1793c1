package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/contract"
)

// crowds are the chains that Large reads. Their blocks are some that somebody can make.
var crowds = []struct {
	name     string
	blocks   int
	logs     uint64 // per block
	finality string
	wanted   bool // the logs have a topic of an escrow's
}{
	{"ranges", 200, 3_500, "finalized", true}, // 64 blocks, as are read first, have 110 MB
	{"blocks", 4, 220_000, "latest", true},    // one has 110 MB
	{"strangers", 4, 220_000, "latest", false},
}

// Large is how much memory the relayer takes while it reads answers of a hundred megabytes, in a
// container of 512 MiB: final ranges, single blocks, and single blocks none of whose logs it wants.
func Large(ctx context.Context, o *Options) (figures []Figure, err error) {
	l, err := lab.Start(ctx, lab.Options{Bin: o.Bin})
	if err != nil {
		return nil, err
	}

	defer func() { err = errors.Join(err, l.Close()) }()
	abi, err := contract.New("", "")
	if err != nil {
		return nil, err
	}

	var code []byte // of a factory: its events' topics are in it
	for _, topic := range abi.FactoryTopics() {
		code = append(code, topic[:]...)
	}

	for _, c := range crowds {
		chain := testchain.Crowd{ChainID: l.Chain.ChainID().Uint64(), Head: 1 + uint64(o.scaled(c.blocks)),
			Logs: uint64(o.scaled(int(c.logs))), Topic: common.Hash{1}, Code: code}
		if chain.Final = 1; c.finality == "finalized" {
			chain.Final = chain.Head
		}

		if c.wanted {
			chain.Topic = abi.EscrowTopics()[0]
		}

		var peaks []float64
		for run := range o.Runs {
			peak, err := readCrowd(ctx, l, fmt.Sprintf("%s-%d", c.name, run), chain, c.finality)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", c.name, err)
			}

			o.say("large: %s: %.0f MiB", c.name, peak)
			peaks = append(peaks, peak)
		}

		figures = append(figures, o.atMost("large."+c.name, "MiB", 256, Quantile(peaks, 1), peaks))
	}

	return figures, nil
}

// readCrowd has an instance read a chain from block 1 on to its end, and returns its largest resident
// memory in MiB.
func readCrowd(ctx context.Context, l *lab.Lab, name string, chain testchain.Crowd,
	finality string) (peak float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	database := "large_" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if err := l.PG.CreateDatabase(ctx, database, ""); err != nil {
		return 0, err
	}

	defer func() { err = errors.Join(err, l.PG.DropDatabase(context.WithoutCancel(ctx), database)) }()
	db, err := pgxpool.New(ctx, l.PG.URL(database))
	if err != nil {
		return 0, err
	}
	defer db.Close()

	node := httptest.NewServer(chain)
	defer node.Close()
	p, err := l.Run(name, 0, 1, map[string]string{"DATABASE_URL": l.PG.URL(database), "RPC_URLS": node.URL,
		"FINALITY": finality, "CONFIRMATIONS": "", "START_BLOCK": "1", "ALLOW_LATE_START": "true", "VERIFY_INTERVAL": "1h",
		"GOMEMLIMIT": "460MiB"}) // what it takes for its limit in a container of 512
	if err != nil {
		return 0, err
	}

	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		defer cancel()
		err = errors.Join(err, p.Stop(ctx))
	}()
	if err := poll(ctx, 10*time.Millisecond, "the last block",
		func() bool { return storedUpTo(ctx, db, chain.Head) || !p.Running() }); err != nil {
		return 0, err
	}

	if !p.Running() {
		return 0, fmt.Errorf("the relayer ended, see %s", p.LogFile)
	}

	return peakMemory(p.PID())
}

// peakMemory is the most that a process had resident at once, in MiB (VmHWM of proc(5)).
func peakMemory(pid int) (float64, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	if err != nil {
		return 0, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}

	for line := range strings.Lines(string(status)) {
		var kib float64
		if n, _ := fmt.Sscanf(line, "VmHWM: %f kB", &kib); n == 1 {
			return kib / 1024, nil
		}
	}

	return 0, fmt.Errorf("read the memory of process %d: no VmHWM in its status", pid)
}
