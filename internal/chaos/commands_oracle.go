package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/jackc/pgx/v5"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// books are what a database says of commands.
type books struct {
	commands map[string]commandRow
	attempts map[common.Hash]attemptRow
}

type commandRow struct {
	ID, Sender, Kind, Escrow, Effect, Requester, State, Code string
	Winner, TxHash, BlockHash, FeePaid, EventID              string // empty: none
	Nonce                                                    *int64
	MaxFee                                                   string
	ExpiresAt, ReceivedAt                                    time.Time
	AnsweredAt                                               *time.Time
	Reopened                                                 int
	Block                                                    *int64
}

type attemptRow struct {
	Hash, CommandID, Purpose string
	SignedAt                 time.Time
}

type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

func readBooks(ctx context.Context, db querier) (*books, error) {
	b := &books{map[string]commandRow{}, map[common.Hash]attemptRow{}}
	rows, _ := db.Query(ctx, `select command_id, sender, kind, escrow, effect, requester, state, code,
		coalesce(winner, ''), coalesce(tx_hash, ''), coalesce(block_hash, ''), coalesce(fee_paid::text, ''),
		coalesce(event_id, ''), nonce, max_fee::text, expires_at, received_at, answered_at, reopened, block_number
		from commands where requester <> $1`, past)
	commands, err := pgx.CollectRows(rows, pgx.RowToStructByPos[commandRow])
	if err != nil {
		return nil, fmt.Errorf("read the commands: %w", err)
	}

	for _, c := range commands {
		b.commands[c.ID] = c
	}

	rows, _ = db.Query(ctx, `select tx_hash, command_id, purpose, signed_at from command_attempts`)
	attempts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[attemptRow])
	if err != nil {
		return nil, fmt.Errorf("read the attempts: %w", err)
	}

	for _, a := range attempts {
		b.attempts[common.HexToHash(a.Hash)] = a
	}

	return b, nil
}

// attempt of a transaction, also in no books at all.
func (b *books) attempt(hash common.Hash) (a attemptRow, ok bool) {
	if b != nil {
		a, ok = b.attempts[hash]
	}

	return a, ok
}

// mined is a transaction of a sender on the canonical chain.
type mined struct {
	tx      *types.Transaction
	from    common.Address
	receipt *types.Receipt
	time    uint64 // of its block
}

// readSenders reads every transaction of the senders from the chain, block by block.
func (w *way) readSenders(ctx context.Context) (map[common.Hash]mined, error) {
	eth, err := ethclient.DialContext(ctx, w.run.chain.HTTP())
	if err != nil {
		return nil, err
	}
	defer eth.Close()
	head, err := eth.BlockNumber(ctx)
	if err != nil {
		return nil, err
	}

	scheme, all := types.LatestSignerForChainID(w.run.chain.ChainID()), map[common.Hash]mined{}
	for n := uint64(1); n <= head; n++ {
		block, err := eth.BlockByNumber(ctx, new(big.Int).SetUint64(n))
		if err != nil {
			return nil, fmt.Errorf("read block %d: %w", n, err)
		}

		for _, tx := range block.Transactions() {
			from, err := types.Sender(scheme, tx)
			if err != nil {
				return nil, err
			}

			if !slices.ContainsFunc(w.senders, func(a testchain.Account) bool { return a.Address == from }) {
				continue
			}

			r, err := eth.TransactionReceipt(ctx, tx.Hash())
			if err != nil {
				return nil, err
			}

			all[tx.Hash()] = mined{tx, from, r, block.Time()}
		}
	}

	return all, nil
}

// commandsTimeout is how long all answers may take after the last fault.
const commandsTimeout = 5 * time.Minute

// What waits for something that may never come is cancelled, as its requester might: what is held
// soon, what nobody has looked at yet much later.
const (
	cancelHeldAfter     = 6 * time.Second
	cancelAcceptedAfter = 60 * time.Second
)

