package intake_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/pubsub/v2/apiv1/pubsubpb"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/intake"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/publish"
	"github.com/fusion-prime/escrow-relayer/relayer/publish/pubsub"
	"github.com/fusion-prime/escrow-relayer/relayer/retention"
)

const chain = 1337

// patience bounds every wait: the machine may be busy.
const patience = 10 * time.Minute

var factory, sender, escrow = common.Address{0xfa}, common.Address{1}, common.Address{2}

type fixture struct {
	t         *testing.T
	db        *pgxpool.Pool
	in        *intake.Intake
	key       *ecdsa.PrivateKey // allowed approve and release
	stranger  *ecdsa.PrivateKey
	salt      int64
	saltGuard sync.Mutex
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := crypto.GenerateKey()
	require.NoError(t, err)
	return key
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, db: testpg.Pool(t), key: newKey(t), stranger: newKey(t)}
	f.follow(factory)
	f.in = f.open()

	return f
}

// follow adds a factory, as an instance that names it does.
func (f *fixture) follow(address common.Address) {
	f.t.Helper()
	_, err := registry.Prepare(f.t.Context(), f.db, chain, []registry.Factory{{Address: address, Start: 1}})
	require.NoError(f.t, err)
}

// open makes an intake, as another instance would have it, and runs it.
func (f *fixture) open() *intake.Intake { return f.openWith(intake.Config{}) }

// openWith does so with what else is configured.
func (f *fixture) openWith(cfg intake.Config) *intake.Intake {
	in := f.make(cfg)
	run(f.t, in.Run)

	return in
}

// make makes one that does not run yet.
func (f *fixture) make(cfg intake.Config) *intake.Intake {
	if cfg.Policy == nil {
		policy, err := intake.ParsePolicy(fmt.Appendf(nil,
			`{"requesters":[{"address":%q,"max_open":100000,"allow":[{"sender":%q,"kinds":["approve","release"],"max_fee":"1000"}]}]}`,
			crypto.PubkeyToAddress(f.key.PublicKey), sender))
		require.NoError(f.t, err)
		cfg.Policy = policy
	}

	cfg.DB, cfg.ChainID, cfg.Factories = f.db, chain, registry.NewFollowed()
	cfg.Metrics = intake.NewMetrics(prometheus.NewRegistry())

	return intake.New(cfg)
}

func run(t *testing.T, f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
}

func (f *fixture) command(change func(*command.Command)) command.Command {
	f.saltGuard.Lock()
	f.salt++
	salt := f.salt
	f.saltGuard.Unlock()
	c := command.Command{
		ChainID: chain, Factory: factory, Kind: command.Approve, Sender: sender, Escrow: escrow,
		ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), MaxFee: big.NewInt(1000),
		ReplyTo: "desk", Salt: common.BigToHash(big.NewInt(salt)),
	}
	if change != nil {
		change(&c)
	}

	return c
}

func (f *fixture) signed(change func(*command.Command)) *command.Signed {
	s, err := f.command(change).Sign(f.key)
	require.NoError(f.t, err)
	return s
}

func body(t *testing.T, v any) []byte {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return b
}

func (f *fixture) count(query string) (n int) {
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), query).Scan(&n))
	return n
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	_, err := f.db.Exec(f.t.Context(), sql, args...)
	require.NoError(f.t, err)
}

func (f *fixture) rows(table string) (n int) {
	require.NoError(f.t, f.db.QueryRow(f.t.Context(), `select count(*) from `+table).Scan(&n))
	return n
}

func post(t *testing.T, server *httptest.Server, content []byte) (int, map[string]any) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/commands",
		bytes.NewReader(content))
	require.NoError(t, err)
	response, err := server.Client().Do(request)
	require.NoError(t, err)
	defer func() { require.NoError(t, response.Body.Close()) }()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)

	return decode(t, response.StatusCode, response.Header, raw)
}

// hand gives a body to the handler without a connection, which a server may close while a long body is
// on its way: then a client does not always see the answer.
func hand(t *testing.T, handler http.Handler, content []byte) (int, map[string]any) {
	t.Helper()
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/commands",
		bytes.NewReader(content)))

	return decode(t, w.Code, w.Header(), w.Body.Bytes())
}

