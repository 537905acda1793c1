package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func senderCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "sender",
		Short: "Pause the accounts that commands act through, and let a halted one go on; `status` shows them"})
	cmd.AddCommand(senderAddressCommand(), senderPauseCommand(), senderResumeCommand(), senderAdoptCommand())

	return cmd
}

func senderAddressCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "address < PUBLIC-KEY",
		Short: "Print the address of a public key from standard input, as Cloud KMS gives it",
		Long: "Print the address of a public key of secp256k1 in PEM from standard input,\n" +
			"as `gcloud kms keys versions get-public-key` writes it. Needs no configuration.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := readInput(cmd, 1<<16)
			if err != nil {
				return err
			}

			address, err := sign.AddressOf(text)
			if err != nil {
				return err
			}

			fmt.Fprintln(cmd.OutOrStdout(), address)

			return nil
		},
	}
}

// shown is a value in a table: a dash for nil.
func shown[T any](p *T) any {
	if p == nil {
		return "–"
	}

	return *p
}

// actOnSender creates a command that acts on the sender of --sender. check validates its other
// flags first.
func actOnSender(cmd *cobra.Command, check func() error,
	act func(ctx context.Context, db *pgxpool.Pool, chainID int64, sender common.Address) error) *cobra.Command {
	text := cmd.Flags().String("sender", "", "address of the account")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !common.IsHexAddress(*text) {
			return fmt.Errorf("--sender %q is not an address", *text)
		}

		if err := check(); err != nil {
			return err
		}

		return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
			return refusal(act(ctx, db.Pool, cfg.ChainID, common.HexToAddress(*text)))
		})
	}

	return cmd
}

func senderPauseCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pause --sender ADDRESS --reason TEXT",
		Short: "Keep a sender from taking new commands; what is under way is followed and answered",
	}
	reason := cmd.Flags().String("reason", "", "why, for others to see")
	check := func() error {
		if *reason == "" {
			return errors.New("--reason is missing: others will see it")
		}

		return nil
	}

	return actOnSender(cmd, check, func(ctx context.Context, db *pgxpool.Pool, chainID int64,
		sender common.Address) error {
		return send.Pause(ctx, db, chainID, sender, *reason)
	})
}

func senderResumeCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "resume --sender ADDRESS", Short: "End a pause"}
	return actOnSender(cmd, func() error { return nil }, send.Resume)
}

func senderAdoptCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "adopt-nonce --sender ADDRESS",
		Short: "Let a halted sender go on, with the next nonce that the chain shows",
		Long: `Let a halted sender go on, with the next nonce that the chain shows: above every nonce that an endpoint of RPC_URLS knows, and above those that commands have. Look at the account in an explorer first. A halt that names no transaction ends by itself once no endpoint knows such a nonce any more.
If somebody else has the key, replace the key instead.

Nothing new is sent before all nonces below are final and every endpoint answers. A command whose nonce was used by a transaction that was not signed here becomes superseded.

Until then status shows no nonce. An endpoint that tells of nonces that nobody used, or that does not answer, has to leave RPC_URLS.`,
	}

	return actOnSender(cmd, func() error { return nil }, send.AdoptNonce)
}
