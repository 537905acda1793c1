package chaos

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/fusion-prime/escrow-relayer/internal/faults"
	"github.com/fusion-prime/escrow-relayer/internal/testpg"
	"github.com/fusion-prime/escrow-relayer/internal/testpubsub"
)

// Kind of a fault. Those that the code tells apart have a name here; kinds has all.
type Kind string

// Kinds of faults.
const (
	Kill          Kind = "kill"
	Freeze        Kind = "freeze"
	Term          Kind = "term"
	SlowStart     Kind = "slow-start"
	KillAfterAck  Kind = "kill-after-ack"
	TakeoverReorg Kind = "reorg-takeover"
	BackfillReorg Kind = "reorg-backfill"

	FreezeInCommit Kind = "freeze-in-commit"
	HangingClaimer Kind = "hanging-claimer"
	Grow           Kind = "abi-grows"
	Repartition    Kind = "repartition"

	DBSwallow   Kind = "db-swallow"
	NodeSwallow Kind = "node-swallow"
	NodeLoss    Kind = "node-loss"
	TopicGone   Kind = "topic-gone"

	Reorg      Kind = "reorg"
	DeepReorg  Kind = "deep-reorg"
	ShiftReorg Kind = "reorg-shift"
	LateStayed Kind = "late-stayed"

	NodeSlow      Kind = "node-slow"
	NodeLimited   Kind = "node-429"
	NodeFailing   Kind = "node-5xx"
	NodeTruncated Kind = "node-truncated"
	NodeMalformed Kind = "node-malformed"
	NodeHTML      Kind = "node-html"
	NodeOmits     Kind = "node-omits"
	NodePruned    Kind = "node-pruned"
	NodeForgets   Kind = "node-forgets"
	NodeUneven    Kind = "node-uneven"
	NodeStayed    Kind = "node-stayed"
	NodeStands    Kind = "node-stands"
	NodeWords     Kind = "node-words"
	NodeChain     Kind = "node-chain"
	NodeLies      Kind = "node-lies"

	// Of the way back. Those of a step are at one of commandSteps, those of a broadcast hit eth_sendRawTransaction.
	StepKill    Kind = "step-kill"
	StepFreeze  Kind = "step-freeze"
	StepCut     Kind = "step-cut"
	SendHang    Kind = "send-hang"
	SendFreeze  Kind = "send-freeze"
	ReceiptLate Kind = "receipt-late"
	Spike       Kind = "price-spike"
	Flood       Kind = "flood"
	ForeignUse  Kind = "foreign-use"
	Restore     Kind = "db-restore"
)

// span is so many numbers, from the first on.
type span struct{ from, many int }

// kind is what is known of a kind of fault.
type kind struct {
	events, commands int           // how often it is among those that a plan of either sort draws from
	n                span          // Fault.N is drawn from it; a reorganisation's by depth
	more             time.Duration // it lasts longer than what is drawn
	both             bool          // Fault.Both is drawn
	doubt            bool          // a message may come twice: its sender does not learn or note that Pub/Sub has it
	outage           bool          // of Pub/Sub: an orderly stop may not have the time to wait for its end
	stops            bool          // it stops instances in order
	forgets          bool          // of Postgres: it may lose what it has committed, unless it flushes each commit
	reorganises      bool
	node             faults.Fault // what a node does
	do               func(*run, context.Context, Fault) error
}

// group are kinds that are made alike, but for those that say how themselves.
type group struct {
	do    func(*run, context.Context, Fault) error
	kinds map[Kind]kind
}

// kinds has all faults.
var kinds = func(all ...group) map[Kind]kind {
	found := map[Kind]kind{}
	for _, g := range all {
		for name, k := range g.kinds {
			if k.do == nil {
				k.do = g.do
			}

			found[name] = k
		}
	}

	return found
}(processKinds, databaseKinds, networkKinds, pubsubKinds, chainKinds, nodeKinds, commandKinds)

