package outbox

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fusion-prime/escrow-relayer/relayer/column"
)

// Answers is the outbox of the way back, the table replies: answers to commands, each stored in the
// transaction that brings its command into the state that the answer tells of. It is safe for
// concurrent use.
//
// It is a table beside that of events for two reasons. The owner of a slot may be an instance
// without REPLIES_TOPIC_ID, which could not publish an answer. And whichever instance has a sender
// writes its answers, so that a row may become visible behind one with a higher number; the rows of
// one command keep their order, since their transactions lock it.
type Answers struct {
	DB      *pgxpool.Pool
	ChainID int64
}

// AnswersChannel is the notification channel on which new answers are announced; the payload is the
// chain id.
const AnswersChannel = "relayer_replies"

// Answer is the message of an answer.
type Answer struct {
	Body       []byte
	Attributes map[string]string
}

const insertAnswers = `
	insert into replies (chain_id, command_id, state, code, reply_to, body)
	select $1, a ->> 'command_id', a ->> 'state', coalesce(a ->> 'code', ''), coalesce(a ->> 'reply_to', ''), a
	  from json_array_elements($2::json) with ordinality as r (a, place)
	 order by place`

// AddAnswers stores answers in the caller's transaction, in their order: a slice of command.Answer.
func AddAnswers[T any](ctx context.Context, tx pgx.Tx, chainID int64, answers []T) error {
	if len(answers) == 0 {
		return nil
	}

	if _, err := tx.Exec(ctx, insertAnswers, chainID, answers); err != nil {
		return fmt.Errorf("store %d answers: %w", len(answers), err)
	}

	if _, err := tx.Exec(ctx, `select pg_notify($1, $2::text)`, AnswersChannel, fmt.Sprint(chainID)); err != nil {
		return fmt.Errorf("announce %d answers: %w", len(answers), err)
	}

	return nil
}

// LaneOf is the lane of an answer: its command. What names no command has no order.
func (*Answers) LaneOf(p *Pending) Lane { return Lane{Command: p.Answer.Attributes["command_id"]} }

// Key is a lane's ordering key.
func (*Answers) Key(lane Lane) string { return lane.Command }

const (
	answerColumns = `r.seq, r.token, r.command_id, r.state, r.code, r.reply_to, r.body::text`
	answersPage   = `
	select ` + answerColumns + ` from replies r
	 where chain_id = @chain and seq > @last and command_id <> all(@without::text[])
	 order by seq limit @limit`
)

// Page is Box's, of all answers.
func (a *Answers) Page(ctx context.Context, _ Right, _ []int16, last int64, limit int,
	without []Lane) (page []Found, next int64, err error) {
	page, err = read(ctx, a.DB, answersPage, pgx.StrictNamedArgs{"chain": a.ChainID, "last": last, "limit": limit,
		"without": column.Of(without, func(l *Lane) string { return l.Command })}, a.scan)
	if err != nil {
		return nil, 0, fmt.Errorf("read the answers behind %d: %w", last, err)
	}

	return page, 0, nil
}

func (a *Answers) scan(row pgx.CollectableRow) (f Found, err error) {
	var id, state, code, replyTo string
	f.Answer = &Answer{}
	err = row.Scan(&f.Seq, &f.Token, &id, &state, &code, &replyTo, &f.Answer.Body)
	f.Answer.Attributes = map[string]string{"command_id": id, "state": state, "code": code, "reply_to": replyTo,
		"chain_id": strconv.FormatInt(a.ChainID, 10)}

	return f, err
}

// Delete is Box's.
func (a *Answers) Delete(ctx context.Context, rows []Sent, limit time.Duration) error {
	return remove(ctx, a.DB, "replies", a.ChainID, rows, limit)
}

// Doubt notes nothing: an answer has its revision, which tells a repetition.
func (*Answers) Doubt(context.Context, []int16) error { return nil }