// settle lets the chain go on until every command has its answer and every answer is published. It
// plays the operator of a sender that is halted.
func (w *way) settle(ctx context.Context, v *Verdict) error {
	ctx, cancel := context.WithTimeout(ctx, commandsTimeout)
	defer cancel()
	delivered := make(chan struct{})
	go func() { // ends when ctx does, at the latest
		w.pending.Wait()
		close(delivered)
	}()
	why := "requesters cannot reach anybody"
	begun := time.Now()
	for done := false; ; {
		select {
		case <-delivered:
			done = true
		default:
		}

		if err := w.run.blocks(ctx, 1, 0); err != nil && ctx.Err() == nil {
			return err
		}

		if done {
			if why = w.open(ctx, v); why == "" {
				return w.adoptHalted(ctx, v) // a sender halts before it answers for that reason
			}
		}

		if done && time.Since(begun) > cancelHeldAfter {
			w.cancelAll(ctx, "held")
		}

		if done && time.Since(begun) > cancelAcceptedAfter {
			w.cancelAll(ctx, "accepted")
		}

		if !pause(ctx, 150*time.Millisecond) {
			v.wrong("commands not answered after %s: %s", commandsTimeout, why)
			return nil
		}
	}
}

// open says what is not answered yet. A halted sender is given its next nonce.
func (w *way) open(ctx context.Context, v *Verdict) string {
	if err := w.adoptHalted(ctx, v); err != nil {
		return err.Error()
	}

	missing, err := w.unnoticed(ctx)
	if err != nil || missing != "" {
		return cmp.Or(missing, fmt.Sprint(err))
	}

	now, err := readBooks(ctx, w.run.lab.DB)
	if err != nil {
		return err.Error()
	}

	for _, row := range now.commands {
		if row.AnsweredAt == nil {
			return fmt.Sprintf("a command is open: %+v", row)
		}
	}

	var replies int
	err = w.run.lab.DB.QueryRow(ctx, `select count(*) from replies where chain_id = $1`,
		w.run.chain.ChainID().Int64()).Scan(&replies)
	if err != nil || replies > 0 {
		return fmt.Sprintf("%d answers are not published, %v", replies, err)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	c := newChecker(w, &Verdict{}, now) // what is wrong is told in the end
	if lacking := c.lacking(); len(lacking) > 0 {
		return lacking[0]
	}

	return ""
}

// foreignUse is a nonce that was used with a sender's key by somebody else.
type foreignUse struct {
	sender common.Address
	nonce  uint64
}

// unnoticed names a sender that is not halted though its key was used; empty: there is none. What was used before the
// sender had its first nonce, nobody can tell.
func (w *way) unnoticed(ctx context.Context) (missing string, err error) {
	first := map[common.Address]uint64{}
	rows, _ := w.run.lab.DB.Query(ctx, `select address, first_nonce from senders where first_nonce is not null`)
	var address string
	var nonce uint64
	_, err = pgx.ForEachRow(rows, []any{&address, &nonce}, func() error {
		first[common.HexToAddress(address)] = nonce
		return nil
	})

	w.mu.Lock()
	defer w.mu.Unlock()
	for hash, use := range w.foreign {
		from, has := first[use.sender]
		if _, told := w.halted[use.sender]; has && use.nonce >= from && !told && w.onChain(ctx, hash) {
			missing = fmt.Sprintf("sender %s is not halted, though its key was used for %s", use.sender, hash)
		}
	}

	return missing, err
}

// adoptHalted gives each halted sender its next nonce.
func (w *way) adoptHalted(ctx context.Context, v *Verdict) error {
	rows, _ := w.run.lab.DB.Query(ctx, `select address, reason from senders where state = 'halted'`)
	halted, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Address, Reason string }])
	for _, h := range halted {
		if err == nil {
			err = w.adopt(ctx, v, common.HexToAddress(h.Address), h.Reason)
		}
	}

	return err
}

func (w *way) onChain(ctx context.Context, hash common.Hash) bool {
	c, err := ethclient.DialContext(ctx, w.run.chain.HTTP())
	if err != nil {
		return false
	}
	defer c.Close()
	r, err := c.TransactionReceipt(ctx, hash)

	return err == nil && r != nil
}

// adopt is what an operator does about a halted sender, after a look at the account.
func (w *way) adopt(ctx context.Context, v *Verdict, sender common.Address, reason string) error {
	w.mu.Lock()
	excused := w.lost != nil
	for _, use := range w.foreign {
		excused = excused || use.sender == sender
	}

	if _, again := w.halted[sender]; !again && !excused {
		v.wrong("sender %s is halted without a cause: %s", sender, reason)
	}

	w.halted[sender] = reason
	w.mu.Unlock()

	return send.AdoptNonce(ctx, w.run.lab.DB, w.run.chain.ChainID().Int64(), sender)
}

