package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return nil
		},
	}
}

// versionLine is what `version`, `--version` and `-v` print.
func versionLine() string {
	build := built()

	return fmt.Sprintf("escrow-relayer %s, commit %s of %s, %s %s/%s", build.Version, build.Commit, build.Date,
		runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
