package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func factoryCommand() *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "factory",
		Short: "Show the factories of a chain; retire one",
		Long: `Show the factories that the fleet of a chain follows, and retire one. One is added by FACTORY_ADDRESS: name it beside the others and start the instances anew,
one after the other.

Configuration: CHAIN_ID and DATABASE_URL.`,
	})
	cmd.AddCommand(factoryListCommand(), factoryRetireCommand())

	return cmd
}

// followedFactory is a factory as `factory list --json` shows it.
type followedFactory struct {
	Address common.Address `json:"address"`
	Start   int64          `json:"start_block"`
	Retired int64          `json:"retired_block,omitempty"` // first block whose deployments are not followed
	Past    int64          `json:"past_block,omitempty"`    // next block of its past, of those up to UntilBlock, exclusive
	Until   int64          `json:"until_block,omitempty"`
}

func factoryListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show the factories, and how far the past of an added one is read",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				list, err := registry.Factories(ctx, db.Pool, cfg.ChainID)
				if err != nil {
					return err
				}

				shown := make([]followedFactory, len(list))
				t := newTable(cmd.OutOrStdout(), "factory", "from block", "state")
				for i, f := range list {
					shown[i] = followedFactory{f.Address, f.Start, f.Retired, f.Past, f.Until}
					state := "followed"
					switch {
					case f.Retired > 0:
						state = fmt.Sprintf("retired: deployments from block %d on are not followed", f.Retired)
					case f.Until > 0:
						state = fmt.Sprintf("followed; its past is read up to block %d of %d", f.Past-1, f.Until-1)
					}

					t.AppendRow(table.Row{f.Address, f.Start, state})
				}

				if asJSON {
					return printJSON(cmd.OutOrStdout(), shown)
				}

				t.Render()

				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")

	return cmd
}

func factoryRetireCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "retire ADDRESS",
		Short: "Follow no new deployment of a factory; its escrows are followed to their end",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !common.IsHexAddress(args[0]) {
				return usage{errors.New("name one factory: 0x and 40 hexadecimal digits, as `escrow-relayer factory list` shows it")}
			}

			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) (err error) {
				address, block := common.HexToAddress(args[0]), int64(0)
				if err := pgx.BeginTxFunc(ctx, db.Pool, registry.Durable, func(tx pgx.Tx) (err error) {
					block, err = registry.RetireFactory(ctx, tx, cfg.ChainID, address)
					return err
				}); err != nil {
					return err
				}

				_, err = fmt.Fprintf(cmd.OutOrStdout(), "factory %s of chain %d is retired: deployments from block %d on are not followed\n",
					address, cfg.ChainID, block)

				return err
			})
		},
	}
}
