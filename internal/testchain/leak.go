package testchain

import "go.uber.org/goleak"

// IgnoreLeaks are for goleak in the TestMain of a package that uses Sim: goroutines that
// go-ethereum starts once per process and keeps, and one that ends a second after its database was
// closed.
func IgnoreLeaks() []goleak.Option {
	return []goleak.Option{
		goleak.IgnoreAnyFunction("github.com/ethereum/go-ethereum/core.(*txSenderCacher).cache"),
		goleak.IgnoreAnyFunction("github.com/syndtr/goleveldb/leveldb.(*DB).mpoolDrain"),
	}
}
