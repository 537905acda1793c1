package partition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrDisagree means that a live instance has other settings, of a kind that would split the stream.
var ErrDisagree = errors.New("the fleet does not agree")

// Difference is a setting that has several values among the live instances.
type Difference struct {
	Name   string
	Stream bool
	Values map[string][]string // instances by value
}

// String names the setting, and the instances of each value.
func (d Difference) String() string {
	var values []string
	for _, v := range slices.Sorted(maps.Keys(d.Values)) {
		values = append(values, fmt.Sprintf("%q on %s", v, strings.Join(d.Values[v], ", ")))
	}

	return d.Name + " is " + strings.Join(values, " and ")
}

// Differences compares the settings of instances, by id. A setting that an instance omits, for
// example because its version is older, counts as equal.
func Differences(of map[string]Settings) []Difference {
	collect := func(stream bool, pick func(Settings) map[string]string) (list []Difference) {
		values := map[string]map[string][]string{}
		for _, id := range slices.Sorted(maps.Keys(of)) {
			for name, value := range pick(of[id]) {
				if values[name] == nil {
					values[name] = map[string][]string{}
				}

				values[name][value] = append(values[name][value], id)
			}
		}

		for _, name := range slices.Sorted(maps.Keys(values)) {
			if len(values[name]) > 1 {
				list = append(list, Difference{name, stream, values[name]})
			}
		}

		return list
	}

	return append(collect(true, func(s Settings) map[string]string { return s.Stream }),
		collect(false, func(s Settings) map[string]string { return s.Other })...)
}

// ABI is the name of the setting that stands for Events.
const ABI = "FACTORY_ABI and ESCROW_ABI"

// extends reports whether s has the events of other, with the same definitions.
func (s Settings) extends(other Settings) bool {
	for layout, definition := range other.Events {
		if s.Events[layout] != definition {
			return false
		}
	}

	return len(other.Events) > 0
}

// lacks reports whether other has all layouts of s, and further ones.
func lacks(s, other map[string]string) bool {
	if len(s) == 0 || len(s) >= len(other) {
		return false
	}

	for layout := range s {
		if _, ok := other[layout]; !ok {
			return false
		}
	}

	return true
}

// Agree returns ErrDisagree when a live instance differs in Settings.Stream and both lack Mixed; an ABI
// may have further events. Where none is alive the log says how the stream differs from that of the
// instance that was there last.
// The row of an instance that stopped cleanly and is about to restart has its old settings, so it
// is left out: the instance compares itself when it joins.
func Agree(ctx context.Context, cfg *Config, tx pgx.Tx) error {
	rows, _ := tx.Query(ctx,
		`select i.instance_id, i.settings, i.instance_id <> $3 and i.left_at is null and `+living+`
		   from relayer_instances i where i.chain_id = $1 order by i.seen_at`,
		cfg.ChainID, cfg.StaleAfter.Seconds(), cfg.InstanceID)
	var id, last string
	var raw []byte
	var alive, accompanied bool
	var before Settings
	var errs []error
	_, err := pgx.ForEachRow(rows, []any{&id, &raw, &alive}, func() error {
		var other Settings
		if err := json.Unmarshal(raw, &other); err != nil {
			return fmt.Errorf("read the settings of %s: %w", id, err)
		}

		last, before, accompanied = id, other, accompanied || alive
		if !alive {
			return nil
		}

		for _, d := range Differences(map[string]Settings{cfg.InstanceID: cfg.Settings, id: other}) {
			switch {
			case d.Name == ABI && (cfg.Settings.extends(other) || other.extends(cfg.Settings)):
			case cfg.Settings.Mixed || other.Mixed:
				cfg.Log.WarnContext(ctx, "instances have different settings, as ALLOW_MIXED_SETTINGS allows",
					slog.String("difference", d.String()))
			case d.Stream:
				errs = append(errs, errors.New(d.String()))
			}
		}

		return nil
	})
	if err != nil {
		return fmt.Errorf("compare the settings of the fleet: %w", err)
	}

	if len(errs) > 0 {
		return fmt.Errorf("%w: %w; to change it while the fleet runs, start the changed instances with ALLOW_MIXED_SETTINGS=true and take that back afterwards, "+
			"or stop all instances first", ErrDisagree, errors.Join(errs...))
	}

	if accompanied {
		return nil
	}

	for _, d := range Differences(map[string]Settings{cfg.InstanceID + " now": cfg.Settings, last + " before": before}) {
		if d.Stream {
			cfg.Log.WarnContext(ctx, "the stream goes on with other settings than the last instance had; "+
				"if that is a mistake, stop this instance and correct it", slog.String("difference", d.String()))
		}
	}

	return nil
}