func decode(t *testing.T, status int, header http.Header, raw []byte) (int, map[string]any) {
	t.Helper()
	var got map[string]any
	if bytes.HasPrefix(raw, []byte("[")) {
		got = map[string]any{"all": json.RawMessage(raw)}
	} else {
		require.NoError(t, json.Unmarshal(raw, &got), "%s", raw)
	}

	if status >= 400 && got["all"] == nil {
		require.Equal(t, "application/problem+json", header.Get("Content-Type"))
	}

	return status, got
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	f := setup(t)
	server := httptest.NewServer(f.in.Handler())
	t.Cleanup(server.Close)

	first := f.signed(nil)
	status, got := post(t, server, body(t, first))
	require.Equal(t, 202, status, "%v", got)
	require.Equal(t, "accepted", got["state"])
	status, got = post(t, server, body(t, first))
	require.Equal(t, 202, status, "known already")
	require.Equal(t, first.ID().Hex(), got["command_id"])

	// C5: the first that was accepted wins, and the other one is told so, every time.
	second := f.signed(nil)
	for range 2 {
		status, got = post(t, server, body(t, second))
		require.Equal(t, 409, status)
		require.Equal(t, first.ID().Hex(), got["winner"])
	}

	require.Equal(t, 2, f.rows("commands"),
		"a conflict of a known requester is stored: a copy that comes later must not be accepted")

	stored := f.rows("commands")
	refused := map[string]struct {
		status int
		code   string
		body   []byte
	}{
		"not JSON":        {400, "malformed", []byte("{")},
		"empty":           {400, "malformed", nil},
		"101 commands":    {413, "too_large", []byte("[" + strings.TrimSuffix(strings.Repeat("{},", 101), ",") + "]")},
		"10 MB":           {413, "too_large", bytes.Repeat([]byte(" "), 10<<20)},
		"deep":            {400, "malformed", bytes.Repeat([]byte("["), 200_000)},
		"another chain":   {403, "not_ours", body(t, f.signed(func(c *command.Command) { c.ChainID = 1 }))},
		"another factory": {403, "not_ours", body(t, f.signed(func(c *command.Command) { c.Factory = common.Address{9} }))},
		"another sender":  {403, "not_ours", body(t, f.signed(func(c *command.Command) { c.Sender = common.Address{9} }))},
	}
	strange, err := f.command(nil).Sign(f.stranger)
	require.NoError(t, err)
	refused["a stranger"] = struct {
		status int
		code   string
		body   []byte
	}{403, "not_allowed", body(t, strange)}
	forged := f.signed(nil)
	forged.Signature[64] = 35
	refused["a bad signature"] = struct {
		status int
		code   string
		body   []byte
	}{401, "bad_signature", body(t, forged)}
	changed := f.signed(nil)
	changed.Escrow = common.Address{77}
	refused["changed after signing"] = struct {
		status int
		code   string
		body   []byte
	}{403, "not_allowed", body(t, changed)}
	for name, r := range refused {
		status, got := hand(t, f.in.Handler(), r.body)
		require.Equal(t, r.status, status, "%s: %v", name, got)
		require.Equal(t, r.code, got["code"], name)
	}

	require.Equal(t, stored, f.rows("commands"), "nothing of it is stored")
	require.Equal(t, 1, f.rows("command_claims"))

	// What a known requester may not ask, and what came too late, is stored with its answer.
	status, got = post(t, server, body(t, f.signed(func(c *command.Command) { c.Kind = command.Refund })))
	require.Equal(t, 403, status)
	require.Equal(t, "not_allowed", got["code"])
	status, got = post(t, server, body(t,
		f.signed(func(c *command.Command) {
			c.ExpiresAt, c.Escrow = uint64(time.Now().Add(-time.Minute).Unix()), common.Address{3}
		})))
	require.Equal(t, 408, status, "%v", got)
	require.Equal(t, "expires_at had passed when it came", got["detail"])
	require.Equal(t, stored+2, f.rows("commands"))
	require.Equal(t, 1, f.rows("command_claims"), "and claims nothing")

	status, got = post(t, server, body(t,
		[]any{f.signed(func(c *command.Command) { c.Escrow = common.Address{4} }), json.RawMessage(`{"version":7}`)}))
	require.Equal(t, 207, status)
	var all []map[string]any
	require.NoError(t, json.Unmarshal(got["all"].(json.RawMessage), &all))
	require.EqualValues(t, 202, all[0]["status"])
	require.EqualValues(t, 400, all[1]["status"])
	require.NotEmpty(t, all[1]["problems"])

	// An array is answered by an array, whatever is in it and however short it is.
	for want, one := range map[int]any{202: first, 400: json.RawMessage(`{"version":7}`)} {
		status, got = post(t, server, body(t, []any{one}))
		require.Equal(t, want, status)
		require.NoError(t, json.Unmarshal(got["all"].(json.RawMessage), &all))
		require.Len(t, all, 1)
		require.EqualValues(t, want, all[0]["status"])
	}

	for path, want := range map[string]int{first.ID().Hex(): 200, common.Hash{1}.Hex(): 404, "0x12": 400} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/commands/"+path, nil)
		require.NoError(t, err)
		response, err := server.Client().Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, want, response.StatusCode)
	}
}

