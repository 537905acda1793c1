package relayer

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/internal/port"
	"github.com/fusion-prime/escrow-relayer/relayer/command/intake"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/web"
)

// Without their variables nothing of commands is there: no key, nothing that takes them in, no answers,
// no notification channel, no metric. That the tenure then starts no goroutine for them follows from
// the empty channels.
func TestCommandsAreOffByDefault(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	cfg := &config.Config{}
	c, err := newCommands(cfg, reg)
	require.NoError(t, err)
	require.NoError(t, c.open(t.Context(), &Relayer{cfg: cfg}))
	require.Empty(t, c.channels())
	require.Nil(t, c.handler(cfg))
	require.Nil(t, c.intake)
	require.Nil(t, c.client)
	require.Empty(t, c.signers)
	found, err := reg.Gather()
	require.NoError(t, err)
	require.Empty(t, found)
	c.close()
}

func TestCommandsRefuseWhatDoesNotFit(t *testing.T) {
	t.Parallel()
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "file.json")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const address = `"0x0000000000000000000000000000000000000001"`
	limits := `,"max_fee":"1","day_fees":"1"`
	for name, c := range map[string]struct {
		cfg  config.Config
		want string
	}{
		"no file":   {config.Config{SendersFile: "/nowhere"}, "SENDERS_FILE"},
		"no sender": {config.Config{SendersFile: file(`{"senders":[]}`)}, "names no sender"},
		"no key":    {config.Config{SendersFile: file(`{"senders":[{"address":` + address + limits + `}]}`)}, "keystore"},
		"no limit": {config.Config{SendersFile: file(`{"senders":[{"address":` + address +
			`,"kms":"k","max_fee":"1"}]}`)}, "day_fees"},
		"twice": {config.Config{SendersFile: file(`{"senders":[{"address":` + address + `,"kms":"k"` + limits +
			`},{"address":` + address + `,"kms":"k"` + limits + `}]}`)}, "twice"},
		"a raw key": {config.Config{SendersFile: file(`{"senders":[{"address":` + address + `,"private_key":"0x1"` +
			limits + `}]}`)}, "unknown field"},
		"keeper": {config.Config{Keeper: &config.Keeper{Sender: common.HexToAddress("0x02")},
			SendersFile: file(`{"senders":[{"address":` + address + `,"kms":"k"` + limits + `}]}`)}, "KEEPER_SENDER"},
		"no policy":     {config.Config{CommandsHTTP: true, PolicyFile: "/nowhere"}, "COMMANDS_POLICY_FILE"},
		"broken policy": {config.Config{CommandsHTTP: true, PolicyFile: file(`{}`)}, "COMMANDS_POLICY_FILE"},
	} {
		_, err := newCommands(&c.cfg, prometheus.NewRegistry())
		require.ErrorContains(t, err, c.want, name)
	}
}

// Answers are counted by whatever answers, and so also by an instance that only takes commands in.
func TestAnswersAreCountedWithoutAKey(t *testing.T) {
	t.Parallel()
	policy := filepath.Join(t.TempDir(), "policy.json")
	const address = `"0x0000000000000000000000000000000000000001"`
	require.NoError(t, os.WriteFile(policy, []byte(`{"requesters":[{"address":`+address+`,"allow":[{"sender":`+address+
		`,"kinds":["approve"],"max_fee":"1"}]}]}`), 0o600))
	reg := prometheus.NewRegistry()
	c, err := newCommands(&config.Config{CommandsHTTP: true, PolicyFile: policy}, reg)
	require.NoError(t, err)
	require.NotNil(t, c.senders)
	found, err := reg.Gather()
	require.NoError(t, err)
	names := map[string]int{}
	for _, f := range found {
		names[f.GetName()] = len(f.GetMetric())
	}

	require.Equal(t, 9, names["relayer_command_answers_total"], "each state from the start")
}

// The server of COMMANDS_PORT answers behind its guard, ends with its context, and says what to do about a
// port that somebody else has.
func TestCommandsHaveAPortOfTheirOwn(t *testing.T) {
	t.Parallel()
	free, err := port.Reserve()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, free.Close()) })
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("a-token-of-some-length"), 0o600))
	front, err := web.NewFront(web.FrontConfig{Chains: []int64{1}, TokenFile: token})
	require.NoError(t, err)
	c := &commands{intake: &intake.Intake{}}
	r := &Relayer{cfg: &config.Config{CommandsPort: free.Number}, log: slog.New(slog.DiscardHandler), front: front}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.serve(ctx, r) }()

	url := "http://" + free.Addr() + "/commands"
	require.Eventually(t, func() bool {
		response, err := http.Get(url)
		if err != nil {
			return false
		}

		return response.Body.Close() == nil && response.StatusCode == http.StatusUnauthorized
	}, 10*time.Minute, 10*time.Millisecond)
	require.ErrorContains(t, c.serve(t.Context(), r), "set COMMANDS_PORT to a free port")
	cancel()
	require.NoError(t, <-ended)
}
