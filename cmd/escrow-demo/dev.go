package main

import (
	"errors"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/internal/demo"
)

func devCommand(bin *string) *cobra.Command {
	o := demo.DevOptions{}
	var factory string
	cmd := &cobra.Command{
		Use:   "dev",
		Short: "Keep one relayer running on a local chain and a local Pub/Sub server, to develop a consumer against",
		Long: `Keep one relayer running, say what a consumer has to set, and print each message as it comes, a line of JSON each.

What is not named is brought along: a chain with the contracts and traffic on them, a Postgres, a Pub/Sub server. Their
contents are gone at the end. No Docker and no cloud account are needed.

  make dev                                                                everything is brought along
  make dev ARGS="--rpc http://127.0.0.1:8545 --deploy"                    your node (anvil, geth --dev, hardhat)
  make dev ARGS="--rpc URL --factory 0x… --start-block N --database URL"  your contracts, your Postgres

The relayer gets your environment too: FACTORY_ABI, ESCROW_ABI and EVENT_ALIASES for contracts of others; EVENT_NAMES
with OTHER_EVENTS_TOPIC_ID=settlement.other.v1, which has a subscription settlement.other.v1.consumer.
--deploy sends the factory from the first account that the node holds the key of (eth_accounts).
Ctrl-C ends everything that was started. Exit codes: 0 ended by Ctrl-C; 2 it could not run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if factory != "" && !common.IsHexAddress(factory) {
				return errors.New("--factory " + factory + ": must be an address of 20 bytes, in hexadecimal")
			}

			o.Factory = common.HexToAddress(factory)
			if err := o.Check(); err != nil {
				return err
			}

			if o.Bin, err = relayer(*bin); err != nil {
				return err
			}

			o.Out, o.Log = cmd.OutOrStdout(), cmd.ErrOrStderr()

			return demo.Dev(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.RPC, "rpc", "", "URL of your node; default: a chain is brought along")
	f.BoolVar(&o.Deploy, "deploy", false, "deploy the factory on the node of --rpc")
	f.StringVar(&factory, "factory", "", "address of the factory on the node of --rpc")
	f.Uint64Var(&o.StartBlock, "start-block", 0, "block of the deployment of --factory")
	f.StringVar(&o.Database, "database", "", "URL of your Postgres; default: one is brought along")
	f.StringVar(&o.PubSub, "pubsub", "127.0.0.1:8085", "address that the Pub/Sub server listens on")
	f.IntVar(&o.Port, "port", 8080, "port of the relayer's page, on 127.0.0.1")
	f.DurationVar(&o.Interval, "interval", 2*time.Second, "between two blocks of the chain that is brought along")
	f.DurationVar(&o.Reorganise, "reorganise", time.Minute, "between two reorganisations of that chain; 0: none")
	f.BoolVar(&o.Quiet, "quiet", false, "neither traffic nor reorganisations on that chain")
	f.Uint64Var(&o.Confirmations, "confirmations", 0, "blocks on top of a block before its events are published; 0: at once")

	return cmd
}
