package rpc

import (
	"context"
	"net"
	"time"
)

// Dial opens a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

const (
	// unacknowledged is how long the other side's kernel may leave what was sent unconfirmed before a
	// connection counts as broken.
	unacknowledged = 10 * time.Second
	// connectTimeout is for all addresses of a name, half of it for the first where there are more. It
	// is below what a request has, so that a request gets to the second address.
	connectTimeout = 4 * time.Second
)

// orNetwork is dial, or the network's: its connections end by themselves when packets vanish, by
// probes when they are idle, and by a bound on what is unconfirmed when they are not.
func orNetwork(dial Dial) Dial {
	if dial != nil {
		return dial
	}

	d := &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         limitUnacknowledged,
	}

	return d.DialContext
}