// C4: a command for a sender that the policy names and no instance has is answered once, after it has expired or was
// cancelled, by whichever instance does what needs no key; and its claim is free.
func TestAnsweredWithoutAnOwner(t *testing.T) {
	t.Parallel()
	f := setup(t)
	reg := prometheus.NewRegistry()
	counted := send.NewMetrics(reg, nil) // of three instances together
	for range 3 {
		run(t, func(ctx context.Context) error {
			send.Follow(ctx, send.Config{DB: f.db, ChainID: chain, Metrics: counted}, 10*time.Millisecond)
			return nil
		})
	}

	take := func(c *command.Signed) command.State {
		verdicts, err := f.in.Take(t.Context(), body(t, c), true)
		require.NoError(t, err)

		return verdicts[0].Answer.State
	}
	state := func(c *command.Signed) (state command.State) {
		a, ok, err := f.in.Lookup(t.Context(), c.ID())
		require.NoError(t, err)
		require.True(t, ok)

		return a.State
	}
	exec := func(sql string, args ...any) {
		_, err := f.db.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}

	const n = 600 // more than are answered at once
	var all []*command.Signed
	for i := range n {
		all = append(all, f.signed(func(c *command.Command) { c.Escrow = common.BigToAddress(big.NewInt(int64(1000 + i))) }))
	}

	for batch := range slices.Chunk(all, command.MaxCommands) {
		_, err := f.in.Take(t.Context(), body(t, batch), true)
		require.NoError(t, err)
	}

	cancelled, later := f.signed(nil), f.signed(func(c *command.Command) { c.Escrow = common.Address{9} })
	for _, c := range []*command.Signed{cancelled, later} {
		require.Equal(t, command.Accepted, take(c))
	}

	exec(`update commands set cancel_requested = true where command_id = $1`, cancelled.ID().Hex())
	exec(`update commands set expires_at = now() - interval '2 hours' where command_id not in ($1, $2)`,
		cancelled.ID().Hex(), later.ID().Hex())

	// Nobody publishes answers here, so each that was given is still stored.
	require.Eventually(t, func() bool { return f.rows("replies") >= n+1 }, patience, 10*time.Millisecond)
	require.Equal(t, command.Cancelled, state(cancelled))
	require.Equal(t, command.Expired, state(all[0]))
	require.Equal(t, command.Expired, state(all[n-1]))
	require.Equal(t, command.Accepted, state(later))
	require.Equal(t, 1, f.rows("command_claims"))
	require.Equal(t, n+1, f.rows("(select distinct command_id from replies) r"))
	require.Equal(t, n+1, f.rows("replies"), "one answer each")
	require.Eventually(t, func() bool { // after the commit
		return answersCounted(t, reg, command.Expired) == n && answersCounted(t, reg, command.Cancelled) == 1
	}, patience, 10*time.Millisecond)
	require.Zero(t, answersCounted(t, reg, command.Refused))

	require.Equal(t, command.Accepted, take(f.signed(func(c *command.Command) {
		c.Escrow = common.BigToAddress(big.NewInt(1000))
	})), "it can be asked for again")
}

// answersCounted is what relayer_command_answers_total says of a state.
func answersCounted(t *testing.T, reg *prometheus.Registry, state command.State) int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "relayer_command_answers_total" && m.GetLabel()[0].GetValue() == string(state) {
				return int(m.GetCounter().GetValue())
			}
		}
	}

	t.Fatalf("answers with state %s are not counted", state)

	return 0
}

// slowBody is a body whose first byte does not come before it is released.
type slowBody struct {
	begun   chan<- struct{}
	release <-chan struct{}
}

func (b *slowBody) Read([]byte) (int, error) {
	b.begun <- struct{}{}
	<-b.release

	return 0, io.EOF
}

// Whoever sends a body slowly takes no slot from the others.
func TestSlowBodiesTakeNoSlots(t *testing.T) {
	t.Parallel()
	f := setup(t)
	handler := f.in.Handler()
	const slow = 2 * 256
	begun, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	for i := range slow {
		path := []string{"/commands", "/commands/" + common.Hash{1}.Hex() + "/cancel"}[i%2]
		wg.Go(func() {
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.Background(), http.MethodPost,
				path, &slowBody{begun, release}))
		})
	}

	for range slow {
		<-begun
	}

	status, got := hand(t, handler, body(t, f.signed(nil)))
	close(release)
	wg.Wait()
	require.Equal(t, 202, status, "%v", got)
}

// A requester gives up what it has asked for and nothing is signed for: with its signature, and no other one.
func TestRequesterCancels(t *testing.T) {
	t.Parallel()
	f := setup(t)
	server := httptest.NewServer(f.in.Handler())
	t.Cleanup(server.Close)
	client := &command.Client{URL: server.URL}
	signed := f.signed(nil)
	_, err := client.Send(t.Context(), signed)
	require.NoError(t, err)
	status := func(id common.Hash, c command.Cancellation) int {
		_, err := client.Cancel(t.Context(), id, c)
		if err == nil {
			return 202
		}

		var refused *command.RefusedError
		require.ErrorAs(t, err, &refused)

		return refused.Status
	}

	strange, err := signed.Cancel(f.stranger)
	require.NoError(t, err)
	other, err := f.signed(nil).Cancel(f.key)
	require.NoError(t, err)
	require.Equal(t, 409, status(signed.ID(), strange), "another requester's")
	require.Equal(t, 409, status(signed.ID(), other), "for another command")
	require.Equal(t, 401, status(signed.ID(), command.Cancellation{Signature: "0x12"}))
	require.Equal(t, 404, status(common.Hash{1}, strange))
	require.Equal(t, 0, f.count(`select count(*) from commands where cancel_requested`))

	right, err := signed.Cancel(f.key)
	require.NoError(t, err)
	require.Equal(t, 202, status(signed.ID(), right))
	require.Equal(t, 1, f.count(`select count(*) from commands where cancel_requested`))
	f.exec(`update commands set state = 'cancelled', code = 'cancelled', answered_at = now()`)
	again, err := client.Cancel(t.Context(), signed.ID(), right)
	require.NoError(t, err, "asked again, after a lost response")
	require.Equal(t, command.Cancelled, again.State)
	shown, err := client.Show(t.Context(), signed.ID())
	require.NoError(t, err)
	require.Equal(t, again, shown)
	require.Equal(t, 409, status(signed.ID(), strange))
	f.exec(`update commands set state = 'accepted', answered_at = null`)
	_, err = f.db.Exec(t.Context(), `update commands set state = 'sent', nonce = 1, cancel_requested = false`)
	require.NoError(t, err)
	require.Equal(t, 409, status(signed.ID(), right), "it is sent: a void is an operator's")
	require.Equal(t, 0, f.count(`select count(*) from commands where cancel_requested`))
}

