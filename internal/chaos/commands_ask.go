package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
	"github.com/fusion-prime/escrow-relayer/internal/testchain"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
)

// refundable is how far a chain's time is ahead where escrows are to be refunded: the contract's 30 days, and a little.
const refundable = 30*24*time.Hour + time.Hour

// ask is one command, and what its requester knows.
type ask struct {
	signed    *command.Signed
	id        string // empty: it is no command
	body      []byte
	want      string // code of the refusal that it has to get; empty: it is to be stored
	forged    bool   // a command with the signature of nobody: its refusal is not the command's answer
	delivered bool   // the relayer or Pub/Sub has it
	topic     bool   // by Pub/Sub: an answer is due on the topic whatever comes of it
}

// request asks for things at the plan's pace until busy ends. What was begun is delivered until whole
// ends: later, when a relayer can be reached.
func (w *way) request(busy, whole context.Context) error {
	return lab.Every(busy, w.plan.AskEvery, func() error {
		asks := w.compose()
		byTopic := w.pick(2) == 0
		w.pending.Go(func() { w.deliver(whole, asks, byTopic) })
		if w.pick(5) == 0 { // the same again, in either way
			byTopic, later := w.pick(2) == 0, time.Duration(w.pick(1500))*time.Millisecond
			w.pending.Go(func() {
				pause(whole, later)
				w.deliver(whole, asks, byTopic)
			})
		}

		if w.pick(10) == 0 {
			id, later := asks[0].id, time.Duration(w.pick(2500))*time.Millisecond
			w.pending.Go(func() {
				pause(whole, later)
				w.cancel(whole, id)
			})
		}

		return nil
	})
}

// cancel is what `escrow-relayer command cancel` does.
func (w *way) cancel(ctx context.Context, id string) {
	// It may be over, or unknown.
	_, _ = send.Cancel(ctx, w.run.lab.DB, w.run.chain.ChainID().Int64(), common.HexToHash(id))
}

// compose makes one command, or up to eight of an array, or what is none.
func (w *way) compose() []*ask {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 1
	if w.random.IntN(5) == 0 {
		n = 2 + w.random.IntN(7)
	}

	asks := make([]*ask, n)
	for i := range asks {
		asks[i] = w.one()
	}

	if first := asks[0]; first.want == "" && w.random.IntN(8) == 0 {
		asks = slices.Insert(asks, w.random.IntN(2), first.forge())
	}

	w.asked = append(w.asked, asks...)

	return asks
}

// flood asks for approvals of escrows that do not exist, as many as one requester may have open.
func (w *way) flood(ctx context.Context, f Fault) error {
	asks := make([]*ask, f.N)
	w.mu.Lock()
	for i := range asks {
		c := command.Command{
			ChainID: w.run.chain.ChainID().Uint64(), Factory: w.run.lab.Contracts.Factory, Kind: command.Approve,
			Sender: w.senders[i%len(w.senders)].Address, MaxFee: big.NewInt(commandMaxFee / 2), Reference: "flood",
			ExpiresAt: uint64(time.Now().Add(20 * time.Second).Unix()),
		}
		for k := range c.Escrow {
			c.Escrow[k] = byte(w.random.Uint32())
		}

		signed, err := c.Sign(w.requesters[1].Key)
		if err != nil {
			panic(err) // its fields are in their bounds
		}

		body, err := json.Marshal(signed)
		if err != nil {
			panic(err) // it is signed
		}

		asks[i] = &ask{signed: signed, id: signed.ID().Hex(), body: body}
	}

	w.asked = append(w.asked, asks...)
	w.mu.Unlock()
	var all sync.WaitGroup
	for some := range slices.Chunk(asks, command.MaxCommands) {
		all.Go(func() { w.deliver(ctx, some, w.pick(2) == 0) })
	}

	all.Wait()

	return nil
}

// forge copies a command without its signature, as whoever has read it can.
func (a *ask) forge() *ask {
	signed := *a.signed
	signed.Signature[64] = 99
	body, err := json.Marshal(&signed)
	if err != nil {
		panic(err) // its original was made of the same
	}

	return &ask{signed: &signed, id: a.id, body: body, want: command.CodeSignature, forged: true}
}

// one makes a command of any kind. Under w.mu.
func (w *way) one() *ask {
	r := w.random
	sender := w.senders[r.IntN(len(w.senders))]
	c := command.Command{
		ChainID: w.run.chain.ChainID().Uint64(), Factory: w.run.lab.Contracts.Factory, Sender: sender.Address,
		ExpiresAt: uint64(time.Now().Add(10 * time.Minute).Unix()), MaxFee: big.NewInt(commandMaxFee),
		Reference: fmt.Sprintf("%d", len(w.asked)),
	}
	for i := range 8 {
		c.Salt[i] = byte(r.Uint32())
	}

	w.about(&c, sender)
	switch r.IntN(12) {
	case 0, 1: // it expires while it is under way, or before
		c.ExpiresAt = uint64(time.Now().Add(time.Duration(r.IntN(7)-1) * time.Second).Unix())
	case 2:
		c.NotBefore = uint64(time.Now().Add(time.Duration(r.IntN(4)) * time.Second).Unix())
	case 3:
		c.MaxFee = big.NewInt(commandMaxFee / int64(2+r.IntN(20)))
	case 4, 5: // what somebody else has asked for already, or what follows from that
		if len(w.asked) > 0 {
			if other := w.asked[r.IntN(len(w.asked))]; other.signed != nil && other.want == "" {
				salt := c.Salt
				c = other.signed.Command
				c.Salt, c.ExpiresAt, c.NotBefore = salt, uint64(time.Now().Add(10*time.Minute).Unix()), 0
			}
		}
	}

	return w.sign(c)
}

