package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func senderCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "sender",
		Short: "Look at the accounts that commands act through, pause them, and let a halted one go on"})
	cmd.AddCommand(senderAddressCommand(), senderStatusCommand(),
		senderPauseCommand(), senderResumeCommand(), senderAdoptCommand())

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
				return usage{err}
			}

			fmt.Fprintln(cmd.OutOrStdout(), address)

			return nil
		},
	}
}

// senderRow is an operator's view of a sender.
type senderRow struct {
	Address     string     `json:"address"`
	State       string     `json:"state"`
	Reason      *string    `json:"reason"`
	Instance    *string    `json:"instance"`
	Since       *time.Time `json:"since"`
	NextNonce   *int64     `json:"next_nonce"`
	Waiting     int        `json:"waiting"`
	InFlight    int        `json:"in_flight"`
	OldestOpen  *time.Time `json:"oldest_open"`
	SpentFees   string     `json:"spent_fees"`  // wei, today
	SpentValue  string     `json:"spent_value"` // wei, today
	Balance     *string    `json:"balance"`     // wei
	SeenAtBlock *int64     `json:"seen_at_block"`
}

const selectSenders = `
	select s.address, s.state, s.reason, s.instance_id, s.since, s.next_nonce,
	       (select count(*) from commands c where c.chain_id = s.chain_id and c.sender = s.address
		and c.state = 'accepted'),
	       (select count(*) from commands c where c.chain_id = s.chain_id and c.sender = s.address
		and c.state = 'sent'),
	       (select min(received_at) from commands c where c.chain_id = s.chain_id and c.sender = s.address
		and c.answered_at is null),
	       case when s.spend_day = (now() at time zone 'utc')::date then s.spent_fees else 0 end::text,
	       case when s.spend_day = (now() at time zone 'utc')::date then s.spent_value else 0 end::text, s.balance::text,
	       s.checked_block
	  from senders s
	 where s.chain_id = $1
	 order by s.address`

func senderStatusCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the senders as the database has them; exit code 1 when one is halted",
		Long:  "Show the senders as the database has them. Reads CHAIN_ID and DATABASE_URL. The exit code makes it a check.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return readDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				rows, _ := db.Pool.Query(ctx, selectSenders, cfg.ChainID)
				all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[senderRow])
				if err != nil {
					return fmt.Errorf("read the senders: %w", err)
				}

				if asJSON {
					err = json.NewEncoder(cmd.OutOrStdout()).Encode(all)
				} else {
					printSenders(cmd.OutOrStdout(), all)
				}

				for _, s := range all {
					if s.State == "halted" && err == nil {
						err = errQuiet
					}
				}

				return err
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")

	return cmd
}

func printSenders(w io.Writer, all []senderRow) {
	if len(all) == 0 {
		fmt.Fprintln(w, "no sender has been used on this chain")
		return
	}

	t := newTable(w, "sender", "state", "instance", "next nonce", "waiting", "in flight", "fees today (wei)",
		"value today (wei)", "balance (wei)")
	for _, s := range all {
		t.AppendRow(table.Row{s.Address, s.State, shown(s.Instance), shown(s.NextNonce), s.Waiting, s.InFlight, s.SpentFees,
			s.SpentValue, shown(s.Balance)})
	}

	t.Render()
	for _, s := range all {
		if s.Reason != nil {
			fmt.Fprintf(w, "%s is %s: %s\n", s.Address, s.State, *s.Reason)
		}
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
			return usage{fmt.Errorf("--sender %q is not an address", *text)}
		}

		if err := check(); err != nil {
			return usage{err}
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
		Use:   "adopt-nonce --sender ADDRESS --nonce N",
		Short: "Let a halted sender go on, with N as its next nonce",
		Long: `Let a halted sender go on, with N as its next nonce. Look at the account in an explorer first: N must be above every nonce that the chain or a pool knows. A halt that names no transaction ends by itself once no endpoint knows such a nonce any more.
If somebody else has the key, replace the key instead.

Nothing new is sent before all nonces below N are final. A command whose nonce was used by a transaction that was not signed here becomes superseded.

If N was too high by mistake, the same command with a lower one brings the sender back, also when it is not halted. N is never one that a command has.`,
	}
	nonce := cmd.Flags().Uint64("nonce", 0, "the next nonce")
	check := func() error {
		if !cmd.Flags().Changed("nonce") || *nonce > 1<<62 {
			return errors.New("--nonce is missing: `sender status` says which one the sender was halted at")
		}

		return nil
	}

	return actOnSender(cmd, check, func(ctx context.Context, db *pgxpool.Pool, chainID int64,
		sender common.Address) error {
		return send.AdoptNonce(ctx, db, chainID, sender, *nonce)
	})
}
