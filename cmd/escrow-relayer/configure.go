package main

import (
	"fmt"
	"io"

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
	var asJSON, every bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show what each chain is configured with, and where that is set; secrets are masked",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := loadAll(cmd, config.Load)
			if err != nil {
				return err
			}

			if asJSON {
				return printJSON(cmd.OutOrStdout(), shownChains(all, every))
			}

			for _, c := range shownChains(all, every) {
				c.print(cmd.OutOrStdout())
			}

			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	cmd.Flags().BoolVar(&every, "all", false, "with the settings that have their default")

	return cmd
}

// shownChain is the printable configuration of a chain.
type shownChain struct {
	ChainID  int64            `json:"chain_id"`
	Settings []config.Setting `json:"settings"`
}

func shownChains(all []*config.Config, every bool) (shown []shownChain) {
	for _, c := range all {
		one := shownChain{ChainID: c.ChainID}
		for _, s := range c.Settings() {
			if every || s.From != config.FromDefault {
				one.Settings = append(one.Settings, s)
			}
		}

		shown = append(shown, one)
	}

	return shown
}

func (c shownChain) print(w io.Writer) {
	fmt.Fprintf(w, "chain %d\n", c.ChainID)
	t := newTable(w, "setting", "value", "from")
	for _, s := range c.Settings {
		t.AppendRow(table.Row{s.Name, s.Value, s.From})
	}

	t.Render()
}

func configSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file, for editors",
		RunE:  func(cmd *cobra.Command, _ []string) error { return config.Schema(cmd.OutOrStdout()) },
	}
}
