//go:build long

package relayer_test

import "time"

// The allowance of a free endpoint.
const itemsPerSecond = 5

// firstStartLimit is how long a first start may take on a machine that is ten times busier.
const firstStartLimit = 15 * time.Minute