var processKinds = group{(*run).hitProcess, map[Kind]kind{
	Kill:       {events: 2, commands: 2, doubt: true},                     // SIGKILL, and a new start later
	"kill-all": {events: 1, commands: 1, doubt: true, do: (*run).killAll}, // all at once
	Freeze:     {events: 2, commands: 2, more: sec, doubt: true},          // SIGSTOP for longer than the session lives
	Term:       {events: 1, commands: 1, stops: true},                     // SIGTERM, and a new start later
	SlowStart:  {events: 1, commands: 1, doubt: true},                     // frozen in the middle of the next start
	// SIGKILL between Pub/Sub's acknowledgement and the deletion from the outbox
	KillAfterAck: {events: 2, doubt: true},
	// a reorganisation while the slots of a dead instance are taken over
	TakeoverReorg: {events: 2, commands: 1, doubt: true, reorganises: true},
	// all killed, many blocks, and a reorganisation while they catch up
	BackfillReorg: {events: 2, doubt: true, reorganises: true, do: (*run).killAll},
	// SIGSTOP while a transaction is open that has written to table N of frozenTables
	FreezeInCommit: {events: 3, commands: 1, n: span{0, len(frozenTables)}, more: 2 * sec, doubt: true,
		do: (*run).freezeInCommit},
	// an instance's writes to slot_ownership hang; Keep: to relayer_instances
	HangingClaimer: {events: 2, more: 2 * sec, doubt: true, do: (*run).hangClaimer},
	Repartition:    {n: span{1, 5}, stops: true, do: (*run).repartition}, // a rolling restart with another total
	// The fleet begins with ABIs that lack events (see lesserABIs). This fault is a rolling restart with all of them.
	Grow: {doubt: true, stops: true, do: (*run).growABIs},
}}

// databaseKinds are those that every instance sees.
var databaseKinds = group{nil, map[Kind]kind{
	"session": {events: 2, commands: 1, doubt: true, do: terminates(ofInstance + ` and exists (
		select from pg_locks l where l.pid = a.pid and l.locktype = 'advisory')`)},
	"backends": {events: 1, commands: 1, doubt: true, do: terminates(ofFleet)}, // every connection of every instance
	"flap":     {events: 1, commands: 1, doubt: true, do: (*run).flap},         // whoever leads, every 250 ms
	// SIGKILL of one server process: Postgres recovers by itself
	"backend-crash": {events: 4, doubt: true, forgets: true, do: (*run).killBackend},
	"pg-restart":    {events: 1, commands: 1, doubt: true, do: restarts(testpg.Fast, false)},
	"pg-crash":      {events: 1, commands: 1, doubt: true, forgets: true, do: restarts(testpg.Immediate, false)},
	"db-down":       {events: 1, commands: 1, doubt: true, forgets: true, do: restarts(testpg.Immediate, true)},
	// another client takes all connections that there are, and an instance loses its own
	"db-connections": {events: 1, doubt: true, do: (*run).takeConnections},
	// writes fail with a code of refusals
	"db-refuse": {events: 2, n: span{0, len(refusals)}, doubt: true, do: (*run).refuse},
	// statements are cancelled in the middle, as a timeout set by somebody else does
	"db-cancel":   {events: 1, commands: 1, doubt: true, do: (*run).cancelStatements},
	"db-locks":    {events: 1, commands: 1, doubt: true, do: (*run).lockRows}, // the rows that commits need
	"db-deadlock": {events: 1, doubt: true, do: (*run).deadlock},              // the other way round
	// N milliseconds for each row that is deleted from the outbox
	"slow-deletes": {events: 2, n: span{2, 30}, more: 2 * sec, doubt: true, do: (*run).slowNotes},
	// of stored events, half of them requested by transactions that stay open
	"replays": {events: 6, do: (*run).replays},
}}

