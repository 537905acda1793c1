//go:build production

package main

import "github.com/spf13/cobra"

func demonstrations() []*cobra.Command { return nil }
