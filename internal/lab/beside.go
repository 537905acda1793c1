package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/fusion-prime/escrow-relayer/internal/testchain"
)

// Beside sets up another chain for the relayers of l: its events have topics of their own, and its
// Postgres and Pub/Sub server are those of l. Closing l closes it.
func (l *Lab) Beside(ctx context.Context, o testchain.Options) (other *Lab, err error) {
	other = &Lab{Options: l.Options, PG: l.PG, URL: l.URL, DB: l.DB, PubSub: l.PubSub, Dir: l.Dir, closers: &closers{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, other.Close())
		}
	}()
	if other.Chain, err = testchain.StartSim(o); err != nil {
		return other, err
	}

	other.later(other.Chain.Stop)
	if err := other.deploy(ctx); err != nil {
		return other, err
	}

	other.of = l
	other.recordEvents()
	l.later(other.Close)

	return other, nil
}

// suffix tells the topics of a chain beside another one from that one's.
func (l *Lab) suffix() string {
	if l.of == nil {
		return ""
	}

	return "-" + l.Chain.ChainID().String()
}

// RunChains starts a relayer process that follows the chain of l and others, which are beside it, and
// does not wait for it to be ready. The variables of env hold for all of them.
func (l *Lab) RunChains(id string, number, total int, env map[string]string, others ...*Lab) (*Process, error) {
	path, err := l.WriteChains(id, number, others...)
	if err != nil {
		return nil, err
	}

	return l.run(id, l.EnvironChains(id, number, total, env, path), env["PORT"])
}

// EnvironChains is Environ for a relayer, or an operator, whose chains are in a file.
func (l *Lab) EnvironChains(id string, number, total int, env map[string]string, path string) []string {
	return merge(l.common(id, number, total), l.Env, env, map[string]string{"CONFIG_FILE": path})
}

// WriteChains writes the configuration file of an instance into Dir.
func (l *Lab) WriteChains(id string, number int, others ...*Lab) (path string, err error) {
	var entries []map[string]string
	for _, c := range append([]*Lab{l}, others...) {
		entry := map[string]string{}
		for variable, value := range c.ofChain(number) {
			entry[strings.ToLower(variable)] = value
		}

		entries = append(entries, entry)
	}

	file, err := json.Marshal(map[string]any{"chains": entries}) // JSON is YAML
	if err != nil {
		return "", err
	}

	path = filepath.Join(l.Dir, id+".yaml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		return "", fmt.Errorf("write the configuration file: %w", err)
	}

	return path, nil
}
