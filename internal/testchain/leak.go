package testchain

import "go.uber.org/goleak"

// IgnoreLeaks are for goleak in the TestMain of a package that uses Sim: goroutines that
// go-ethereum starts once per process and keeps, one that ends a second after its database was
// closed, and one per subscription that was open when its node stopped: it waits for the node's event
// loop, which ends at the same time and may be gone (eth/filters, Subscription.Unsubscribe).
func IgnoreLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/eth/filters.(*FilterAPI).NewHeads.func1"),
	}
}
