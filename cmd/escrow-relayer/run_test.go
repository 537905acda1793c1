package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestStopIsBounded(t *testing.T) {
	t.Parallel()
	const grace = 9 * time.Second
	for name, c := range map[string]struct {
		stopping time.Duration // how long the service takes to stop
		want     string
	}{
		"in time":  {8 * time.Second, ""},
		"too slow": {10 * time.Second, "STOP_TIMEOUT=9s"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Hour, cancel)
				begun := time.Now()
				err := within(ctx, grace, func(ctx context.Context) error {
					<-ctx.Done()
					<-time.After(c.stopping)
					return nil
				})
				if c.want == "" {
					require.NoError(t, err)
				} else {
					require.ErrorContains(t, err, c.want)
				}

				require.Equal(t, time.Hour+min(c.stopping, grace), time.Since(begun))
				<-time.After(time.Minute) // the service has ended as well
			})
		})
	}

	broken := errors.New("broken")
	require.ErrorIs(t, within(t.Context(), grace, func(context.Context) error { return broken }), broken)
}