// While the database does not answer, a bounded number of requests waits for it, of each method.
func TestRequestsAreBounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	handler := f.in.Handler()
	content := body(t, f.signed(nil))
	for _, r := range []struct {
		method, path string
		done         int
	}{{http.MethodPost, "/commands", 202}, {http.MethodGet, "/commands/" + common.Hash{1}.Hex(), 404}} {
		t.Run(r.method, func(t *testing.T) {
			tx, err := f.db.Begin(t.Context())
			require.NoError(t, err)
			defer func() { _ = tx.Rollback(context.Background()) }() // only if the test fails before
			_, err = tx.Exec(t.Context(), `lock table commands in access exclusive mode`)
			require.NoError(t, err)

			const requests = 257
			statuses := make(chan int, requests)
			for range requests {
				go func() {
					w := httptest.NewRecorder()
					handler.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), r.method, r.path,
						bytes.NewReader(content)))
					statuses <- w.Code
				}()
			}

			require.Equal(t, 429, <-statuses)
			require.NoError(t, tx.Rollback(t.Context()))
			for range requests - 1 {
				require.Equal(t, r.done, <-statuses)
			}
		})
	}
}

// What storing reads does not grow with what is stored, also before the tables are analyzed for the
// first time: the check of the claims' foreign key once read all commands for each one.
func TestStoringReadsNoMore(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const messages = 30
	for n := range messages {
		var all []*command.Signed
		for i := range command.MaxCommands {
			all = append(all, f.signed(func(c *command.Command) {
				c.Escrow = common.BigToAddress(big.NewInt(int64(1_000_000 + n*command.MaxCommands + i)))
			}))
		}

		_, err := f.in.Take(t.Context(), body(t, all), false)
		require.NoError(t, err)
	}

	const stored = messages * command.MaxCommands
	var read int
	require.Eventually(t, func() bool { // the statistics of both tables come together, late
		var inserted int
		require.NoError(t, f.db.QueryRow(t.Context(), `
			select coalesce(sum(n_tup_ins), 0), coalesce(sum(seq_tup_read + idx_tup_fetch), 0) from pg_stat_user_tables
			 where relname in ('commands', 'command_claims')`).Scan(&inserted, &read))

		return inserted == 2*stored
	}, patience, 100*time.Millisecond)
	require.Less(t, read, 200*stored)
}

// C5 under contention: of commands that cannot both take effect exactly one is accepted, whichever
// instance gets which, and however often.
func TestConflictsAcrossInstances(t *testing.T) {
	t.Parallel()
	f := setup(t)
	instances := []*intake.Intake{f.in, f.open(), f.open()}
	const pairs, rivals = 60, 4
	expires := uint64(time.Now().Add(6 * 24 * time.Hour).Unix())
	var wg sync.WaitGroup
	var mu sync.Mutex
	accepted, winners := map[common.Address]map[string]bool{}, map[string]string{}
	for worker := range 6 {
		wg.Go(func() {
			for n := range pairs {
				e := common.BigToAddress(big.NewInt(int64(1000 + (n*7+worker)%pairs)))
				var batch []*command.Signed
				for r := range rivals {
					c := f.command(func(c *command.Command) {
						c.Escrow, c.Kind, c.Salt = e, command.Release, common.BigToHash(big.NewInt(int64(r)))
					})
					c.ExpiresAt = expires
					s, err := c.Sign(f.key)
					if err != nil {
						t.Error(err)
						return
					}

					batch = append(batch, s)
				}

				content, err := json.Marshal(batch)
				if err != nil {
					t.Error(err)
					return
				}

				verdicts, err := instances[worker%len(instances)].Take(context.Background(), content, false)
				if err != nil {
					t.Errorf("take: %v", err)
					return
				}

				mu.Lock()
				for _, v := range verdicts {
					if v.Answer.State == command.Accepted {
						if accepted[e] == nil {
							accepted[e] = map[string]bool{}
						}

						accepted[e][v.Answer.CommandID] = true
					} else {
						winners[v.Answer.CommandID] = v.Answer.Winner
					}
				}

				mu.Unlock()
			}
		})
	}

	wg.Wait()
	require.Len(t, accepted, pairs)
	for e, ids := range accepted {
		require.Len(t, ids, 1, "%s", e)
	}

	require.Len(t, winners, pairs*(rivals-1))
	require.Equal(t, pairs*rivals, f.rows("commands"))
	require.Equal(t, pairs, f.rows("command_claims"))
}

