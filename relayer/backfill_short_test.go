//go:build !long

package relayer_test

import "time"

// An endpoint's allowance that a test of half a minute can bear.
const itemsPerSecond = 50

// firstStartLimit is how long a first start may take on a machine that is ten times busier.
const firstStartLimit = 5 * time.Minute
