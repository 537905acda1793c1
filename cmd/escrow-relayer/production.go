//go:build production

package main

import "github.com/spf13/cobra"

func demonstrations() []*cobra.Command { return nil }

// leftOut says of each command that this build does not have where it is.
var leftOut = map[string]string{
	"demo": "demo is not part of this binary, which was built for deployment (tag production): use the one that `make build` makes",
}
