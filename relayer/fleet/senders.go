package fleet

import (
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// Sender is an account that commands act through: its row, and its open commands. Amounts are wei, as decimal numbers.
type Sender struct {
	Address  string `json:"address"` // lower case
	Name     string `json:"name"`    // as in the senders file of the last owner
	State    string `json:"state"`   // active, paused or halted
	Reason   string `json:"reason,omitempty"`
	Instance string `json:"instance"` // the owner, or the last one
	// Served reports that a session holds the sender's lock, so its commands are processed.
	Served      bool   `json:"served" db:"-"`
	NextNonce   *int64 `json:"next_nonce"` // null until an owner has read it from the chain
	InFlight    int    `json:"in_flight"`  // commands with a nonce but no answer
	MaxInFlight int    `json:"max_in_flight"`
	Waiting     int    `json:"waiting"` // commands without a nonce; counted up to countedCommands
	// OldestAge is that of the oldest command that could be on its way: it has a nonce, or waits for its first look.
	OldestAge Age `json:"oldest_age_seconds" db:"-"`
	// UnsignedAge is that of the oldest command that lacks nothing but a signature.
	UnsignedAge Age `json:"unsigned_age_seconds" db:"-"`
	Budget      int `json:"waiting_for_budget"`  // commands beyond the rest of the day's budget
	Underpriced int `json:"waiting_for_fees"`    // commands whose fee limit is below the chain's current price
	Unfunded    int `json:"waiting_for_balance"` // commands beyond the account's balance

	Balance    string `json:"balance"` // empty until first read
	MaxFee     string `json:"max_fee"` // of one command
	SpentFees  string `json:"spent_fees"`
	DayFees    string `json:"day_fees"`
	SpentValue string `json:"spent_value"`
	DayValue   string `json:"day_value"`
}

// Label is the name of the sender, or its address.
func (s *Sender) Label() string {
	if s.Name != "" {
		return s.Name
	}

	return s.Address
}

// Command is one of the last commands, and its progress.
type Command struct {
	ID          string     `json:"command_id"`
	Kind        string     `json:"kind"`
	Sender      string     `json:"sender"`
	Escrow      string     `json:"escrow"`
	Requester   string     `json:"requester"` // its signer; keeper: the relayer itself
	Reference   string     `json:"reference,omitempty"`
	State       string     `json:"state"`
	Code        string     `json:"code,omitempty"`
	Detail      string     `json:"detail,omitempty"`
	Nonce       *int64     `json:"nonce"`
	Attempts    int        `json:"signed_transactions"` // transactions signed for it, voids included
	Transaction string     `json:"transaction_hash,omitempty"`
	Block       int64      `json:"block_number,omitempty"`
	Received    time.Time  `json:"received_at"`
	Assigned    *time.Time `json:"assigned_at"` // its turn to be signed came
	Sent        *time.Time `json:"sent_at"`     // its first transaction was signed and recorded
	Answered    *time.Time `json:"answered_at"`
}

// Replies are the answers that wait for Pub/Sub's acknowledgement.
type Replies struct {
	Messages  int64 `json:"messages"` // counted up to countedCommands
	OldestAge Age   `json:"oldest_age_seconds"`
}

const (
	// countedCommands is how many waiting commands of a sender, and how many answers, are counted: about 10 ms.
	countedCommands = 10_000
	// forgetSender is how long an idle sender without an instance is shown, for example after its
	// key was removed from the senders files.
	forgetSender = time.Hour
	// lastCommands is how many of the last commands a Fleet has.
	lastCommands = 12
)

// HasCommands reports whether the chain has ever had a sender or a command. Otherwise everything
// about commands is left out.
func (f *Fleet) HasCommands() bool { return len(f.Senders) > 0 || len(f.Commands) > 0 }

// queueCommands queues the statements about commands. Without commands all their tables are empty.
func (r *rows) queueCommands(batch *pgx.Batch) {
	batch.Queue(selectSenders, r.f.ChainID, countedCommands).Query(r.readSenders)
	batch.Queue(selectCommands, r.f.ChainID, lastCommands).Query(into(&r.f.Commands))
	batch.Queue(selectReplies, r.f.ChainID, countedCommands).QueryRow(r.readReplies)
}

// selectSenders has the columns of senderRow, in their order. It counts only through the partial
// indexes of open commands.
const selectSenders = `
	select s.address, s.name, s.state, coalesce(s.reason, ''), coalesce(s.instance_id, ''),
	       case when s.wait_final >= 0 then s.next_nonce end, f.n, s.max_in_flight, w.n, w.budget,
	       f.underpriced + w.underpriced, w.unfunded, coalesce(s.balance::text, ''), s.max_fee::text,
	       case when s.spend_day >= (now() at time zone 'utc')::date then s.spent_fees else 0 end::text, s.day_fees::text,
	       case when s.spend_day >= (now() at time zone 'utc')::date then s.spent_value else 0 end::text, s.day_value::text,
	       s.lock_key, s.updated_at, least(f.oldest, w.oldest), w.unsigned
	  from senders s
	  cross join lateral (
	       select count(*) as n, min(c.assigned_at) as oldest,
	              count(*) filter (where c.code = 'underpriced') as underpriced
	         from commands c
	        where c.chain_id = s.chain_id and c.sender = s.address and c.state = 'sent') f
	  cross join lateral (
	       select count(*) as n, min(o.next_look) filter (where o.code = '' and o.next_look <= now()) as oldest,
	              min(o.assigned_at) filter (where o.code = 'signer') as unsigned,
	              count(*) filter (where o.code = 'underpriced') as underpriced, count(*) filter (where o.code = 'budget') as budget,
	              count(*) filter (where o.code = 'balance') as unfunded
	         from (select code, next_look, assigned_at from commands c
	                where c.chain_id = s.chain_id and c.sender = s.address and c.state = 'accepted'
	                order by next_look limit $2) o) w
	 where s.chain_id = $1
	 order by s.name, s.address`

// senderRow is a sender as the statement returns it.
type senderRow struct {
	Sender
	LockKey  int64
	Worked   time.Time  // when its owner last wrote the row
	Oldest   *time.Time // since when Sender.OldestAge counts
	Unsigned *time.Time // since when Sender.UnsignedAge counts
}

func (r *rows) readSenders(rows pgx.Rows) error {
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[senderRow])
	for i := range all {
		row := &all[i]
		s := &row.Sender
		_, s.Served = r.locks[row.LockKey]
		r.foreign(row.LockKey, "sender "+s.Label())
		s.OldestAge, s.UnsignedAge = r.ageOf(row.Oldest), r.ageOf(row.Unsigned)
		retired := !s.Served && s.InFlight+s.Waiting == 0 && time.Duration(r.age(row.Worked)) > forgetSender
		if retired {
			continue
		}

		if slices.ContainsFunc(r.f.Senders, func(o Sender) bool { return o.Name == s.Name }) {
			s.Name = s.Address // a metric's label must be unique
		}

		r.f.Senders = append(r.f.Senders, *s)
	}

	return err
}

