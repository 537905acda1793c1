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
			build := built()
			fmt.Fprintf(cmd.OutOrStdout(), "escrow-relayer %s, commit %s of %s, %s %s/%s\n", build.Version,
				build.Commit, build.Date, runtime.Version(), runtime.GOOS, runtime.GOARCH)

			return nil
		},
	}
}