// networkKinds are of the network of one instance, or of all (Both). What is held arrives late, when nobody waits for
// it any more. Connections that are open swallow bytes; with Keep, those that are opened meanwhile too.
var networkKinds = group{nil, map[Kind]kind{
	"db-cut":         {events: 1, commands: 1, both: true, doubt: true, do: disturb(toDatabase, cut)},
	"db-freeze":      {events: 2, commands: 1, both: true, doubt: true, do: disturb(toDatabase, freeze)},
	"db-slow":        {events: 1, commands: 1, both: true, doubt: true, do: disturb(toDatabase, slow)},
	DBSwallow:        {events: 2, commands: 1, more: 2 * sec, both: true, doubt: true, do: disturb(toDatabase, swallow)},
	"db-hold":        {events: 1, commands: 1, both: true, doubt: true, do: disturb(toDatabase, hold)},
	"commit-hold":    {events: 2, commands: 2, doubt: true, do: (*run).holdCommit}, // of one commit only
	"pubsub-swallow": {events: 2, commands: 1, more: 2 * sec, both: true, doubt: true, do: disturb(toPubSub, swallow)},
	"pubsub-hold":    {events: 1, commands: 1, both: true, doubt: true, do: disturb(toPubSub, hold)},
	// between an instance and one of its nodes; Both: and the other one
	NodeSwallow: {events: 2, commands: 1, more: 2 * sec, both: true, do: disturb(toANode, swallow)},
	NodeLoss:    {events: 2, commands: 1, more: 2 * sec, do: disturb(toNodes, cut)}, // the others do reach nodes
}}

var pubsubKinds = group{nil, map[Kind]kind{
	"pubsub-down":   {events: 1, commands: 1, outage: true, do: pubsub(testpubsub.Fault{Code: codes.Unavailable})},
	"pubsub-denied": {events: 1, commands: 1, outage: true, do: pubsub(testpubsub.Fault{Code: codes.PermissionDenied})},
	"pubsub-slow":   {events: 1, commands: 1, outage: true, do: pubsub(testpubsub.Fault{Delay: 300 * time.Millisecond})},
	// stored, then an error that the client does not retry by itself
	"ack-lost": {events: 1, commands: 2, doubt: true, do: pubsub(testpubsub.Fault{Code: codes.Aborted, Stored: true,
		Times: 3})},
	// one ordering key in N
	"key-failing": {events: 2, n: span{2, 4}, outage: true, do: pubsub(testpubsub.Fault{Code: codes.PermissionDenied})},
	TopicGone:     {events: 1, outage: true, do: (*run).withoutTopic}, // deleted, and created again later
}}

var chainKinds = group{(*run).reorganise, map[Kind]kind{
	Reorg:      {events: 3, commands: 4, reorganises: true}, // not deeper than the confirmations
	DeepReorg:  {reorganises: true},                         // deeper
	ShiftReorg: {events: 3, commands: 1, reorganises: true}, // log indexes move by one to three, and back the next time
	// escrows that were found late are caught up in several ranges, behind gateways with two branches
	LateStayed: {events: 4, doubt: true, reorganises: true, do: (*run).lateAndStayed},
	// a block with hundreds of new escrows, one with their approvals, one with thousands of foreign logs
	"burst":         {events: 1, n: span{100, 200}, do: (*run).burst},
	"empty-stretch": {events: 1, commands: 1, n: span{20, 60}, do: (*run).stretch}, // many blocks without anything
	// The first endpoint deceives in way N of lies, from the next block on; the other one may fail meanwhile.
	NodeLies: {do: (*run).lie},
}}

