package send

import (
	"context"
	"fmt"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
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
	// somebody else has the key, or the database was restored.
	FindingForeign = "foreign"
	// FindingDiffering is an answer that the chain contradicts.
	FindingDiffering = "differing"
	// FindingUnanswered is a command whose transaction is final, in a block that its sender has looked at.
	FindingUnanswered = "unanswered"
)

// Audited is what an audit has looked at.
type Audited struct {
	Senders, Nonces, Commands int
}

// AuditConfig names what an audit compares. All fields are required.
type AuditConfig struct {
	DB      *pgxpool.Pool
	ChainID int64
	Factory common.Address
	Chain   Chain
}

// auditPage is how many nonces are compared at once.
const auditPage = 200

// Audit compares, for each sender, every nonce since its first one with what was signed and answered
// for it, up to the newest final block, and changes nothing. An account has one transaction per
// nonce, so these are all its transactions. An error means that it could not be known.
func Audit(ctx context.Context, cfg AuditConfig, each func(Finding) error) (done Audited, err error) {
	view := cfg.Chain.View()
	if !view.Ready {
		return done, fmt.Errorf("audit the senders: the chain cannot be read yet")
	}

	senders, err := auditedSenders(ctx, cfg)
	if err != nil {
		return done, err
	}

	for _, s := range senders {
		look, err := cfg.Chain.Look(ctx, s.address, view.Target, 0, true)
		if err != nil {
			return done, err
		}

		a := auditor{cfg: cfg, sender: s, target: Block{view.Target, look.TargetHash}, each: each}
		for from := s.first; from < max(look.Final, s.next); from += auditPage {
			if err := a.page(ctx, from, min(from+auditPage, max(look.Final, s.next)), look.Final); err != nil {
				return done, err
			}
		}

		done.Senders++
		done.Nonces += int(max(look.Final, s.first) - s.first)
		done.Commands += a.commands
	}

	return done, nil
}

type auditedSender struct {
	address     common.Address
	first, next uint64
	checked     uint64 // the newest block whose receipts the sender has read
}

func auditedSenders(ctx context.Context, cfg AuditConfig) ([]auditedSender, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	rows, _ := cfg.DB.Query(ctx, `select address, first_nonce, next_nonce, coalesce(checked_block, 0) from senders
		where chain_id = $1 and first_nonce is not null order by address`, cfg.ChainID)
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s auditedSender, err error) {
		var address string
		var first, next, checked int64
		err = row.Scan(&address, &first, &next, &checked)
		s = auditedSender{common.HexToAddress(address), uint64(first), uint64(next), uint64(checked)}

		return s, err
	})
	if err != nil {
		return nil, fmt.Errorf("read the senders: %w", err)
	}

	return all, nil
}

// auditor compares one sender.
type auditor struct {
	cfg      AuditConfig
	sender   auditedSender
	target   Block
	each     func(Finding) error
	commands int
}

// audited is a command with a nonce as it is stored, whatever became of it.
type audited struct {
	flight
	state     command.State
	answered  bool
	tx, block string // the hashes of its transaction and of that one's block
}

// page compares the nonces from..to-1; those from final on are not in a final block yet.
func (a *auditor) page(ctx context.Context, from, to, final uint64) error {
	byNonce, err := a.stored(ctx, from, to)
	if err != nil {
		return err
	}

	a.commands += len(byNonce)
	var hashes []common.Hash
	for nonce := from; nonce < to; nonce++ {
		if c := byNonce[nonce]; c != nil {
			for _, t := range c.Attempts {
				hashes = append(hashes, t.Hash)
			}
		}
	}

	receipts := map[common.Hash]*Receipt{}
	if len(hashes) > 0 {
		found, err := a.cfg.Chain.Receipts(ctx, a.target, hashes)
		if err != nil {
			return err
		}

		for i, r := range found {
			if r != nil {
				receipts[hashes[i]] = r
			}
		}
	}

	for nonce := from; nonce < to; nonce++ {
		kind, why := a.compare(byNonce[nonce], receipts, nonce < final)
		if kind == "" {
			continue
		}

		f := Finding{Kind: kind, Sender: text(a.sender.address), Nonce: nonce, Why: why}
		if c := byNonce[nonce]; c != nil {
			f.Command = c.ID
		}

		if err := a.each(f); err != nil {
			return err
		}
	}

	return nil
}