// C5: who loses is told who won. When the winner gives its claim up before that is read, nothing is stored and the
// commands are to be taken again.
func TestNoConflictWithoutAWinner(t *testing.T) {
	t.Parallel()
	f := setup(t)
	exec := func(sql string) {
		_, err := f.db.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	winner := f.signed(func(c *command.Command) { c.Kind = command.Release })
	loser := body(t, f.signed(func(c *command.Command) { c.Kind = command.Release }))
	_, err := f.in.Take(t.Context(), body(t, winner), false)
	require.NoError(t, err)

	exec(`create function give_up() returns trigger language plpgsql as $$ begin
		delete from command_claims; return null; end $$`)
	exec(`create trigger give_up after insert on command_claims for each statement execute function give_up()`)
	_, err = f.in.Take(t.Context(), loser, false)
	require.Error(t, err)
	require.Equal(t, 1, f.rows("commands"))

	exec(`drop trigger give_up on command_claims`)
	verdicts, err := f.in.Take(t.Context(), loser, false)
	require.NoError(t, err)
	require.Equal(t, command.CodeConflict, verdicts[0].Answer.Code)
	require.Equal(t, winner.ID().Hex(), verdicts[0].Answer.Winner)
}

// Two instances that store the same commands, which claim nothing, in opposite orders do not wait for each
// other: whichever order they came in, they are stored in one. The command in the middle is held by the
// test until both wait, so that each would have stored what the other one asks for next.
func TestOppositeOrdersDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := setup(t)
	refused := func() *command.Signed { return f.signed(func(c *command.Command) { c.Kind = command.Refund }) }
	first, middle, last := refused(), refused(), refused()

	gate, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = gate.Rollback(context.Background()) }() // only if the test fails before
	_, err = gate.Exec(t.Context(), `
		insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee,
			expires_at, state, answered_at)
		values ($1, $2, $3, 'refund', $3, 'settle', $3, '{}', 0, now(), 'refused', now())`,
		chain, middle.ID().Hex(), "0x"+strings.Repeat("0", 40))
	require.NoError(t, err)

	type taken struct {
		verdicts []intake.Verdict
		err      error
	}
	results := make(chan taken, 2)
	other := f.open()
	for in, batch := range map[*intake.Intake][]*command.Signed{
		f.in: {first, middle, last}, other: {last, middle, first},
	} {
		content := body(t, batch)
		go func() {
			verdicts, err := in.Take(context.Background(), content, false)
			results <- taken{verdicts, err}
		}()
	}

	require.Eventually(t, func() bool {
		var waiting int
		err := f.db.QueryRow(t.Context(), `select count(*) from pg_stat_activity
			where datname = current_database() and wait_event_type = 'Lock' and query like '%insert into commands%'`).
			Scan(&waiting)

		return err == nil && waiting == 2
	}, patience, 10*time.Millisecond)
	require.NoError(t, gate.Rollback(t.Context()))

	for range 2 {
		r := <-results
		require.NoError(t, r.err)
		require.Len(t, r.verdicts, 3)
		for _, v := range r.verdicts {
			require.Equal(t, command.CodeNotAllowed, v.Answer.Code)
		}
	}

	require.Equal(t, 3, f.rows("commands"))
}

// The way over Pub/Sub: acknowledged after the commit, answered on the topic of replies, in order,
// also what was refused and what came twice.
func TestPubSub(t *testing.T) {
	t.Parallel()
	f := setup(t)
	server, err := testpubsub.Start(t.Context(), testpubsub.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop()) })
	const project = "test-project"
	for topic, subscription := range map[string]string{"commands": "commands-sub", "replies": "replies-sub"} {
		server.CreateTopic(project, topic)
		require.NoError(t, server.SubscribeInOrder(project, topic, subscription))
	}

	options := testpubsub.ClientOptions(server.Addr())
	leases := make(chan int32, 10)
	watched := append(options, option.WithGRPCDialOption(grpc.WithStreamInterceptor(seeLeases(leases))))
	client, err := pubsub.New(t.Context(), pubsub.Config{Project: project, Options: options})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	hint := make(chan struct{})
	publisher, err := publish.NewAnswers(publish.Config{DB: f.db, ChainID: chain, Sender: client, Hint: hint,
		Topics: pubsub.Topics{Default: "replies"}, Metrics: publish.NewAnswerMetrics(prometheus.NewRegistry())})
	require.NoError(t, err)
	outage := server.Inject(testpubsub.Fault{Topic: testpubsub.TopicName(project, "replies"),
		Code: codes.Unavailable, Times: 2})
	recorder := server.Tap(testpubsub.TopicName(project, "replies"))
	t.Cleanup(func() { require.NoError(t, recorder.Stop()) })
	run(t, func(ctx context.Context) error { return f.in.Receive(ctx, project, "commands-sub", watched...) })
	run(t, publisher.Run)
	run(t, func(ctx context.Context) error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case hint <- struct{}{}:
			}
		}
	})
	require.EqualValues(t, 10, <-leases, "seconds until what a killed instance held comes again")

	first, second := f.signed(nil), f.signed(nil)
	for _, content := range [][]byte{body(t, first), []byte("nonsense"), body(t, []any{second, first}), body(t, second)} {
		_, err := client.Publish(t.Context(), "commands", "one key", []pubsub.Message{{Data: content}})
		require.NoError(t, err)
	}

	count := func() map[string]int {
		n := map[string]int{}
		for _, m := range recorder.Messages() {
			a, err := command.DecodeAnswer(m.Data)
			require.NoError(t, err)
			require.Equal(t, a.CommandID, m.Attributes["command_id"])
			require.Equal(t, string(a.State), m.Attributes["state"])
			n[a.Code]++
			if a.Code == command.CodeConflict {
				require.Equal(t, "desk", m.Attributes["reply_to"])
				require.Equal(t, second.ID().Hex(), m.Key)
				require.Equal(t, first.ID().Hex(), a.Winner)
			}
		}

		return n
	}
	require.Eventually(t, func() bool {
		n := count()
		return n[command.CodeConflict] >= 2 &&
			n[command.CodeMalformed] >= 1
	}, patience, 50*time.Millisecond, "%v", count())
	require.Equal(t, 2, outage.Hits())
	require.Equal(t, 2, f.rows("commands"))
	require.Eventually(t, func() bool { return f.rows("replies") == 0 }, patience, 50*time.Millisecond,
		"what was acknowledged is deleted")
}

