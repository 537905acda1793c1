package command

import (
	"encoding/json"
	"errors"
	"fmt"
)

// State of a command.
type State string

// The states of a command.
const (
	Accepted State = "accepted"  // stored; its turn will come, and Code says what it waits for
	Sent     State = "sent"      // has a nonce; signed and stored, to be broadcast
	Done     State = "done"      // final: the transaction succeeded in time
	DoneLate State = "done_late" // final: the transaction succeeded after ExpiresAt
	Reverted State = "reverted"  // final: the transaction failed; nothing happened, gas was paid
	Voided   State = "voided"    // final: its nonce was used up by a transfer of nothing; it never takes effect
	Already  State = "already"   // final: the chain showed its effect before anything was sent
	// final: its nonce was used by a transaction from elsewhere, which the answer names, or by the account's own code
	Superseded State = "superseded"
	Expired    State = "expired"   // final: it had no nonce at ExpiresAt
	Cancelled  State = "cancelled" // final: it had no nonce when it was cancelled
	Refused    State = "refused"   // final: Code says why
	Reopened   State = "reopened"  // of an answer only: the last final answer is void, another one will follow
)

// Final reports whether nothing follows but, after a deep reorganisation, Reopened.
func (s State) Final() bool {
	switch s {
	case Accepted, Sent, Reopened:
		return false
	}

	return true
}

// Transition is a step from one state to another.
type Transition struct {
	From, To State // From "": it is taken in
	When     string
	By       string // the statement that does it, of packages intake and send
}

// Transitions are all there are. Out of a final state there is only the way back, by a deep reorganisation.
var Transitions = []Transition{
	{"", Accepted, "its claim is free, or the command that has it has done the same", "insertCommands"},
	{"", Accepted, "an escrow is approved and due, and the keeper releases it", "insertKept"},
	{"", Refused, "the policy forbids it, or another command has the claim", "insertCommands"},
	{"", Expired, "expires_at had passed when it came", "insertCommands"},
	{Accepted, Sent, "it gets a nonce, with its first transaction stored", "setLaunched"},
	{Accepted, Already, "the chain shows its effect", "setEnded"},
	{Accepted, Refused, "it can never succeed, or may not be signed any more", "setEnded"},
	{Accepted, Expired, "expires_at has passed", "setOver"},
	{Accepted, Cancelled, "its requester or an operator gave it up", "setOver"},
	{Sent, Done, "its transaction succeeded, in a final block, by expires_at", "setEnded"},
	{Sent, DoneLate, "its transaction succeeded, in a final block, after expires_at", "setEnded"},
	{Sent, Reverted, "its transaction failed, in a final block", "setEnded"},
	{Sent, Voided, "the void of its nonce is in a final block", "setEnded"},
	{Sent, Superseded, "its nonce was used by somebody else's transaction, or by none (EIP-7702), for good", "setEnded"},
	{Already, Accepted, "the block of its answer has left the chain", "setReopened"},
	{Refused, Accepted, "the block of its answer has left the chain", "setReopened"},
	{Done, Sent, "the block of its answer has left the chain", "setReopened"},
	{DoneLate, Sent, "the block of its answer has left the chain", "setReopened"},
	{Reverted, Sent, "the block of its answer has left the chain", "setReopened"},
	{Voided, Sent, "the block of its answer has left the chain", "setReopened"},
	{Superseded, Sent, "the block of its answer has left the chain", "setReopened"},
}

// What a Code may be. New ones may be added.
const (
	CodeMalformed     = "malformed"
	CodeTooLarge      = "too_large"
	CodeSignature     = "bad_signature"
	CodeTooMany       = "too_many"         // the requester has as many open commands as the policy allows: send it again
	CodeNotAllowed    = "not_allowed"      // the policy does not allow this requester to ask for this
	CodeForeign       = "not_ours"         // another chain, factory, or a sender that is not configured
	CodeExpired       = "expired"          // it was too late when it came, or before its turn came
	CodeConflict      = "conflict"         // another command, Winner, was first
	CodeNotYet        = "not_before"       // waits for NotBefore, or for the escrow's release time
	CodeUnknownEscrow = "escrow_not_final" // waits: the factory has not deployed such an escrow in a final block
	CodeWrongEscrow   = "wrong_escrow"     // the factory would deploy the escrow at another address
	CodeReverts       = "would_revert"     // a simulation failed, Detail says how; waits unless it can never succeed
	CodeDisputed      = "disputed"         // waits: one endpoint's simulation failed, and another one's did not
	CodeUnauthorised  = "not_authorised"   // the escrow does not know the sender
	CodeSettled       = "settled"          // the escrow was released or refunded
	CodeNoEffect      = "no_effect"        // reverted: the transaction succeeded, but the escrow was not there any more
	CodeBudget        = "budget"           // waits: the sender's day budget is used up
	CodeUnderpriced   = "underpriced"      // the chain asks for more than MaxFee allows
	CodeBalance       = "balance"          // waits: the sender's account cannot pay
	CodeSigner        = "signer"           // waits: the sender's signer does not sign
	CodeCancelled     = "cancelled"
	CodeForeignNonce  = "foreign_nonce"
	CodeReorg         = "reorganisation"
)

// Answer is what the relayer says of a command: as the body of a message on the topic of replies, and over HTTP.
type Answer struct {
	CommandID   string    `json:"command_id"` // empty where the message was no command
	Revision    int       `json:"revision"`   // odd: Final; grows by 2 with each reorganisation that took an answer back
	State       State     `json:"state"`
	Code        string    `json:"code,omitempty"`
	Detail      string    `json:"detail,omitempty"`
	Problems    []Problem `json:"problems,omitempty"` // of a malformed command
	Winner      string    `json:"winner,omitempty"`   // of a conflict: the id of the command that was first
	Kind        Kind      `json:"kind,omitempty"`
	Sender      string    `json:"sender,omitempty"`
	Escrow      string    `json:"escrow,omitempty"`
	Reference   string    `json:"reference,omitempty"`
	ReplyTo     string    `json:"reply_to,omitempty"`
	Transaction string    `json:"transaction_hash,omitempty"`
	Block       int64     `json:"block_number,omitempty"`
	BlockHash   string    `json:"block_hash,omitempty"`
	EventID     string    `json:"event_id,omitempty"` // of the event that the command caused, or that had done it already
	FeePaid     string    `json:"fee_paid,omitempty"` // wei
}

// Final reports whether this is the final answer to the command: nothing follows it but, after a deep
// reorganisation, Reopened. What has revision 0 is not: it says that one message was refused and is not stored, since
// it has the signature of no known requester, has expired long ago, or is one too many. Anyone with the right to
// publish to the relayer can cause it for another one's command, which has its own answer.
func (a Answer) Final() bool { return a.Revision%2 == 1 }

// ErrAnswer means that something is other than a relayer's answer.
var ErrAnswer = errors.New("not an answer to a command")

// DecodeAnswer reads the body of a reply.
func DecodeAnswer(body []byte) (Answer, error) {
	var a Answer
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("%w: %w", ErrAnswer, err)
	}

	if a.State == "" || a.CommandID == "" && a.State != Refused {
		return a, fmt.Errorf("%w: state or command_id is missing", ErrAnswer)
	}

	return a, nil
}