const selectCommands = `
	select c.command_id, c.kind, c.sender, c.escrow, c.requester, c.reference, c.state, c.code, c.detail, c.nonce,
	       (select count(*) from command_attempts a where a.chain_id = c.chain_id and a.sender = c.sender
		and a.nonce = c.nonce),
	       coalesce(c.tx_hash, ''), coalesce(c.block_number, 0), c.received_at at time zone 'UTC',
	       c.assigned_at at time zone 'UTC', c.sent_at at time zone 'UTC', c.answered_at at time zone 'UTC'
	  from commands c
	 where c.chain_id = $1
	 order by c.seq desc
	 limit $2`

const selectReplies = `
	select count(*), min(created_at) from (select created_at from replies where chain_id = $1 order by seq limit $2) r`

func (r *rows) readReplies(row pgx.Row) error {
	var oldest *time.Time
	var n int64
	if err := row.Scan(&n, &oldest); err != nil {
		return err
	}

	if n > 0 {
		r.f.Replies = &Replies{Messages: n, OldestAge: r.age(*oldest)}
	}

	return nil
}

// LowBalance is how many commands, each at the sender's fee limit, a balance should last for.
const LowBalance = 10

// Low reports that the balance lasts for fewer than LowBalance commands.
func (s *Sender) Low() bool {
	balance, read := new(big.Int).SetString(s.Balance, 10)
	fee, ok := new(big.Int).SetString(s.MaxFee, 10)

	return read && ok && balance.Cmp(fee.Mul(fee, big.NewInt(LowBalance))) < 0
}

// judgeCommands finds one problem per kind, which names every affected sender.
func (f *Fleet) judgeCommands(p *problems) {
	add := func(kind string, severity Severity, remedy, text string, is func(*Sender) string) {
		var who []string
		for i := range f.Senders {
			if said := is(&f.Senders[i]); said != "" {
				who = append(who, f.Senders[i].Label()+said)
			}
		}

		if len(who) > 0 {
			p.add(kind, severity, remedy, "%s: %s", text, strings.Join(who, "; "))
		}
	}
	add(HaltedSender, Critical, "look at the account in an explorer; the reason names the next step",
		"commands wait, because a sender is halted", func(s *Sender) string {
			if s.State != "halted" {
				return ""
			}

			return ": " + s.Reason
		})
	add(UnsignedCommand, Critical, "look at the key's permission and quota, and at the owner's log",
		"the signer does not answer", func(s *Sender) string { return aged(s.UnsignedAge, LimitUnsigned) })
	add(LowFees, Warning, "raise the sender's fee limit if the price stays",
		"the chain asks for more than commands may pay", func(s *Sender) string { return counted(s.Underpriced) })
	add(SpentBudget, Warning, "raise the budget, or wait until midnight UTC",
		"the budget of the day is used up", func(s *Sender) string { return counted(s.Budget) })
	add(OldCommand, Warning, "`escrow-relayer command list --open` and `command show` tell what each waits for",
		"a command is not finished", func(s *Sender) string { return aged(s.OldestAge, LimitCommand(f.finalityLimit())) })
	add(LowBalanceOf, Warning, "send ether to the account",
		fmt.Sprintf("the balance lasts for fewer than %d commands", LowBalance), func(s *Sender) string {
			if !s.Low() {
				return ""
			}

			return " (" + s.Address + ")"
		})

	if r := f.Replies; r != nil {
		p.add(OldReplies, LimitReplies.Of(r.OldestAge),
			"look at REPLIES_TOPIC_ID, at the topic's permissions, and at the log of the instances that have it",
			"the oldest of %d answers has waited for Pub/Sub for %s", r.Messages, r.OldestAge)
	}
}

func counted(commands int) string {
	if commands == 0 {
		return ""
	}

	return fmt.Sprintf(" (%d waiting)", commands)
}

func aged(age Age, limit Limit) string {
	if limit.Of(age) == "" {
		return ""
	}

	return " for " + age.String()
}
