package watch

import "github.com/fusion-prime/escrow-relayer/relayer/chain"

const QuietPause = quietPause

// Ranged is the filter for ranges; the slot watch has ended.
func (f *Filters) Ranged() *chain.Filter { return f.ranged }