// nodeKinds are of one of the two endpoints, or of both (Both), as package faults describes them.
var nodeKinds = group{nil, map[Kind]kind{
	"node-down":    {events: 2, commands: 1, node: faults.Fault{Mode: faults.Down}},
	NodeSlow:       {events: 1, commands: 1, node: faults.Fault{Mode: faults.Slow}},
	NodeLimited:    {events: 1, commands: 1, node: faults.Fault{Mode: faults.Limited}},
	NodeFailing:    {events: 1, commands: 1, node: faults.Fault{Mode: faults.Failing}},
	NodeTruncated:  {events: 1, commands: 1, node: faults.Fault{Mode: faults.Truncated}},
	NodeMalformed:  {events: 1, node: faults.Fault{Mode: faults.Malformed}},
	NodeHTML:       {events: 1, node: faults.Fault{Mode: faults.HTML}},
	"node-range":   {events: 1, n: span{1, 20}, node: faults.Fault{Mode: faults.Range}},
	"node-results": {events: 1, n: span{1, 20}, node: faults.Fault{Mode: faults.Results}},
	"node-behind":  {events: 2, commands: 1, n: span{1, 8}, node: faults.Fault{Mode: faults.Behind}},
	NodeOmits:      {events: 2, node: faults.Fault{Mode: faults.Omit}}, // of one, until the end: else nobody could notice
	"node-foreign": {events: 1, node: faults.Fault{Mode: faults.Foreign}},
	NodeChain:      {events: 1, n: span{5, 1}, node: faults.Fault{Mode: faults.Chain}},
	"node-silent":  {events: 2, commands: 1, node: faults.Fault{Mode: faults.Silent}},
	NodePruned:     {events: 1, n: span{20, 1}, node: faults.Fault{Mode: faults.Pruned}},
	NodeForgets:    {events: 2, n: span{1, 12}, node: faults.Fault{Mode: faults.Forgotten}}, // and does not say so
	// a gateway: some of its backends are N blocks behind; or keep the newest N blocks, which the chain leaves
	NodeUneven:   {events: 3, commands: 1, n: span{1, 20}, node: faults.Fault{Mode: faults.Behind, Share: 0.4}},
	NodeStayed:   {events: 3, commands: 2, reorganises: true, node: faults.Fault{Mode: faults.Stayed, Share: 0.4}},
	NodeWords:    {events: 1, n: span{1, 5}, node: faults.Fault{Mode: faults.Range}}, // in words that nobody knows
	NodeStands:   {node: faults.Fault{Mode: faults.Standing}},                        // with FINALITY=safe
	"node-batch": {events: 2, n: span{1, 12}, node: faults.Fault{Mode: faults.Batch}},
	"node-rate":  {events: 2, n: span{5, 30}, node: faults.Fault{Mode: faults.Rate}},
	// Of WebSockets: they answer pings only; their subscriptions are silent; they are closed every second.
	"node-deaf":   {events: 2, node: faults.Fault{Mode: faults.Deaf}},
	"node-mute":   {events: 2, node: faults.Fault{Mode: faults.Mute}},
	"node-closes": {events: 2, node: faults.Fault{Mode: faults.Closing, Delay: sec}},
}}

