package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/fusion-prime/escrow-relayer/internal/lab"
)

// 10,000 connections of forty addresses each begin a command of 255 KiB and never end it. The process stays within
// 256 MiB, and whoever asks meanwhile is answered.
func TestTenThousandConnections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	keeper := w.Chain.Accounts()[0]
	env, err := w.CommandFiles([]lab.Sender{{Account: keeper, Name: "keeper", MaxFee: "1", DayFees: "1"}}, []lab.Requester{
		{Name: "payer", Address: w.Chain.Accounts()[1].Address, Allow: []lab.Grant{{Sender: keeper.Address,
			Kinds: []string{"approve"}, MaxValue: "1", MaxFee: "1"}}}})
	require.NoError(t, err)
	_, err = w.OpenCommands()
	require.NoError(t, err)
	w.run("r0", 0, 1, env)
	w.ready("r0")
	p := w.fleet["r0"]

	// Twice as many as there are places for stay open: a process may have few files.
	const addresses, each, open = 40, 250, 25
	begun := "POST /commands HTTP/1.1\r\nHost: relayer\r\nContent-Type: application/json\r\n" +
		"Content-Length: 261120\r\n\r\n" + `{"commands":["` + strings.Repeat("a", 200<<10)
	var g errgroup.Group
	for i := range addresses {
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(i+1))}, Timeout: time.Minute}
		g.Go(func() error {
			var all []net.Conn
			defer func() {
				for _, c := range all {
					_ = c.Close()
				}
			}()
			for range each {
				c, err := from.DialContext(t.Context(), "tcp", strings.TrimPrefix(p.URL, "http://"))
				if err != nil {
					return err // it accepts, whatever it does with it then
				}

				if all = append(all, c); len(all) > open {
					_ = all[0].Close()
					all = all[1:]
				}

				_ = c.SetWriteDeadline(time.Now().Add(100 * time.Millisecond))
				_, _ = c.Write([]byte(begun)) // it may be closed already
			}

			return nil
		})
	}

	answered := 0
	honest := http.Client{Timeout: 20 * time.Second}
	flooded := make(chan error, 1)
	go func() { flooded <- g.Wait() }()
	for done := false; !done; answered++ {
		select {
		case err := <-flooded:
			require.NoError(t, err)
			done = true
		default:
		}

		response, err := honest.Get(p.URL + "/readyz")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}

	require.Positive(t, answered)
	require.True(t, p.Running())
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	require.NoError(t, err)
	most := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(status)
	require.NotNil(t, most)
	kib, err := strconv.Atoi(string(most[1]))
	require.NoError(t, err)
	t.Logf("%d answers meanwhile, at most %d MiB", answered, kib/1024)
	require.Less(t, kib, 256*1024)
	w.blocks(4)
	w.audit(false)
}
