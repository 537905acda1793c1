package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/registry"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func rewindCommand() *cobra.Command {
	to := int64(-1)
	cmd := &cobra.Command{
		Use:   "rewind --to BLOCK",
		Short: "Read the chain from an earlier block on than it was started with",
		Long: `Read the chain from an earlier block on than it was started with: a START_BLOCK that was too high has left escrows out, and the database remembers it
whatever START_BLOCK says later.

The running fleet reads the events of the chain's factories from BLOCK on, beside the newest blocks: nothing else is delayed. An escrow that had been left
out is registered and caught up from its deployment on, in order; what is stored already, and what RETENTION has removed, is not published again.
` + "`escrow-relayer status`" + ` shows how far the past is read. Set START_BLOCK to the same block.

Configuration: CHAIN_ID and DATABASE_URL.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if to < 0 {
				return errors.New("say to which block: --to BLOCK, 0 or more")
			}

			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				was, err := registry.Rewind(ctx, db.Pool, cfg.ChainID, to)
				if err == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "chain %d is read from block %d on; it was %d\n", cfg.ChainID, to, was)
				}

				return err
			})
		},
	}
	cmd.Flags().Int64Var(&to, "to", -1, "first block to read")

	return cmd
}
