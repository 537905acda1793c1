package watch

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Why a watch tries again is said once per minute, not at each try, and at once when the reason changes.
func TestReasonsAreNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w watcher
		said := 0
		for try := range 240 {
			if w.level(fmt.Errorf("read blocks 9 to %d: it does not have the block yet", 72+try)) == slog.LevelWarn {
				said++
			}

			<-time.After(time.Second / 2)
		}

		require.Equal(t, 2, said)
		require.Equal(t, slog.LevelWarn, w.level(errors.New("no endpoint is available")))
		require.Equal(t, slog.LevelDebug, w.level(errors.New("no endpoint is available")))
	})
}
