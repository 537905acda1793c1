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
	ID, Sender, Escrow, Effect, State, Code     string
	Winner, TxHash, BlockHash, FeePaid, EventID string // empty: none
	Nonce                                       *int64
	MaxFee                                      string
	ExpiresAt, ReceivedAt                       time.Time
	AnsweredAt                                  *time.Time
	Reopened                                    int
	Block                                       *int64
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
	rows, _ := db.Query(ctx, `select command_id, sender, escrow, effect, state, code,
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
	eth := w.run.chain.Client()
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
	r, err := w.run.chain.Client().TransactionReceipt(ctx, hash)

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
	c.answered()
	c.receipts()

	return nil
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

		fees[m.from].Add(fees[m.from], m.paid())
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
		case stored && row.Code != "" && strings.Contains(forbidden, "'"+row.Code+"'"):
			c.v.wrong("C8: refused though the policy allows it: command %s is %s %s", a.id, row.State, row.Code)
		}
	}
}

// forbidden are the codes, as a list in SQL, of a refusal that blames the request itself: when it comes in, or before
// it is signed.
const forbidden = "'" + command.CodeNotAllowed + "', '" + command.CodeSignature + "', '" + command.CodeMalformed + "'"

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

// answered: C4 and C5. The newest revision on the topic is what the table says, and no answer rests on a block that
// was not final when it was given, so none is taken back unless a reorganisation goes deeper than that.
func (c *checker) answered() {
	told, rows := map[string]string{}, map[string]string{}
	for id, row := range c.now.commands {
		c.v.Commands[row.State]++
		if row.AnsweredAt == nil {
			continue // settle has said so
		}

		rows[id] = fmt.Sprintf("%s %s winner %q by %s in block %s, event %s, for %s wei", row.State, row.Code, row.Winner,
			row.TxHash, row.BlockHash, row.EventID, row.FeePaid)
		if a, ok := c.last(id); ok {
			told[id] = fmt.Sprintf("%s %s winner %q by %s in block %s, event %s, for %s wei", a.State, a.Code, a.Winner,
				a.Transaction, a.BlockHash, a.EventID, a.FeePaid)
		}

		_, halted := c.w.halted[common.HexToAddress(row.Sender)]
		head := c.w.run.chain.HeadAt(*row.AnsweredAt)
		for says, is := range map[string]bool{
			"C4: it is answered": !command.State(row.State).Final(),
			"C4: superseded, though the key was not used elsewhere": row.State == string(command.Superseded) && !halted,
			"C4: answered before finality: it was reopened":         row.Reopened > 0 && !c.w.run.plan.Deep(),
			fmt.Sprintf("C4: answered before finality: the newest block was %d", head): row.Block != nil &&
				uint64(*row.Block)+uint64(c.w.run.plan.Confirmations) > head,
			"C5: lost against nobody": row.State == string(command.Refused) && row.Code == command.CodeConflict &&
				row.Winner == "",
		} {
			if is {
				c.v.wrong("%s: %+v", says, row)
			}
		}
	}

	c.v.differ("C4: ", "in the table", rows, "answered", told)
}

// last is the newest answer to a command. Those before it are final and reopened in turn.
func (c *checker) last(id string) (last command.Answer, ok bool) {
	got := slices.DeleteFunc(slices.Clone(c.answers[id]),
		func(a command.Answer) bool { return a.Revision == 0 }) // to messages that were not stored
	if len(got) == 0 {
		return last, false
	}

	if c.w.lost != nil { // revisions have begun anew
		return got[len(got)-1], true
	}

	revisions := map[int]command.State{}
	for _, a := range got {
		revisions[a.Revision] = a.State
		if a.Revision >= last.Revision {
			last = a
		}
	}

	for n := 1; n <= last.Revision; n++ {
		if state, ok := revisions[n]; !ok || (n%2 == 0) != (state == command.Reopened) {
			c.v.wrong("C4: revision %d of the answers to %s is %q", n, id, state)
		}
	}

	return last, true
}

// receipts: C4. What final states say of transactions is what the chain says: of those that they name, and of every one
// that succeeded.
func (c *checker) receipts() {
	says, chain := map[string]string{}, map[string]string{}
	name := func(hash, id string) string { return fmt.Sprintf("%s of command %s", hash, id) }
	for id, row := range c.now.commands {
		switch command.State(row.State) {
		case command.Done, command.DoneLate, command.Reverted, command.Voided:
			says[name(row.TxHash, id)] = fmt.Sprintf("%s in block %s for %s wei", row.State, row.BlockHash, row.FeePaid)
		}
	}

	for hash, m := range c.chain {
		a, _ := c.attempt(hash)
		_, recorded := c.now.attempt(hash)
		row, known := c.now.commands[a.CommandID]
		key := name(hash.Hex(), a.CommandID)
		_, named := says[key]
		succeeded := recorded && a.Purpose == "call" && m.receipt.Status == 1
		if known && row.AnsweredAt != nil && (named || succeeded) {
			chain[key] = fmt.Sprintf("%s in block %s for %s wei", m.outcome(a.Purpose, row), m.receipt.BlockHash, m.paid())
		}
	}

	c.v.differ("C4: ", "answered", says, "on the chain", chain)
}

// outcome is the state that a command has by its transaction.
func (m mined) outcome(purpose string, row commandRow) command.State {
	acted := m.receipt.Status == 1 && slices.ContainsFunc(m.receipt.Logs, func(l *types.Log) bool {
		return strings.EqualFold(l.Address.Hex(), row.Escrow)
	})
	switch {
	case purpose == "void" && m.receipt.Status == 1 && *m.tx.To() == m.from && m.tx.Value().Sign() == 0 &&
		len(m.tx.Data()) == 0:
		return command.Voided
	case purpose != "call":
		return ""
	case !acted:
		return command.Reverted
	case m.time > uint64(row.ExpiresAt.Unix()):
		return command.DoneLate
	}

	return command.Done
}

// paid is the fee of a transaction, in wei.
func (m mined) paid() *big.Int {
	return new(big.Int).Mul(m.receipt.EffectiveGasPrice, new(big.Int).SetUint64(m.receipt.GasUsed))
}
