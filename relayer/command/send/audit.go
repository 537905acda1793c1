package send

import (
	"context"
	"fmt"
	"slices"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send/evm"
)

// Finding is a nonce of a sender on which chain and database differ.
type Finding struct {
	Kind    string `json:"kind"`
	Sender  string `json:"sender"`
	Nonce   uint64 `json:"nonce"`
	Command string `json:"command_id,omitempty"`
	Why     string `json:"reason"`
}

// Kinds of findings.
const (
	// FindingForeign is a nonce that the chain has used up with a transaction that was not signed here:
	// the key is used elsewhere, or the database was restored.
	FindingForeign = "foreign"
	// FindingDiffering is an answer that the chain contradicts.
	FindingDiffering = "differing"
	// FindingUnanswered is a command with a final transaction, in a block that its sender has looked at.
	FindingUnanswered = "unanswered"
)

// Audited is what an audit has looked at.
type Audited struct {
	Senders, Nonces, Commands int
}

// auditPage is how many nonces are compared at once.
const auditPage = 200

// Audit compares, for each sender, every nonce since its first one with what was signed and answered
// for it, up to the newest final block, and changes nothing. An account has one transaction per
// nonce, so these are all its transactions. An error means that it could not be known.
func Audit(ctx context.Context, db *pgxpool.Pool, chainID int64, chain Chain,
	each func(Finding) error) (done Audited, err error) {
	view := chain.View()
	if !view.Ready {
		return done, fmt.Errorf("audit the senders: the chain cannot be read yet")
	}

	senders, err := collect(ctx, db, "the senders", pgx.RowToStructByName[auditedSender], selectAuditedSenders,
		pgx.StrictNamedArgs{"chain": chainID})
	if err != nil {
		return done, err
	}

	for _, s := range senders {
		look, err := chain.Look(ctx, s.Address, view.Target, true)
		if err != nil {
			return done, err
		}

		if look.Stateless {
			return done, fmt.Errorf("audit sender %s: no endpoint has the state after block %d; name an archive node in RPC_URLS",
				s.Address, view.Target)
		}

		a := auditor{db: db, chainID: chainID, chain: chain, sender: s, target: evm.Block{Number: view.Target}, each: each}
		for from := s.First; from < max(look.Final, s.Next); from += auditPage {
			if err := a.page(ctx, from, min(from+auditPage, max(look.Final, s.Next)), look.Final); err != nil {
				return done, err
			}
		}

		done.Senders++
		done.Nonces += int(max(look.Final, s.First) - s.First)
		done.Commands += a.commands
	}

	return done, nil
}

type auditedSender struct {
	Address     common.Address
	First, Next uint64
	Checked     uint64 // the newest block whose receipts the sender has read
}

const selectAuditedSenders = `
	select bytes(address) as address, first_nonce as first, next_nonce as next, coalesce(checked_block, 0) as checked
	  from senders
	 where chain_id = @chain and first_nonce is not null
	 order by senders.address`

// auditor compares one sender.
type auditor struct {
	db       *pgxpool.Pool
	chainID  int64
	chain    Chain
	sender   auditedSender
	target   evm.Block
	each     func(Finding) error
	commands int
}

// audited is a command with a nonce as it is stored, whatever became of it.
type audited struct {
	flight
	State     command.State
	Answered  bool
	Past      bool // RETENTION has left the answer of it
	TxHash    string
	BlockHash string // of the transaction's block
	Purposes  []string
	Hashes    []string // of its attempts, oldest first
}

// page compares the nonces from..to-1; those from final on are not in a final block yet.
func (a *auditor) page(ctx context.Context, from, to, final uint64) error {
	commands, err := a.stored(ctx, from, to)
	if err != nil {
		return err
	}

	a.commands += len(commands)
	byNonce, flights := map[uint64]*audited{}, make([]*flight, len(commands))
	for i, c := range commands {
		byNonce[c.Nonce], flights[i] = c, &c.flight
	}

	receipts, err := a.chain.Receipts(ctx, a.target, hashesOf(flights))
	if err != nil {
		return err
	}

	for nonce := from; nonce < to; nonce++ {
		c := byNonce[nonce]
		kind, why := "", ""
		if want, ok := outcomeOf(c.of(), receipts); ok {
			kind, why = a.compare(c, want)
		} else if nonce < final {
			kind, why, err = a.unknown(ctx, c, nonce)
		} else if c != nil && c.Answered {
			kind, why = FindingDiffering, fmt.Sprintf("it was answered %s, and no final block has a transaction with its nonce",
				c.State)
		}

		if err != nil {
			return err
		}

		if kind == "" {
			continue
		}

		f := Finding{Kind: kind, Sender: registry.Text(a.sender.Address), Nonce: nonce, Why: why}
		if c != nil {
			f.Command = c.CommandID
		}

		if err := a.each(f); err != nil {
			return err
		}
	}

	return nil
}

