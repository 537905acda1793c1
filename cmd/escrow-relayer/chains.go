package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/fusion-prime/escrow-relayer/relayer/config"
)

// loader reads the settings of one chain: config.Load, or config.LoadDatabase.
type loader = func(map[string]string) (*config.Config, error)

// addChainFlags adds the flags common to all commands.
func addChainFlags(root *cobra.Command) {
	root.PersistentFlags().String("config", "", "configuration file that lists chains; default: CONFIG_FILE")
	root.PersistentFlags().Int64("chain", 0, "chain id of the one chain of the configuration that is meant")
}

// environ is the environment, with the file of --config.
func environ(cmd *cobra.Command) map[string]string {
	all := config.Environ()
	if path, _ := cmd.Flags().GetString("config"); path != "" {
		all["CONFIG_FILE"] = path
	}

	return all
}

// loadAll returns the chains of the configuration, or the one of --chain.
func loadAll(cmd *cobra.Command, load loader) ([]*config.Config, error) {
	all, err := config.Chains(environ(cmd), load)
	if err != nil {
		return nil, err
	}

	if emulator := all[0].PubSubEmulator; emulator != "" { // Google's client reads it from the environment
		if err := os.Setenv("PUBSUB_EMULATOR_HOST", emulator); err != nil {
			return nil, fmt.Errorf("set PUBSUB_EMULATOR_HOST: %w", err)
		}
	}

	if !cmd.Flags().Changed("chain") {
		return all, nil
	}

	id, _ := cmd.Flags().GetInt64("chain")
	if i := slices.IndexFunc(all, func(c *config.Config) bool { return c.ChainID == id }); i >= 0 {
		return all[i : i+1], nil
	}

	return nil, fmt.Errorf("--chain %d: the configuration has %s", id, names(all))
}

// loadOne returns the one chain of the configuration, or the one of --chain.
func loadOne(cmd *cobra.Command, load loader) (*config.Config, error) {
	all, err := loadAll(cmd, load)
	if err == nil && len(all) > 1 {
		err = fmt.Errorf("the configuration has %s: say by --chain which one is meant", names(all))
	}

	if err != nil {
		return nil, err
	}

	return all[0], nil
}

// names lists chains as "chains 1, 8453".
func names(all []*config.Config) string {
	ids := make([]string, len(all))
	for i, c := range all {
		ids[i] = strconv.FormatInt(c.ChainID, 10)
	}

	if len(all) == 1 {
		return "chain " + ids[0]
	}

	return "chains " + strings.Join(ids, ", ")
}