// check compares answers, tables and the chain, which stands still.
func (w *way) check(ctx context.Context, v *Verdict) error {
	now, err := readBooks(ctx, w.run.lab.DB)
	if err != nil {
		return err
	}

	chain, err := w.readSenders(ctx)
	if err != nil {
		return err
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.unrecorded {
		v.wrong("C2: broadcast before it was recorded: %s", u)
	}

	c := newChecker(w, v, now)
	c.chain = chain
	c.transactions()
	c.conflicts()
	c.requesters()
	for _, row := range now.commands {
		c.command(row)
	}

	return c.events(ctx)
}

// checker is one comparison.
type checker struct {
	w       *way
	v       *Verdict
	now     *books
	chain   map[common.Hash]mined
	answers map[string][]command.Answer // by command, as they came
}

// newChecker compares with what has been answered so far. Under w.mu.
func newChecker(w *way, v *Verdict, now *books) *checker {
	c := &checker{w: w, v: v, now: now, answers: map[string][]command.Answer{}}
	c.readAnswers()

	return c
}

// attempt of a transaction, in the database or in one that it took the place of.
func (c *checker) attempt(hash common.Hash) (attemptRow, bool) {
	if a, ok := c.now.attempt(hash); ok {
		return a, true
	}

	return c.w.lost.attempt(hash)
}

// transactions: C1, C3 and C7. Each is a recorded attempt within its budget, or the thief's; no
// command has two nonces on the chain.
func (c *checker) transactions() {
	effects := map[string]int{}
	nonces := map[string]uint64{}
	fees := map[common.Address]*big.Int{}
	values := map[common.Address]*big.Int{}
	first := map[common.Address]uint64{} // nonces that were used before the relayers came
	for _, s := range c.w.senders {
		fees[s.Address], values[s.Address] = new(big.Int), new(big.Int)
		if c.w.plan.Refunds {
			first[s.Address] = 2
		}
	}

	for hash, m := range c.chain {
		if _, ours := c.w.foreign[hash]; ours || m.tx.Nonce() < first[m.from] {
			continue
		}

		a, ok := c.attempt(hash)
		if !ok {
			c.v.wrong("C2: transaction %s, nonce %d of %s, is on the chain and was never recorded", hash, m.tx.Nonce(), m.from)
			continue
		}

		c.v.Transactions++
		nonce, before := nonces[a.CommandID]
		if nonces[a.CommandID] = m.tx.Nonce(); before && nonce != m.tx.Nonce() && c.w.lost == nil {
			c.v.wrong("C1: command %s used two nonces, %d and %d", a.CommandID, nonce, m.tx.Nonce())
		}

		row, known := c.now.commands[a.CommandID]
		if !known && c.w.lost != nil {
			row, known = c.w.lost.commands[a.CommandID]
		}

		paid := new(big.Int).Mul(m.receipt.EffectiveGasPrice, new(big.Int).SetUint64(m.receipt.GasUsed))
		fees[m.from].Add(fees[m.from], paid)
		worst := new(big.Int).Mul(m.tx.GasFeeCap(), new(big.Int).SetUint64(m.tx.Gas()))
		limit, _ := new(big.Int).SetString(row.MaxFee, 10)
		if !known || worst.Cmp(limit) > 0 || worst.Cmp(big.NewInt(commandMaxFee)) > 0 {
			c.v.wrong("C7: transaction %s may cost %s wei, command %s allows %s", hash, worst, a.CommandID, row.MaxFee)
		}

		if m.receipt.Status == 1 && a.Purpose == "call" {
			values[m.from].Add(values[m.from], m.tx.Value())
			if effects[a.CommandID]++; effects[a.CommandID] == 2 {
				c.v.wrong("C1: command %s has two transactions on the chain that succeeded, %s is one", a.CommandID, hash)
			}
		}
	}

	for s, paid := range fees {
		if c.w.plan.Tight && c.w.lost == nil &&
			(paid.Cmp(big.NewInt(tightDayFees)) > 0 || values[s].Cmp(big.NewInt(tightDayValue)) > 0) {
			c.v.wrong("C7: sender %s paid %s wei and sent %s wei: more than a day's budget", s, paid, values[s])
		}
	}
}

// conflicts: C5. Two commands with the same effect on the same escrow were never open together,
// unless a reorganisation opened one again, and not both took effect.
func (c *checker) conflicts() {
	byEffect := map[string][]commandRow{}
	for _, row := range c.now.commands {
		if row.AnsweredAt != nil && row.State != string(command.Refused) || row.Nonce != nil {
			byEffect[row.Escrow+" "+row.Effect] = append(byEffect[row.Escrow+" "+row.Effect], row)
		}
	}

	for what, rows := range byEffect {
		slices.SortFunc(rows, func(a, b commandRow) int { return a.ReceivedAt.Compare(b.ReceivedAt) })
		done := slices.DeleteFunc(slices.Clone(rows), func(row commandRow) bool {
			return row.State != string(command.Done) && row.State != string(command.DoneLate)
		})
		if len(done) > 1 {
			c.v.wrong("C5: %d commands took effect: %s", len(done), what)
		}

		// What asks again for what is done claims nothing, and gets no nonce.
		rows = slices.DeleteFunc(rows, func(row commandRow) bool {
			return len(done) > 0 && row.Nonce == nil && row.ReceivedAt.After(*done[0].AnsweredAt)
		})
		for i, row := range rows {
			if i == 0 || row.AnsweredAt == nil {
				continue
			}

			last := rows[i-1]
			if expiredAtOnce(row) || expiredAtOnce(last) || row.Reopened+last.Reopened > 0 || c.w.lost != nil {
				continue
			}

			if last.AnsweredAt == nil || last.AnsweredAt.After(row.ReceivedAt.Add(time.Millisecond)) {
				c.v.wrong("C5: %s and %s were both open: %s", last.ID, row.ID, what)
			}
		}
	}
}

// expiredAtOnce says that a command was too late when it came, and never had a claim.
func expiredAtOnce(row commandRow) bool {
	return row.State == string(command.Expired) && !row.ReceivedAt.Before(row.ExpiresAt)
}

// readAnswers takes the replies. The answers of one revision are one answer, however often it came.
func (c *checker) readAnswers() {
	bodies := map[string]string{}
	for _, m := range c.w.pubsub.Replies.Messages() {
		a, err := command.DecodeAnswer(m.Data)
		if err != nil {
			c.v.wrong("C4: a reply that is none: %v: %s", err, m.Data)
			continue
		}

		c.answers[a.CommandID] = append(c.answers[a.CommandID], a)
		if m.Attributes["command_id"] != a.CommandID || m.Attributes["state"] != string(a.State) {
			c.v.wrong("C4: the attributes of a reply say %v, its body %s", m.Attributes, m.Data)
		}

		_, stored := c.now.commands[a.CommandID]
		key := fmt.Sprintf("%s, revision %d", a.CommandID, a.Revision)
		if before, ok := bodies[key]; ok && before != string(m.Data) && stored && c.w.lost == nil {
			c.v.wrong("C4: two answers to %s: %s and %s", key, before, m.Data)
		}

		bodies[key] = string(m.Data)
	}
}

// lacking is what requesters may wait for: that what they have handed over is stored, or refused as it has to be where
// that is due. A database that was restored has forgotten some, and nobody hands it over again.
func (c *checker) lacking() (all []string) {
	malformed := 0
	for _, a := range c.w.asked {
		_, stored := c.now.commands[a.id]
		// A copy without the signature is refused, and not in the command's name.
		refused := slices.ContainsFunc(c.answers[a.id], func(got command.Answer) bool {
			return got.State == command.Refused && got.Code == a.want && (!a.forged || !got.Final())
		})
		switch {
		case !a.delivered:
			all = append(all, fmt.Sprintf("C4: a requester could not hand over %.200s", a.body))
		case c.w.lost != nil:
		case a.id == "":
			if a.topic {
				malformed++
			}
		case a.want == "" && !stored:
			all = append(all, fmt.Sprintf("C4: command %s was taken in and is not stored: %.200s", a.id, a.body))
		case a.want != "" && a.topic && !refused:
			all = append(all, fmt.Sprintf("C4: no answer to %.200s, to be refused as %s", a.body, a.want))
		}
	}

	if got := len(c.answers[""]); got < malformed {
		all = append(all, fmt.Sprintf("C4: %d messages were no commands, %d were answered", malformed, got))
	}

	return all
}

// requesters: who asked has an answer, and the refusal that was due.
func (c *checker) requesters() {
	c.v.Wrong = append(c.v.Wrong, c.lacking()...)
	for _, a := range c.w.asked {
		switch row, stored := c.now.commands[a.id]; {
		case a.forged || a.id == "":
		case a.want != "":
			c.refusal(a)
		case stored && slices.Contains(forbidden, row.Code):
			c.v.wrong("C8: refused though the policy allows it: command %s is %s %s", a.id, row.State, row.Code)
		}
	}
}

// forbidden are the codes of a refusal that blames the request itself: when it comes in, or before it is signed.
var forbidden = []string{command.CodeNotAllowed, command.CodeSignature, command.CodeMalformed}

// refusal: C8. What its requester may not ask for is refused with the right code, and nothing was sent.
func (c *checker) refusal(a *ask) {
	for _, got := range c.answers[a.id] {
		if got.State != command.Refused || got.Code != a.want {
			c.v.wrong("C8: command %s was to be refused as %s: %+v", a.id, a.want, got)
		}
	}

	if row, ok := c.now.commands[a.id]; ok && (row.State != string(command.Refused) || row.Code != a.want) {
		c.v.wrong("C8: command %s was to be refused as %s, and is %s %s", a.id, a.want, row.State, row.Code)
	}
}

// command: C4 and C6. Its final answer is on the topic, the table says the same, and the chain agrees.
func (c *checker) command(row commandRow) {
	c.v.Commands[row.State]++
	if row.AnsweredAt == nil {
		return // settle has said so
	}

	c.answered(row)
	c.final(row)
	c.signed(row)
	if row.Requester == send.KeeperName && slices.Contains(forbidden, row.Code) {
		c.v.wrong("C8: refused though it is the keeper's own: command %s is %s %s", row.ID, row.State, row.Code)
	}

	switch command.State(row.State) {
	case command.Done, command.DoneLate, command.Reverted, command.Voided:
		c.receipt(row)
	case command.Superseded:
		if _, halted := c.w.halted[common.HexToAddress(row.Sender)]; !halted {
			c.v.wrong("C4: %s is superseded, though the key of %s was not used elsewhere", row.ID, row.Sender)
		}

		fallthrough
	case command.Expired, command.Cancelled, command.Refused, command.Already:
		for hash, m := range c.chain {
			if a, ok := c.now.attempt(hash); ok && a.CommandID == row.ID && a.Purpose == "call" && m.receipt.Status == 1 {
				c.v.wrong("C4: %s was answered as %s, and its transaction %s succeeded", row.ID, row.State, hash)
			}
		}
	default:
		c.v.wrong("C4: %s is answered and %s", row.ID, row.State)
	}
}

// final: C4. No answer rests on a block that was not final when it was given, and so none is taken
// back unless a reorganisation goes deeper than that.
func (c *checker) final(row commandRow) {
	p := &c.w.run.plan
	if row.Reopened > 0 && !p.Deep() {
		c.v.wrong("C4: answered before finality: %s was reopened, though no reorganisation went deeper than the confirmations",
			row.ID)
	}

	if row.Block == nil {
		return
	}

	if head := c.w.run.chain.HeadAt(*row.AnsweredAt); uint64(*row.Block)+uint64(p.Confirmations) > head {
		c.v.wrong("C4: answered before finality: %s is %s by block %d, when the newest block was %d", row.ID, row.State,
			*row.Block, head)
	}
}

// answered: the newest revision on the topic is what the table says.
func (c *checker) answered(row commandRow) {
	got := slices.DeleteFunc(slices.Clone(c.answers[row.ID]),
		func(a command.Answer) bool { return a.Revision == 0 }) // to messages that were not stored
	if len(got) == 0 {
		c.v.wrong("C4: no answer to %s, which is %s", row.ID, row.State)
		return
	}

	last := slices.MaxFunc(got, func(a, b command.Answer) int { return a.Revision - b.Revision })
	if c.w.lost != nil {
		last = got[len(got)-1]
	}

	if string(last.State) != row.State || last.Code != row.Code || last.Transaction != row.TxHash ||
		last.BlockHash != row.BlockHash || last.EventID != row.EventID || last.FeePaid != row.FeePaid {
		c.v.wrong("C4: the last answer to %s is %+v, the table says %+v", row.ID, last, row)
	}

	revisions := map[int]command.State{}
	for _, a := range got {
		revisions[a.Revision] = a.State
	}

	for n := 1; n <= last.Revision && c.w.lost == nil; n++ {
		state, ok := revisions[n]
		if !ok || (n%2 == 0) != (state == command.Reopened) {
			c.v.wrong("C4: revision %d of the answers to %s is %q", n, row.ID, state)
		}
	}

	if row.State == string(command.Refused) && row.Code == command.CodeConflict {
		if row.Winner == "" || last.Winner != row.Winner {
			c.v.wrong("C5: %s lost against %q, its answer names %q", row.ID, row.Winner, last.Winner)
		}
	}
}

// signed: C6, and nothing for what was answered without.
func (c *checker) signed(row commandRow) {
	var first time.Time
	for _, a := range c.now.attempts {
		if a.CommandID == row.ID && a.Purpose == "call" && (first.IsZero() || a.SignedAt.Before(first)) {
			first = a.SignedAt
		}
	}

	// The signature comes before the look at the clock, and that before the row's own time.
	if first.After(row.ExpiresAt.Add(statementTime)) {
		c.v.wrong("C6: %s expired at %s and was signed for at %s", row.ID, row.ExpiresAt, first)
	}
}

// statementTime is how long a transaction of the database may take between two statements while it is disturbed.
const statementTime = 20 * time.Second

// receipt: what a final state says of its transaction is what the chain says.
func (c *checker) receipt(row commandRow) {
	if row.TxHash == "" || row.BlockHash == "" {
		c.v.wrong("C4: %s is %s without a transaction", row.ID, row.State)
		return
	}

	m, ok := c.chain[common.HexToHash(row.TxHash)]
	if !ok || m.receipt.BlockHash.Hex() != row.BlockHash {
		c.v.wrong("C4: %s is %s by %s in block %s, which the chain does not have", row.ID, row.State, row.TxHash, row.BlockHash)
		return
	}

	a, _ := c.attempt(m.tx.Hash())
	paid := new(big.Int).Mul(m.receipt.EffectiveGasPrice, new(big.Int).SetUint64(m.receipt.GasUsed)).String()
	late := m.time > uint64(row.ExpiresAt.Unix())
	acted := m.receipt.Status == 1 && slices.ContainsFunc(m.receipt.Logs, func(l *types.Log) bool {
		return strings.EqualFold(l.Address.Hex(), row.Escrow)
	})
	var fits bool
	switch command.State(row.State) {
	case command.Done:
		fits = a.Purpose == "call" && acted && !late
	case command.DoneLate:
		fits = a.Purpose == "call" && acted && late
	case command.Reverted:
		fits = a.Purpose == "call" && !acted
	default:
		fits = a.Purpose == "void" && m.receipt.Status == 1 && *m.tx.To() == m.from && m.tx.Value().Sign() == 0 &&
			len(m.tx.Data()) == 0
	}

	if !fits || a.CommandID != row.ID || row.FeePaid != paid {
		c.v.wrong("C4: %s is %s %s, which its receipt contradicts: a %s of %s with status %d, %d logs, late %v, paid %s not %v",
			row.ID, row.State, row.Code, a.Purpose, a.CommandID, m.receipt.Status, len(m.receipt.Logs), late, paid, row.FeePaid)
	}
}

// eventOfKind is the event that a command asks for.
var eventOfKind = map[string]string{"approve": "Approved", "release": "EscrowReleased", "refund": "EscrowRefunded",
	"create": "EscrowDeployed"}

// events: an answer names the stored event that a command caused, or that had done it already.
func (c *checker) events(ctx context.Context) error {
	for _, row := range c.now.commands {
		state := command.State(row.State)
		if state != command.Done && state != command.DoneLate && state != command.Already {
			continue
		}

		if row.EventID == "" || row.BlockHash == "" {
			c.v.wrong("C4: %s is %s without an event", row.ID, row.State)
			continue
		}

		var fits bool
		if err := c.w.run.lab.DB.QueryRow(ctx, `select exists (select from processed_events where event_id = $1
			and state = 'canonical' and event_type = $2
			and escrow = $3 and block_hash = $4 and (event_type <> 'Approved' or lower(args ->> 'approver') = $5))`,
			row.EventID, eventOfKind[row.Kind], row.Escrow, row.BlockHash, row.Sender).Scan(&fits); err != nil {
			return fmt.Errorf("look for event %s: %w", row.EventID, err)
		}

		if !fits {
			c.v.wrong("C4: %s is %s by event %s in block %s, which is not stored", row.ID, row.State,
				row.EventID, row.BlockHash)
		}
	}

	return nil
}