// A stop does not wait for a connection to Pub/Sub that answers nothing, on which what was taken cannot be
// acknowledged: it comes again.
func TestStopWithoutPubSub(t *testing.T) {
	t.Parallel()
	f := setup(t)
	const project = "test-project"
	server := testpubsub.New(t, testpubsub.Options{}, project, "commands")
	require.NoError(t, server.SubscribeInOrder(project, "commands", "commands"))
	client, err := pubsub.New(t.Context(), pubsub.Config{Project: project,
		Options: testpubsub.ClientOptions(server.Addr())})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	proxy, err := faults.NewTCP(server.Addr())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- f.in.Receive(ctx, project, "commands", testpubsub.ClientOptions(proxy.Addr())...)
	}()
	// What is taken waits for a lock until the connection is gone.
	tx, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `lock table command_claims`)
	require.NoError(t, err)
	_, err = client.Publish(t.Context(), "commands", "key", []pubsub.Message{{Data: body(t, f.signed(nil))}})
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		waiting := 0
		require.NoError(t, tx.QueryRow(t.Context(), `
			select count(*) from pg_locks where not granted and relation = 'command_claims'::regclass
			and database = (select oid from pg_database where datname = current_database())`).Scan(&waiting))

		return waiting > 0
	}, patience, 10*time.Millisecond)
	proxy.Swallow(true)
	require.NoError(t, tx.Rollback(t.Context()))
	require.Eventually(t, func() bool { return f.rows("commands") == 1 }, patience, 10*time.Millisecond)

	cancel()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("it waits")
	}
}

// seeLeases tells for how many seconds each stream wants to have what it is given.
func seeLeases(leases chan<- int32) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, streamer grpc.Streamer,
		options ...grpc.CallOption) (grpc.ClientStream, error) {
		stream, err := streamer(ctx, desc, conn, method, options...)
		return &leaseStream{stream, leases}, err
	}
}

type leaseStream struct {
	grpc.ClientStream
	leases chan<- int32
}

func (s *leaseStream) SendMsg(m any) error {
	if request, ok := m.(*pubsubpb.StreamingPullRequest); ok && request.Subscription != "" {
		select {
		case s.leases <- request.StreamAckDeadlineSeconds:
		default: // streams are opened again and again; the first ones tell
		}
	}

	return s.ClientStream.SendMsg(m)
}

// C4: who can only publish makes no answer in the name of somebody else's command: copies with a broken
// signature, or with another's, are refused with revision 0, whether the command has come by then or not.
func TestForgedCopiesDoNotAnswer(t *testing.T) {
	t.Parallel()
	f := setup(t)
	genuine := f.signed(nil)
	broken := *genuine
	broken.Signature[64] = 35
	others, err := genuine.Sign(f.stranger)
	require.NoError(t, err)
	require.Equal(t, genuine.ID(), others.ID())
	for range 2 {
		for _, forged := range []*command.Signed{&broken, others} {
			verdicts, err := f.in.Take(t.Context(), body(t, forged), true)
			require.NoError(t, err)
			require.Equal(t, command.Refused, verdicts[0].Answer.State)
			require.Equal(t, genuine.ID().Hex(), verdicts[0].Answer.CommandID)
			require.Zero(t, verdicts[0].Answer.Revision)
			require.False(t, verdicts[0].Answer.Final())
		}

		verdicts, err := f.in.Take(t.Context(), body(t, genuine), true)
		require.NoError(t, err)
		require.Equal(t, command.Accepted, verdicts[0].Answer.State)
	}

	// What is refused in the name of a known requester is the command's answer.
	dear := f.signed(func(c *command.Command) { c.MaxFee = big.NewInt(1001) })
	verdicts, err := f.in.Take(t.Context(), body(t, dear), true)
	require.NoError(t, err)
	require.Equal(t, command.CodeNotAllowed, verdicts[0].Answer.Code)
	require.True(t, verdicts[0].Answer.Final())
}