// about chooses what a command does to which escrow.
func (w *way) about(c *command.Command, sender testchain.Account) {
	r := w.random
	c.Kind = []command.Kind{command.Approve, command.Approve, command.Approve, command.Approve, command.Release,
		command.Refund, command.Create, command.Create}[r.IntN(8)]
	if c.Kind == command.Create || len(w.escrows) == 0 {
		c.Kind = command.Create
		arbiter := w.senders[r.IntN(len(w.senders))].Address
		args := &command.CreateArgs{Payee: w.requesters[0].Address, Amount: big.NewInt(int64(r.IntN(1000))),
			ReleaseDelay: new(big.Int), ApprovalsRequired: uint8(1 + r.IntN(2)), Arbiter: arbiter}
		for i := range 8 {
			args.Salt[i] = byte(r.Uint32())
		}

		c.Args = args
		c.Escrow = w.run.lab.Contracts.Escrow(sender.Address, args.Payee, 0, args.ApprovalsRequired, arbiter, args.Salt)
		w.escrows = append(w.escrows, held{c.Escrow, []common.Address{arbiter, sender.Address}, sender.Address})

		return
	}

	newest := w.escrows[max(0, len(w.escrows)-20):] // older ones are settled, mostly
	if w.plan.Refunds && r.IntN(3) == 0 {
		newest = w.escrows
	}

	e := newest[r.IntN(len(newest))]
	c.Escrow = e.address
	if c.Kind == command.Refund && slices.ContainsFunc(w.senders,
		func(a testchain.Account) bool { return a.Address == e.payer }) {
		c.Sender = e.payer
	}

	if c.Kind == command.Approve && r.IntN(8) > 0 { // else by somebody who has no part in it, perhaps
		c.Sender = e.parties[r.IntN(len(e.parties))]
	}
}

// sign signs a command, and sometimes spoils it.
func (w *way) sign(c command.Command) *ask {
	a := &ask{}
	key := w.requesters[0].Key
	kind := w.random.IntN(40)
	switch kind {
	case 0:
		key, a.want = w.requesters[2].Key, command.CodeNotAllowed
	case 1:
		key = w.requesters[1].Key
		if c.Kind != command.Approve || c.MaxFee.Cmp(big.NewInt(commandMaxFee/2)) > 0 {
			a.want = command.CodeNotAllowed
		}
	case 2:
		c.ChainID, a.want = c.ChainID+1, command.CodeForeign
	}

	signed, err := c.Sign(key)
	if err != nil {
		a.body, a.want = []byte(`{"version":1}`), command.CodeMalformed
		return a
	}

	if kind == 3 {
		signed.Signature[64], a.want = 99, command.CodeSignature
	}

	if a.body, err = json.Marshal(signed); err != nil {
		panic(err) // it was checked
	}

	a.signed, a.id = signed, signed.ID().Hex()
	if kind == 4 {
		a.body, a.signed, a.id = bytes.Replace(a.body, []byte(`"kind"`), []byte(`"knid"`), 1), nil, ""
		a.want = command.CodeMalformed
	}

	return a
}

// deliver hands commands over until somebody has them.
func (w *way) deliver(ctx context.Context, asks []*ask, byTopic bool) {
	bodies := make([][]byte, len(asks))
	for i, a := range asks {
		bodies[i] = a.body
	}

	body := bodies[0]
	if len(asks) > 1 {
		body = slices.Concat([]byte("["), bytes.Join(bodies, []byte(",")), []byte("]"))
	}

	for n := 0; ctx.Err() == nil; n++ {
		ok := false
		if byTopic {
			ok = w.publish(ctx, body)
		} else {
			ok = w.post(ctx, n, body)
		}

		if ok {
			break
		}

		pause(ctx, 100*time.Millisecond)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range asks {
		a.delivered = a.delivered || ctx.Err() == nil
		a.topic = a.topic || byTopic && ctx.Err() == nil
	}
}

func (w *way) publish(ctx context.Context, body []byte) bool {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()

	return w.pubsub.Publish(ctx, body) == nil
}

// post sends commands to an instance. A status that is neither a verdict nor "later" is a mistake of the relayer's.
func (w *way) post(ctx context.Context, n int, body []byte) bool {
	p := w.run.process((w.pick(8) + n) % w.run.plan.Instances)
	if p == nil {
		return false
	}

	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, _, err := p.Post(ctx, "/commands", body)
	if err != nil {
		return false
	}

	switch code {
	case http.StatusAccepted, http.StatusMultiStatus, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden,
		http.StatusRequestTimeout, http.StatusConflict:
		return true
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
	default:
		w.run.note("%s answered %d to commands: %.200s", p.ID, code, body)
	}

	return false
}
