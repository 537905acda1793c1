// Package command is the message by which a service asks the relayer to act on an escrow, and the
// answer to it: for the relayer and for requesters. Of other modules it needs go-ethereum's
// common and crypto only.
//
// A requester makes a Command, signs it and sends it, by Pub/Sub or by HTTP:
//
//	c := command.Command{ChainID: 1, Factory: factory, Kind: command.Approve, Sender: arbiter, Escrow: escrow,
//		ExpiresAt: uint64(time.Now().Add(time.Hour).Unix()), MaxFee: big.NewInt(2e15)}
//	signed, err := c.Sign(key)
//	receipt, err := client.Send(ctx, signed)
//
// The id of a command is its EIP-712 digest, which is also what is signed. So the same command has
// the same id wherever it is made, changing a field takes another signature, and sending
// it again is harmless: it gets the same answer again. To ask for the same
// act again after it failed, use another Salt. README.md describes the message, its signature and the answers
// for other languages, with test vectors.
//
// # States
//
//	accepted ─► sent ─► done, done_late, reverted, voided, superseded
//	    └─────────────► already, expired, cancelled, refused               nothing was sent
//
// Transitions is the whole table: when each step is taken, and which statement takes it.
// What is accepted may wait; Code says for what. The contracts know no deadline: what was sent in time may be mined
// after ExpiresAt (DoneLate); the relayer then tries to void it, and the chain decides which of the two comes first.
// Already has no event_id and no block, and is not taken back, if its event has left the relayer's table (RETENTION).
//
// Answers are delivered at least once, in order per command: drop what you have seen (Answer.Revision, Answer.Final).
package command