// A database that does not answer holds up no stop: what is being stored is given up soon after.
func TestStopWhileTheDatabaseHangs(t *testing.T) {
	t.Parallel()
	f := setup(t)
	in := f.make(intake.Config{})
	ctx, stop := context.WithCancel(t.Context())
	ended, taken := make(chan error, 1), make(chan error, 1)
	go func() { ended <- in.Run(ctx) }()

	tx, err := f.db.Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	_, err = tx.Exec(t.Context(), `lock table commands in access exclusive mode`)
	require.NoError(t, err)
	content := body(t, f.signed(nil))
	go func() { _, err := in.Take(context.WithoutCancel(ctx), content, false); taken <- err }()
	require.Eventually(t, func() bool {
		var waits bool
		err := f.db.QueryRow(t.Context(),
			`select exists (select from pg_locks where not granted and relation = 'commands'::regclass
				and database = (select oid from pg_database where datname = current_database()))`).Scan(&waits)

		return err == nil && waits
	}, patience, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
	require.ErrorIs(t, <-taken, context.Canceled, "by the stop, and not by the deadline of the statement")
}

// C8: a policy allows a requester some kinds, of one sender each, up to a value and up to a fee. A grant lends
// nothing to another one.
func TestPolicyGrants(t *testing.T) {
	t.Parallel()
	requester, other := common.Address{7}, common.Address{8}
	policy, err := intake.ParsePolicy(fmt.Appendf(nil, `{"requesters":[{"address":%q,"allow":[
		{"sender":%q,"kinds":["approve","create"],"max_value":"10","max_fee":"100"},
		{"sender":%q,"kinds":["release"],"max_fee":"5"},
		{"sender":%q,"kinds":["refund"],"max_fee":"1000"}]}]}`, requester, sender, sender, other))
	require.NoError(t, err)
	for _, c := range []struct {
		requester, sender common.Address
		kind              command.Kind
		value, fee        int64
		refused           string // part of the reason; empty: allowed
	}{
		{requester, sender, command.Approve, 0, 100, ""},
		{requester, sender, command.Approve, 0, 101, "max_fee of at most 100"},
		{requester, sender, command.Create, 10, 100, ""},
		{requester, sender, command.Create, 11, 100, "value of at most 10"},
		{requester, sender, command.Create, 10, 101, "max_fee of at most 100"},
		{requester, sender, command.Release, 0, 5, ""},
		{requester, sender, command.Release, 0, 6, "max_fee of at most 5"},
		{requester, sender, command.Refund, 0, 1, "to refund"},
		{requester, other, command.Refund, 0, 1000, ""},
		{requester, other, command.Approve, 0, 1, "to approve"},
		{other, sender, command.Approve, 0, 1, "does not know"},
	} {
		asked := command.Command{Sender: c.sender, Kind: c.kind, MaxFee: big.NewInt(c.fee)}
		if c.kind == command.Create {
			asked.Args = &command.CreateArgs{Amount: big.NewInt(c.value)}
		}

		got := policy.Refuses(c.requester, &asked)
		if c.refused == "" {
			require.Empty(t, got, "%+v", c)
		} else {
			require.Contains(t, got, c.refused, "%+v", c)
		}
	}
}

// Whoever has a requester's key cannot fill the database, nor have the others wait: what is open is bounded. What
// is too much is answered and leaves nothing, what is known has its answer, and others are served.
func TestOpenCommandsAreBounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	allow := fmt.Sprintf(`"allow":[{"sender":%q,"kinds":["approve","release"],"max_fee":"1000"}]`, sender)
	policy, err := intake.ParsePolicy(fmt.Appendf(nil,
		`{"requesters":[{"address":%q,"max_open":100,%s},{"address":%q,%s}]}`,
		crypto.PubkeyToAddress(f.key.PublicKey), allow, crypto.PubkeyToAddress(f.stranger.PublicKey), allow))
	require.NoError(t, err)
	in := f.openWith(intake.Config{Policy: policy})
	server := httptest.NewServer(in.Handler())
	t.Cleanup(server.Close)
	var all []*command.Signed
	for n := range 100 {
		all = append(all, f.signed(func(c *command.Command) { c.Escrow = common.BigToAddress(big.NewInt(int64(1000 + n))) }))
	}

	many, err := http.Post(server.URL+"/commands", "application/json", bytes.NewReader(body(t, all)))
	require.NoError(t, err)
	require.NoError(t, many.Body.Close())
	require.Equal(t, 202, many.StatusCode)
	more := f.signed(func(c *command.Command) { c.Escrow = common.Address{8} })
	status, got := post(t, server, body(t, more))
	require.Equal(t, 429, status)
	require.Equal(t, command.CodeTooMany, got["code"])
	require.Equal(t, 100, f.rows("commands"))
	status, got = post(t, server, body(t, all[0]))
	require.Equal(t, 202, status, "it is known: %v", got)
	c := f.command(nil)
	c.Escrow = common.Address{9}
	other, err := c.Sign(f.stranger)
	require.NoError(t, err)
	status, got = post(t, server, body(t, other))
	require.Equal(t, 202, status, "%v", got)

	_, err = f.db.Exec(t.Context(), `update commands set state = 'cancelled', answered_at = now() where command_id = $1`,
		all[0].ID().Hex())
	require.NoError(t, err)
	status, got = post(t, server, body(t, more))
	require.Equal(t, 202, status, "%v", got)
}

// A command lives for a week at most.
func TestExpiryIsBounded(t *testing.T) {
	t.Parallel()
	f := setup(t)
	server := httptest.NewServer(f.in.Handler())
	t.Cleanup(server.Close)
	ask := func(ahead time.Duration) (int, map[string]any) {
		return post(t, server, body(t, f.signed(func(c *command.Command) {
			c.ExpiresAt, c.Salt = uint64(time.Now().Add(ahead).Unix()), common.Hash{byte(ahead.Hours())}
		})))
	}
	status, got := ask(7*24*time.Hour + time.Hour)
	require.Equal(t, 403, status)
	require.Equal(t, command.CodeNotAllowed, got["code"])
	require.Contains(t, got["detail"], "a week ahead")
	status, got = ask(7*24*time.Hour - time.Hour)
	require.Equal(t, 202, status, "%v", got)
}

