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
		Short: "Show the factories of a chain; retire one, or follow it again",
		Long: `Show the factories that the fleet of a chain follows, retire one, or follow it again. One is added by FACTORY_ADDRESS: name it beside the others and start the instances anew,
one after the other.

Configuration: CHAIN_ID and DATABASE_URL.`,
	})
	cmd.AddCommand(factoryListCommand(), factoryRetireCommand(), factoryFollowCommand())

	return cmd
}

func factoryListCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "Show the factories, and how far the past of an added one is read",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				list, err := registry.Factories(ctx, db.Pool, cfg.ChainID)
				if err != nil {
					return err
				}

				t := newTable(cmd.OutOrStdout(), "factory", "from block", "state")
				for _, f := range list {
					state := "followed"
					switch {
					case f.Retired > 0:
						state = fmt.Sprintf("retired: deployments from block %d on are not followed", f.Retired)
					case f.Until > 0:
						state = fmt.Sprintf("followed; its past is read up to block %d of %d", f.Past-1, f.Until-1)
					}

					t.AppendRow(table.Row{f.Address, f.Start, state})
				}

				t.Render()

				return nil
			})
		},
	}
}

func factoryRetireCommand() *cobra.Command {
	var at int64
	cmd := &cobra.Command{
		Use:   "retire ADDRESS [--at BLOCK]",
		Short: "Follow no new deployment of a factory; its escrows are followed to their end",
		Args:  oneFactory,
		RunE: func(cmd *cobra.Command, args []string) error {
			if at < 0 {
				return fmt.Errorf("--at %d: a block number is 0 or more", at)
			}

			return changeFactory(cmd, args[0], func(ctx context.Context, tx pgx.Tx, chain int64, address common.Address) (string,
				error) {
				block, err := registry.RetireFactory(ctx, tx, chain, address, at)
				return fmt.Sprintf("is retired: deployments from block %d on are not followed", block), err
			})
		},
	}
	cmd.Flags().Int64Var(&at, "at", 0, "first block whose deployments are not followed; default: the next one of the chain")

	return cmd
}

func factoryFollowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "follow ADDRESS",
		Short: "Follow a retired factory again, with what it has deployed since",
		Args:  oneFactory,
		RunE: func(cmd *cobra.Command, args []string) error {
			return changeFactory(cmd, args[0], func(ctx context.Context, tx pgx.Tx, chain int64, address common.Address) (string,
				error) {
				return "is followed again; what it has deployed since is read as its past", registry.FollowFactory(ctx, tx, chain,
					address)
			})
		},
	}
}

// oneFactory is for commands that name a factory.
func oneFactory(_ *cobra.Command, args []string) error {
	if len(args) != 1 || !common.IsHexAddress(args[0]) {
		return errors.New("name one factory: 0x and 40 hexadecimal digits, as `escrow-relayer factory list` shows it")
	}

	return nil
}

// changeFactory makes a change in one transaction, and prints what has become of the factory.
func changeFactory(cmd *cobra.Command, factory string,
	change func(ctx context.Context, tx pgx.Tx, chain int64, address common.Address) (string, error)) error {
	return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
		address, done := common.HexToAddress(factory), ""
		err := pgx.BeginTxFunc(ctx, db.Pool, registry.Durable, func(tx pgx.Tx) (err error) {
			done, err = change(ctx, tx, cfg.ChainID, address)
			return err
		})
		if err == nil {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "factory %s of chain %d %s\n", address, cfg.ChainID, done)
		}

		return err
	})
}
