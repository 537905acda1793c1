//go:build long

package main

import (
	"context"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

func init() {
	independent["anvil"] = func(ctx context.Context, o testchain.Options) (testchain.Node, error) {
		return testchain.StartAnvil(ctx, o)
	}

	deceits = nil
	for lie := range waysToLie {
		for honest := range 3 {
			if lie == "own" && honest == 1 { // of two valid chains none is decided for
				continue
			}

			deceits = append(deceits, deceit{lie, false, honest}, deceit{lie, true, honest})
		}
	}
}