// commandKinds are of the way back. Those of a step are at one of commandSteps, those of a broadcast hit
// eth_sendRawTransaction.
var commandKinds = group{ofWay((*way).atStep), map[Kind]kind{
	StepKill:   {commands: 4, n: span{0, len(commandSteps)}, doubt: true},                // SIGKILL inside step N
	StepFreeze: {commands: 2, n: span{0, len(commandSteps)}, more: 4 * sec, doubt: true}, // SIGSTOP, beyond its locks
	StepCut:    {commands: 3, n: span{0, len(commandSteps)}, doubt: true},                // the connections end there
	// carried out, and the connection is cut before the answer; accepted and forgotten; refused in words N of sendWords
	"send-lost":   {commands: 2, do: misbehave(faults.SendLost)},
	"send-forget": {commands: 2, do: misbehave(faults.SendForgotten)},
	"send-refuse": {commands: 2, n: span{0, len(sendWords)}, do: misbehave(faults.SendRefused)},
	// taken by one node, which neither passes it on nor answers
	SendHang: {commands: 2, more: 2 * sec, do: ofWay((*way).hang)},
	// a node, or both, has no receipts; or has them receiptLag after it was first asked
	"receipt-null": {commands: 2, more: 4 * sec, both: true, do: ofWay((*way).hideReceipts)},
	ReceiptLate:    {commands: 2, more: 4 * sec, both: true, do: ofWay((*way).hideReceipts)},
	// SIGKILL of the owner when the bytes arrive, and SIGSTOP; Keep: and they are taken
	"send-kill": {commands: 3, doubt: true, do: ofWay((*way).crashSending)},
	SendFreeze:  {commands: 1, more: 2 * sec, doubt: true, do: ofWay((*way).crashSending)},
	// N full blocks: the base fee rises by an eighth with each; so many that no command pays, and then it falls again
	Spike:        {commands: 1, n: span{6, 12}, do: ofWay((*way).spike)},
	"price-rise": {commands: 1, n: span{30, 15}, do: ofWay((*way).spike)},
	// a requester, within its rights, asks for N approvals of what does not exist
	Flood: {commands: 3, n: span{300, 600}, do: ofWay((*way).flood)},
	// somebody else uses the key of sender N; Keep: for a nonce that is given out
	ForeignUse: {n: span{0, 3}, do: ofWay((*way).useKey)},
	// the database as it was For earlier; Keep: under running processes
	Restore:      {doubt: true, do: ofWay((*way).restore)},
	"cancel-all": {commands: 1, do: ofWay((*way).cancelEvery)},
}}

// ofWay is a fault of the way back.
func ofWay(do func(*way, context.Context, Fault) error) func(*run, context.Context, Fault) error {
	return func(r *run, ctx context.Context, f Fault) error { return do(r.way, ctx, f) }
}

// drawn are the kinds that a plan of events or of commands draws from: each as often as it is to come, in a fixed
// order.
func drawn(commands bool) (from []Kind) {
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		often := kinds[name].events
		if commands {
			often = kinds[name].commands
		}

		from = append(from, slices.Repeat([]Kind{name}, often)...)
	}

	return from
}

// Kinds returns, in alphabetical order, every kind of fault that some plan of NewPlan has, or of NewCommandsPlan.
func Kinds(commands bool) []Kind {
	all := append(drawn(commands), Repartition, DeepReorg, NodeStands, NodeLies, Grow)
	if commands {
		all = append(drawn(commands), DeepReorg, ForeignUse, Restore)
	}

	slices.Sort(all)

	return slices.Compact(all)
}

// newFault draws one fault. The order of the draws is part of what a seed means.
func newFault(r *rand.Rand, p Plan, from []Kind) Fault {
	f := Fault{
		At: time.Duration(r.Int64N(int64(p.Length * 8 / 10))), Kind: from[r.IntN(len(from))], Who: r.IntN(p.Instances),
		For: 200*time.Millisecond + time.Duration(r.Int64N(int64(3*time.Second))), Keep: r.IntN(2) == 0,
	}
	k := kinds[f.Kind]
	f.For += k.more
	switch {
	case k.reorganises:
		f.N = depth(r, f.Kind, p.Confirmations)
	case k.n.many > 0:
		f.N = k.n.from + r.IntN(k.n.many)
	}

	f.Both = (k.node.Mode != "" && f.Kind != NodeOmits || k.both) && r.IntN(3) == 0
	if f.Kind == NodeStands { // mostly of both: with one of two, the other one decides
		f.Both = !f.Both
	}

	return f
}

// depth draws that of a reorganisation.
func depth(r *rand.Rand, name Kind, confirmations int) int {
	shallow := 1 + r.IntN(cmp.Or(confirmations, 3)) // with FINALITY=latest none is
	switch name {
	case Reorg:
		return shallow
	case DeepReorg:
		return confirmations + 1 + r.IntN(5)
	case ShiftReorg:
		if r.IntN(2) == 0 {
			return 1 + r.IntN(confirmations+3)
		}
	default:
		if r.IntN(4) == 0 {
			return shallow + confirmations
		}
	}

	return shallow
}