// A command that was answered and has left is not carried out when somebody sends it again: it has expired, which is
// said of the message and is no second final answer. Until it has, it stays, and gets its first answer.
func TestWhatHasLeftIsNotTakenAgain(t *testing.T) {
	t.Parallel()
	f := setup(t)
	soon := f.signed(func(c *command.Command) { c.ExpiresAt = uint64(time.Now().Add(-2 * time.Hour).Unix()) })
	later := f.signed(func(c *command.Command) { c.Escrow = common.Address{3} })
	message := body(t, []*command.Signed{soon, later})
	f.exec(`insert into commands (chain_id, command_id, sender, kind, escrow, effect, requester, message, max_fee, expires_at, state, answered_at)
		select $1, id, $2, 'approve', '0x' || repeat('0', 40), 'x', $3, message, 1, to_timestamp((message ->> 'expires_at')::bigint), 'already', now() - interval '9 days'
		  from unnest($4::text[], $5::json[]) as c (id, message)`, chain, registry.Text(sender),
		registry.Text(crypto.PubkeyToAddress(f.key.PublicKey)), []string{soon.ID().Hex(), later.ID().Hex()},
		[]string{string(body(t, soon)), string(body(t, later))})
	r, err := retention.Once(t.Context(), retention.Config{DB: f.db, ChainID: chain, Events: time.Hour})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Commands)

	for range 2 {
		verdicts, err := f.in.Take(t.Context(), message, false)
		require.NoError(t, err)
		require.Equal(t, command.Expired, verdicts[0].Answer.State)
		require.False(t, verdicts[0].Answer.Final(), "the first answer is")
		require.Equal(t, command.Already, verdicts[1].Answer.State)
	}

	require.Equal(t, 1, f.rows("commands"))
	require.Zero(t, f.rows("command_claims"))
}

// Whether a command may have left is judged by the clock by which it leaves, the database's: one whose clock is an hour
// ahead of the instance's, say.
func TestLeavingIsByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	url := testpg.New(t)
	ahead := testpg.Open(t, url)
	for _, statement := range []string{`create schema ahead`, `create function ahead.clock_timestamp() returns timestamptz language sql
		volatile as $$ select pg_catalog.clock_timestamp() + interval '1 hour' $$`} {
		_, err := ahead.Exec(t.Context(), statement)
		require.NoError(t, err)
	}

	f := &fixture{t: t, db: testpg.Open(t, url+"&search_path=ahead,pg_catalog,public"), key: newKey(t)}
	f.follow(factory)
	expiring := func(in time.Duration) *command.Signed {
		return f.signed(func(c *command.Command) { c.ExpiresAt = uint64(time.Now().Add(in).Unix()) })
	}
	verdicts, err := f.open().Take(t.Context(), body(t, []*command.Signed{
		expiring(15 * time.Minute), expiring(45 * time.Minute), expiring(7*24*time.Hour + 30*time.Minute),
		expiring(7*24*time.Hour + 90*time.Minute)}), false)
	require.NoError(t, err)
	for i, want := range []struct {
		state command.State
		final bool
	}{{command.Expired, false}, {command.Expired, true}, {command.Accepted, false}, {command.Refused, true}} {
		require.Equal(t, want.state, verdicts[i].Answer.State, i)
		require.Equal(t, want.final, verdicts[i].Answer.Final(), i)
	}
}

// A message may have 256 KiB; what is stored of it is what it says.
func TestBlanksAreNotStored(t *testing.T) {
	t.Parallel()
	f := setup(t)
	message := bytes.Replace(body(t, f.signed(nil)), []byte("{"), []byte("{"+strings.Repeat(" \n", 100<<10)), 1)
	verdicts, err := f.in.Take(t.Context(), message, false)
	require.NoError(t, err)
	require.Equal(t, command.Accepted, verdicts[0].Answer.State)
	var size int
	require.NoError(t, f.db.QueryRow(t.Context(), `select length(message::text) from commands`).Scan(&size))
	require.Less(t, size, 4<<10)
}

func TestPolicy(t *testing.T) {
	t.Parallel()
	a := `"0x0000000000000000000000000000000000000001"`
	for name, text := range map[string]string{
		"nothing": ``, "no requester": `{"requesters":[]}`, "unknown field": `{"requester":[]}`,
		"no grant":   `{"requesters":[{"address":` + a + `}]}`,
		"no address": `{"requesters":[{"allow":[{"sender":` + a + `,"kinds":["approve"],"max_fee":"1"}]}]}`,
		"unknown": `{"requesters":[{"address":` + a + `,"allow":[{"sender":` + a +
			`,"kinds":["steal"],"max_fee":"1"}]}]}`,
		"no kinds": `{"requesters":[{"address":` + a + `,"allow":[{"sender":` + a + `,"max_fee":"1"}]}]}`,
		"no fee":   `{"requesters":[{"address":` + a + `,"allow":[{"sender":` + a + `,"kinds":["approve"]}]}]}`,
		"bad value": `{"requesters":[{"address":` + a + `,"allow":[{"sender":` + a +
			`,"kinds":["create"],"max_fee":"1","max_value":"-1"}]}]}`,
		"none": `{"requesters":[{"address":` + a + `,"max_open":0,"allow":[{"sender":` + a +
			`,"kinds":["approve"],"max_fee":"1"}]}]}`,
		"bad address": `{"requesters":[{"address":"0x12","allow":[]}]}`,
	} {
		_, err := intake.ParsePolicy([]byte(text))
		require.Error(t, err, name)
	}
}