// compare says what is wrong with one nonce; nothing if kind is empty.
func (a *auditor) compare(c *audited, receipts map[common.Hash]*Receipt, used bool) (kind, why string) {
	if c == nil {
		if used {
			return FindingForeign, "a final block has a transaction that was not signed here"
		}

		return "", ""
	}

	want, ok := outcomeOf(&c.flight, receipts, a.cfg.Factory)
	switch {
	case !ok && used && c.state != command.Superseded:
		return FindingForeign, fmt.Sprintf("a final block has a transaction that is none of the %d that were signed for it",
			len(c.Attempts))
	case !ok && !used && c.answered && c.state != command.Superseded:
		return FindingDiffering, fmt.Sprintf("it was answered %s, and no final block has a transaction with its nonce",
			c.state)
	case !ok:
		return "", ""
	case !c.answered && uint64(*want.block) <= a.sender.checked:
		return FindingUnanswered, fmt.Sprintf("transaction %s is in block %d, and its sender has read up to block %d",
			want.tx,
			*want.block, a.sender.checked)
	case !c.answered:
		return "", "" // the sender's next look
	case want.state != c.state, want.tx != c.tx, *want.blockHash != c.block:
		return FindingDiffering,
			fmt.Sprintf("it was answered %s by transaction %s in block %s; on the chain it is %s by %s in %s",
				c.state, c.tx, c.block, want.state, want.tx, *want.blockHash)
	}

	return "", ""
}

const selectAudited = `
	select c.nonce, c.command_id, c.kind, c.escrow, c.expires_at, c.state, c.answered_at is not null, coalesce(c.tx_hash, ''),
	       coalesce(c.block_hash, ''), c.cancel_requested,
	       coalesce(array_agg(a.purpose order by a.attempt) filter (where a.attempt is not null), '{}'),
	       coalesce(array_agg(a.tx_hash order by a.attempt) filter (where a.attempt is not null), '{}')
	  from commands c
	  left join command_attempts a on a.chain_id = c.chain_id and a.sender = c.sender and a.nonce = c.nonce
	 where c.chain_id = $1 and c.sender = $2 and c.nonce >= $3 and c.nonce < $4
	 group by c.chain_id, c.command_id`

func (a *auditor) stored(ctx context.Context, from, to uint64) (map[uint64]*audited, error) {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	all := map[uint64]*audited{}
	rows, _ := a.cfg.DB.Query(ctx, selectAudited, a.cfg.ChainID, text(a.sender.address), int64(from), int64(to))
	for rows.Next() {
		c := &audited{}
		var nonce int64
		var escrow string
		var purposes, hashes []string
		var expires time.Time
		if err := rows.Scan(&nonce, &c.ID, &c.Kind, &escrow, &expires, &c.state, &c.answered, &c.tx, &c.block,
			&c.CancelRequested, &purposes, &hashes); err != nil {
			return nil, fmt.Errorf("read the commands of sender %s: %w", a.sender.address, err)
		}

		c.Nonce, c.Escrow, c.ExpiresAt = uint64(nonce), common.HexToAddress(escrow), expires
		for i := range hashes {
			c.Attempts = append(c.Attempts, attempt{Number: i + 1, Purpose: purposes[i], Hash: common.HexToHash(hashes[i])})
		}

		all[c.Nonce] = c
	}

	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("read the commands of sender %s: %w", a.sender.address, err)
	}

	return all, nil
}