// of is the command of a nonce; one without attempts where it is nobody's.
func (c *audited) of() *flight {
	if c == nil {
		return &flight{}
	}

	return &c.flight
}

// compare says what is wrong with a command that has a transaction of its own in a final block; nothing if kind is
// empty.
func (a *auditor) compare(c *audited, want ending) (kind, why string) {
	switch {
	case !c.Answered && uint64(want.Block) <= a.sender.Checked:
		return FindingUnanswered, fmt.Sprintf("transaction %s is in block %d, and its sender has read up to block %d",
			want.Transaction, want.Block, a.sender.Checked)
	case !c.Answered:
		return "", "" // the sender's next look
	case want.State != c.State && (want.State != command.Done || c.State != command.DoneLate),
		want.Transaction != c.TxHash, want.BlockHash != c.BlockHash:
		return FindingDiffering,
			fmt.Sprintf("it was answered %s by transaction %s in block %s; on the chain it is %s by %s in %s",
				c.State, c.TxHash, c.BlockHash, want.State, want.Transaction, want.BlockHash)
	}

	return "", ""
}

// unknown says what is wrong with a nonce that is used in a final block, by none of the transactions whose receipts
// the endpoints have.
func (a *auditor) unknown(ctx context.Context, c *audited, nonce uint64) (kind, why string, err error) {
	found, err := a.chain.Find(ctx, a.sender.Address, nonce, 0, a.target)
	if err != nil {
		return "", "", err
	}

	tx, block := "", ""
	why = "no transaction was found that has used it: the account's code did (EIP-7702), or the block is too old to be read"
	if found != nil && found.Hash != (common.Hash{}) {
		tx, block = found.Hash.Hex(), found.BlockHash.Hex()
		why = fmt.Sprintf("block %d (%s) has transaction %s, which was not signed here", found.Block, block, tx)
	}

	switch {
	case tx != "" && slices.Contains(c.of().hashes(), found.Hash):
		return "", "", fmt.Errorf("no endpoint has the receipt of transaction %s in block %d; name another one in RPC_URLS",
			tx, found.Block)
	case c != nil && c.State == command.Superseded && (c.TxHash == "" || c.TxHash == tx && c.BlockHash == block):
		return "", "", nil // without a hash: there was none, or it was answered before transactions were named
	case c != nil && (c.Past || c.State == command.Superseded):
		return FindingDiffering, fmt.Sprintf("it was answered %s by transaction %s; %s", c.State, c.TxHash, why), nil
	}

	return FindingForeign, why, nil
}

const selectAudited = `
	select c.nonce, c.command_id, c.kind, bytes(c.escrow) as escrow, coalesce(c.message ->> 'factory', '') as factory, c.expires_at, c.state, c.answered_at is not null as answered,
	       false as past, coalesce(c.tx_hash, '') as tx_hash, coalesce(c.block_hash, '') as block_hash, c.cancel_requested, c.code, c.detail,
	       coalesce(array_agg(a.purpose order by a.attempt) filter (where a.attempt is not null), '{}') as purposes,
	       coalesce(array_agg(a.tx_hash order by a.attempt) filter (where a.attempt is not null), '{}') as hashes
	  from commands c
	  left join command_attempts a on a.chain_id = c.chain_id and a.sender = c.sender and a.nonce = c.nonce
	 where c.chain_id = @chain and c.sender = @sender and c.nonce >= @from and c.nonce < @to
	 group by c.chain_id, c.command_id
	 union all
	select nonce, hex(command_id), kind, escrow, coalesce(hex(factory), ''), expires_at, state, true,
	       true, coalesce(hex(tx_hash), ''), coalesce(hex(block_hash), ''), false, '', '',
	       case state when 'superseded' then array[]::text[] when 'voided' then '{void}' else '{call}' end,
	       case state when 'superseded' then array[]::text[] else array[hex(tx_hash)] end
	  from used_nonces
	 where chain_id = @chain and sender = bytes(@sender) and nonce >= @from and nonce < @to
	 order by nonce`

func (a *auditor) stored(ctx context.Context, from, to uint64) ([]*audited, error) {
	all, err := collect(ctx, a.db, "the commands of sender "+a.sender.Address.Hex(),
		pgx.RowToAddrOfStructByNameLax[audited], selectAudited, pgx.StrictNamedArgs{
			"chain": a.chainID, "sender": registry.Text(a.sender.Address), "from": from, "to": to})
	for _, c := range all {
		for i, hash := range c.Hashes {
			c.Attempts = append(c.Attempts, attempt{Number: i + 1, Purpose: c.Purposes[i], Hash: common.HexToHash(hash)})
		}
	}

	return all, err
}
