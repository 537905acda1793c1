package main

import (
	"fmt"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

func configCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "config",
		Short: "Check and show the configuration: the file of --config or CONFIG_FILE, or the environment",
	})
	cmd.AddCommand(configCheckCommand(), configShowCommand(), configSchemaCommand())

	return cmd
}

func configCheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Report everything that is wrong with the configuration of every chain; nothing is asked over the network",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := loadAll(cmd, config.Load)
			if err != nil {
				return err
			}

			out := printable{cmd.OutOrStdout()}
			for _, c := range all {
				for _, w := range c.Warnings {
					fmt.Fprintf(out, "note: %s=%s: %s\n", w.Variable, w.Value, w.Remedy)
				}
			}

			fmt.Fprintf(out, "the configuration of %s is well; doctor tries it\n", names(all))

			return nil
		},
	}
}

func configShowCommand() *cobra.Command {
	var every bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what each chain is configured with, and where that is set; secrets are masked",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := loadAll(cmd, config.Load)
			if err != nil {
				return err
			}

			for _, c := range all {
				fmt.Fprintf(cmd.OutOrStdout(), "chain %d\n", c.ChainID)
				t := newTable(cmd.OutOrStdout(), "setting", "value", "from")
				for _, s := range c.Settings() {
					if every || s.From != config.FromDefault {
						t.AppendRow(table.Row{s.Name, s.Value, s.From})
					}
				}

				t.Render()
			}

			return nil
		},
	}
	cmd.Flags().BoolVar(&every, "all", false, "with the settings that have their default")

	return cmd
}

func configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file, for editors",
		RunE:  func(cmd *cobra.Command, _ []string) error { return config.Schema(cmd.OutOrStdout()) },
	}
}
