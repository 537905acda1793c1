package relayer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A stop that kept its slots says so, although its other parts ended because they were told to.
func TestAStopThatFailsIsNotSilent(t *testing.T) {
	canceled := fmt.Errorf("read the head: %w", context.Canceled)
	kept := errors.New("release 630 slots: timeout")
	for name, c := range map[string]struct {
		err  error
		says string
	}{
		"clean":           {nil, "msg=stopped\n"},
		"told to stop":    {errors.Join(canceled, errors.Join(canceled, nil)), "msg=stopped\n"},
		"slots kept":      {kept, "release 630 slots: timeout"},
		"beside canceled": {errors.Join(errors.Join(canceled, kept), canceled), "release 630 slots: timeout"},
		"wrapped twice":   {errors.Join(canceled, errors.Join(nil, errors.Join(kept))), "release 630 slots: timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			r := &Relayer{log: slog.New(slog.NewTextHandler(&out, nil))}
			require.NoError(t, r.stopped(t.Context(), c.err))
			require.Contains(t, out.String(), c.says)
			require.Equal(t, strings.Contains(c.says, "release"), strings.Contains(out.String(), "level=WARN"))
		})
	}
}
