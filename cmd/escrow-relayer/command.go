package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/command/send"
	"github.com/fusion-prime/escrow-relayer/relayer/command/sign"
	"github.com/fusion-prime/escrow-relayer/relayer/config"
	"github.com/fusion-prime/escrow-relayer/relayer/database"
)

func commandCommand() *cobra.Command {
	cmd := group(&cobra.Command{Use: "command", Short: "Sign a command, look at commands, and give one up"})
	cmd.AddCommand(commandSignCommand(), commandShowCommand(), commandListCommand(), commandCancelCommand())

	return cmd
}

func commandSignCommand() *cobra.Command {
	var keyFile, passwordFile string
	cmd := &cobra.Command{
		Use:   "sign --keystore FILE --password-file FILE < COMMAND",
		Short: "Sign a command from standard input with a requester's key, and print it",
		Long: `Sign a command from standard input with a requester's key, and print it with its signature. The command is JSON as it is sent, without the field signature.
Needs no configuration. The id, on standard error, is what the command is known by.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := readInput(cmd, command.MaxBytes)
			if err != nil {
				return err
			}

			unsigned, err := unsigned(raw)
			if err != nil {
				return err
			}

			key, err := sign.ReadKey(keyFile, passwordFile)
			if err != nil {
				return err
			}

			signed, err := unsigned.Sign(key.PrivateKey)
			if err != nil {
				return err
			}

			fmt.Fprintf(cmd.ErrOrStderr(), "id %s, signed by %s\n", signed.ID(), key.Address)

			return json.NewEncoder(cmd.OutOrStdout()).Encode(signed)
		},
	}
	cmd.Flags().StringVar(&keyFile, "keystore", "", "keystore file of the requester")
	cmd.Flags().StringVar(&passwordFile, "password-file", "", "file with its password")

	return cmd
}

// unsigned reads a command without a signature: it is parsed with one of zeros.
func unsigned(raw []byte) (*command.Signed, error) {
	var fields map[string]any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil || fields == nil {
		return nil, errors.New("standard input is not a JSON object")
	}

	fields["signature"] = hexutil.Encode(make([]byte, 65))
	complete, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}

	return command.Parse(complete)
}

// selectCommand has a command, and every transaction that was signed for it.
const selectCommand = `
	select row_to_json(v) from (
		select command_id, kind, sender, escrow, requester, state, code, detail, winner, nonce,
		       tx_hash as transaction_hash, block_number, event_id, fee_paid::text, max_fee::text,
		       expires_at, received_at, assigned_at, sent_at, answered_at, cancel_requested, (
			select coalesce(json_agg(a), '[]') from (
				select attempt, purpose, tx_hash as transaction_hash, fee_cap::text, tip_cap::text, epoch, signed_at
				  from command_attempts where chain_id = $1 and command_id = $2 order by attempt) a) as attempts
		  from commands where chain_id = $1 and command_id = $2) v`

// selectUsed is what is left of a command that had a nonce and was answered, after RETENTION.
const selectUsed = `
	select json_build_object('command_id', hex(command_id), 'kind', kind, 'sender', hex(sender), 'escrow', hex(escrow),
	       'state', state, 'detail', 'answered, and left after RETENTION', 'nonce', nonce, 'transaction_hash', hex(tx_hash),
	       'block_hash', hex(block_hash), 'expires_at', expires_at)
	  from used_nonces where chain_id = $1 and command_id = bytes($2)`

func commandShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "show ID",
		Short: "Show a command and everything that was signed for it, as JSON",
		Long: `Show a command and everything that was signed for it, as JSON. Of one that left after RETENTION it shows what is left: the nonce that it had, and the
transaction that decided it. Reads CHAIN_ID and DATABASE_URL.`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				id := strings.ToLower(args[0])
				for _, statement := range []string{selectCommand, selectUsed} {
					var found json.RawMessage
					err := db.Pool.QueryRow(ctx, statement, cfg.ChainID, id).Scan(&found)
					if err == nil {
						return printJSON(cmd.OutOrStdout(), found)
					}

					if !errors.Is(err, pgx.ErrNoRows) {
						return fmt.Errorf("read command %s: %w", id, err)
					}
				}

				return no{fmt.Errorf("no command %s on chain %d: it was not taken in, or it left after RETENTION without ever having a nonce",
					id, cfg.ChainID)}
			})
		},
	}
}

// oneID takes the id of a command as the only argument.
func oneID(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("name the id of one command, got %d arguments", len(args))
	}

	if raw, err := hexutil.Decode(strings.ToLower(args[0])); err != nil || len(raw) != common.HashLength {
		return fmt.Errorf("%q is not the id of a command: 0x and 64 hexadecimal digits", args[0])
	}

	return nil
}

// selectCommands has the columns of the table of `list`.
const selectCommands = `
	select command_id, kind, escrow, state, code, coalesce(nonce::text, '–'),
	       to_char(received_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
	  from commands where chain_id = $1 and ($2 = false or answered_at is null) order by seq desc limit $3`

func commandListCommand() *cobra.Command {
	var open bool
	var limit int
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List commands, the newest first",
		Long:  "List commands, the newest first. Reads CHAIN_ID and DATABASE_URL.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 || limit > 10_000 {
				return fmt.Errorf("--limit %d: must be 1 to 10000", limit)
			}

			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				t := newTable(cmd.OutOrStdout(), "command", "kind", "escrow", "state", "code", "nonce", "received")
				rows, _ := db.Pool.Query(ctx, selectCommands, cfg.ChainID, open, limit)
				_, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (struct{}, error) {
					columns, err := row.Values()
					t.AppendRow(columns)

					return struct{}{}, err
				})
				if err != nil {
					return fmt.Errorf("list commands: %w", err)
				}

				t.Render()

				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&open, "open", false, "only those without a final answer")
	cmd.Flags().IntVar(&limit, "limit", 50, "at most so many")

	return cmd
}

func commandCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel ID",
		Short: "Give a command up: at once if nothing was signed, else by a void if that is mined first",
		Long: `Give a command up. If nothing was signed for it, it never will be. If it was sent, a transfer of nothing with the same nonce competes with it, and the
chain decides which of the two is mined; the answer says which. Reads CHAIN_ID and DATABASE_URL.`,
		Args: oneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return askDatabase(cmd, func(ctx context.Context, cfg *config.Config, db *database.Database) error {
				state, err := send.Cancel(ctx, db.Pool, cfg.ChainID, common.HexToHash(args[0]))
				if err != nil {
					return refusal(err)
				}

				fmt.Fprintf(cmd.OutOrStdout(), "asked for; the command was %s\n", state)

				return nil
			})
		},
	}
}
